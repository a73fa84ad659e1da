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

}  // namespace

void initialize(ParameterStore& parameters, const ModelConfig& config, uint64_t seed) {
  const double residual = std::sqrt(2.0 * static_cast<double>(config.num_hidden_layers));
  for (const Parameter& p : parameters.all()) {
    if (p.init == Init::kOne) {
      p.master.fill_(1.0);
    } else if (p.init == Init::kZero) {
      p.master.zero_();
    } else {
      const double std =
          p.init == Init::kNormal ? config.initializer_range : config.initializer_range / residual;
      const at::Tensor values = at::empty({p.numel}, at::TensorOptions().dtype(at::kDouble));
      fill_normal(values.mutable_data_ptr<double>(), p.numel, mix64(seed ^ hash_name(p.name)), std);
      p.master.copy_(values.view(p.shape));
    }
  }
  parameters.round_values();
}

}  // namespace cplm
