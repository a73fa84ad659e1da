// Initial weights, a pure function of (seed, tensor name, element): a counter-based generator and
// Box-Muller in float64, so that neither device, thread count nor other tensors change a value.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <cmath>
#include <numbers>

#include "cplm/base.h"
#include "cplm/model.h"

namespace cplm {
namespace {

double unit_interval(uint64_t bits) {  // (0, 1]
  return (static_cast<double>(bits >> 11) + 1.0) * 0x1.0p-53;
}

// Elements 2i and 2i+1 are the two halves of one Box-Muller pair.
void fill_normal(double* out, int64_t numel, uint64_t key, double std) {
  at::parallel_for(0, (numel + 1) / 2, 4096, [&](int64_t begin, int64_t end) {
    for (int64_t pair = begin; pair < end; ++pair) {
      const uint64_t counter = key + 2 * static_cast<uint64_t>(pair) * 0x9e3779b97f4a7c15ULL;
      const double radius = std * std::sqrt(-2.0 * std::log(unit_interval(mix64(counter))));
      const double angle =
          2.0 * std::numbers::pi * unit_interval(mix64(counter + 0x9e3779b97f4a7c15ULL));
      out[2 * pair] = radius * std::cos(angle);
      if (2 * pair + 1 < numel) out[2 * pair + 1] = radius * std::sin(angle);
    }
  });
}

// body(u) for each element, u uniform in (0, 1].
template <class Body>
void fill_uniform(double* out, int64_t numel, uint64_t key, const Body& body) {
  for (int64_t i = 0; i < numel; ++i) {
    out[i] = body(unit_interval(mix64(key + static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15ULL)));
  }
}

double log_decay_rate(double u) { return std::log(16.0 * u); }

// softplus of it is a step between 0.001 and 0.1, each order of magnitude as likely.
double step_bias(double u) {
  const double step = std::exp(std::log(1e-3) + u * std::log(100.0));
  return step + std::log(-std::expm1(-step));
}

void fill(const Parameter& p, const ModelConfig& config, uint64_t key, double* out) {
  if (p.init == Init::kLogDecayRate) return fill_uniform(out, p.numel, key, log_decay_rate);
  if (p.init == Init::kStepBias) return fill_uniform(out, p.numel, key, step_bias);
  const double residual = std::sqrt(2.0 * static_cast<double>(config.num_hidden_layers));
  fill_normal(
      out, p.numel, key,
      p.init == Init::kNormal ? config.initializer_range : config.initializer_range / residual);
}

}  // namespace

void initialize(ParameterStore& parameters, const ModelConfig& config, uint64_t seed) {
  for (const Parameter& p : parameters.all()) {
    if (p.init == Init::kOne) {
      p.master.fill_(1.0);
    } else if (p.init == Init::kZero) {
      p.master.zero_();
    } else {
      const at::Tensor values = at::empty({p.numel}, at::TensorOptions().dtype(at::kDouble));
      fill(p, config, mix64(seed ^ hash_name(p.name)), values.mutable_data_ptr<double>());
      p.master.copy_(values.view(p.shape));
    }
  }
  parameters.round_values();
}

}  // namespace cplm
