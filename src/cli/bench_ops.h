// The ops that cplm bench ops times, each with what its rows cost by the formulas of kernels/*.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "cplm/config.h"

namespace cplm {

struct HeadShape {
  std::string name;
  int64_t vocab_size, width;
};

// Inputs are made for it: `batch` sequences of `positions`.
struct Problem {
  int64_t batch, positions;
  at::TensorOptions options, wide, ids_options;
  HeadShape shape;
  at::Tensor normal(const std::vector<int64_t>& sizes, double scale) const;
  at::Tensor ids() const;
};

// Modelled, without the op's matrix products, which are counted as they are called.
struct OpCost {
  double flops = 0, bytes = 0;
  OpCost operator+(const OpCost& other) const { return {flops + other.flops, bytes + other.bytes}; }
};

// One op on both paths; the run keeps its inputs alive.
struct OpRun {
  std::function<void(OpsKind)> run;
  OpCost rows;
};

struct NamedOp {
  std::string name;
  std::function<OpRun()> make;  // its inputs live as long as the run
  std::string rival = {};       // the op that it is weighed against; empty: none
};

std::vector<NamedOp> bench_ops_of(const Problem& problem);     // of the heads
std::vector<NamedOp> bench_mixers_of(const Problem& problem);  // whole mixers

}  // namespace cplm
