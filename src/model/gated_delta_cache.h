// What a Gated DeltaNet layer keeps of each sequence while decoding: one state a head and the last
// inputs of its short convolutions, of a size that does not depend on the length.
#pragma once

#include <vector>

#include "cplm/ops_recurrent.h"
#include "model/decode_pass.h"

namespace cplm {

// Sizes of a layer, and the parts of rows [..., conv_width()] that its convolutions take and give.
struct DeltaShape {
  explicit DeltaShape(const ModelConfig& config)
      : heads(config.linear_heads()),
        key_dim(config.linear_key_dim()),
        value_dim(config.linear_value_dim()),
        taps(config.linear_conv_kernel) {}
  int64_t heads, key_dim, value_dim, taps;

  int64_t keys() const { return heads * key_dim; }
  int64_t values() const { return heads * value_dim; }
  int64_t conv_width() const { return 2 * keys() + values(); }
  at::Tensor q(const at::Tensor& mixed) const { return part(mixed, 0, key_dim); }
  at::Tensor k(const at::Tensor& mixed) const { return part(mixed, keys(), key_dim); }
  at::Tensor v(const at::Tensor& mixed) const { return part(mixed, 2 * keys(), value_dim); }

 private:
  at::Tensor part(const at::Tensor& mixed, int64_t begin, int64_t dim) const {
    return mixed.narrow(-1, begin, heads * dim).unflatten(-1, {heads, dim});
  }
};

// What a pass brings: inputs of the convolutions [1, R, W], their weights [W, 1, J], and the gates
// [1, R, H].
struct DeltaRows {
  at::Tensor inputs, conv_weight;
  ops::DeltaGates gates;
};

// A run that may be taken back costs a copy of the state and of the run's own rows; taking it back
// restores that copy and goes through the rows that stay once more.
class GatedDeltaCache : public DecodeCache {
 public:
  // options: of the inputs; states are of their accumulation dtype.
  GatedDeltaCache(int64_t sequences, const DeltaShape& shape, const at::TensorOptions& options);
  // The mixed rows of the pass [R, H, U], all remembered.
  at::Tensor advance(const DeltaRows& rows, const DecodePass& pass);

  int64_t bytes() const override;
  void reserve(int64_t) override {}  // the size is fixed
  void rewind(int64_t sequence, int64_t length) override;
  void select(const at::Tensor& index) override;

 private:
  // A run as it was, with what stood before it.
  struct Undo {
    int64_t sequence, past;
    at::Tensor state, tail;    // before the run
    at::Tensor inputs, mixed;  // [1, n, W]
    ops::DeltaGates gates;     // [1, n, H]
    int64_t end() const { return past + inputs.size(1); }
  };
  at::Tensor advance_run(const DeltaRows& rows, const NewRun& run, OpsKind ops);
  at::Tensor advance_batch(const DeltaRows& rows, const DecodePass& pass);
  void start_document(const NewRun& run);
  void remember(const NewRun& run, const at::Tensor& inputs, const at::Tensor& mixed,
                const ops::DeltaGates& gates);
  // Mixed rows [1, n, W] of one sequence through its state; returns [n, H, U].
  at::Tensor go_through(const at::Tensor& mixed, const ops::DeltaGates& gates, int64_t sequence);
  // The last inputs of the sequences [first, first + count) after more of them [count, n, W].
  void push_inputs(int64_t first, const at::Tensor& inputs);

  DeltaShape shape_;
  at::Tensor states_;  // [S, H, K, U]
  at::Tensor tails_;   // [S, J - 1, W]
  std::vector<Undo> undo_;
};

}  // namespace cplm
