// One token a row: greedy, or by the Gumbel-max trick with the noise of kernels/sample_noise.h.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/where.h>

#include <limits>

#include "cplm/base.h"
#include "kernels/sample_noise.h"
#include "ops/backend.h"

namespace cplm::ops {
namespace {

void check_input(const at::Tensor& log_prob, const at::Tensor& counter, const Sampling& sampling) {
  const at::ScalarType wide = log_prob.scalar_type();
  CPLM_CHECK(log_prob.dim() == 2 && accumulation_dtype(wide) == wide,
             "[ops.sample_tokens] expected log_prob [R, V], float32 or float64, got ",
             log_prob.toString(), " ", log_prob.sizes());
  CPLM_CHECK(counter.dim() == 1 && counter.size(0) == log_prob.size(0) &&
                 counter.scalar_type() == at::kLong && counter.device() == log_prob.device(),
             "[ops.sample_tokens] expected counter int64 [", log_prob.size(0), "] on ",
             log_prob.device().str(), ", got ", counter.toString(), " ", counter.sizes(), " on ",
             counter.device().str());
  // Outside, log P / temperature may leave the range of float32.
  CPLM_CHECK(
      sampling.temperature == 0 || (sampling.temperature >= 1e-6 && sampling.temperature <= 1e6),
      "[ops.sample_tokens] expected a temperature of 0 (greedy) or of 1e-6 to 1e6, got ",
      sampling.temperature);
}

// Noise of every token [R, V], float32. Made on the host: the one op here that reads numbers back.
at::Tensor noise(const at::Tensor& log_prob, const at::Tensor& counter, uint64_t seed) {
  const at::Tensor draws = counter.cpu().contiguous();
  const int64_t rows = log_prob.size(0), vocab = log_prob.size(1);
  const at::Tensor out = at::empty({rows, vocab}, at::TensorOptions().dtype(at::kFloat));
  float* const data = out.mutable_data_ptr<float>();
  for (int64_t r = 0; r < rows; ++r) {
    const auto draw = static_cast<uint64_t>(draws.const_data_ptr<int64_t>()[r]);
    for (int64_t v = 0; v < vocab; ++v) {
      data[r * vocab + v] = kernels::gumbel_noise(seed, draw, static_cast<uint32_t>(v));
    }
  }
  return out.to(log_prob.options());
}

at::Tensor composed_scores(const at::Tensor& log_prob, const at::Tensor& counter,
                           const Sampling& sampling) {
  if (sampling.temperature == 0) return log_prob;
  const double inverse = log_prob.scalar_type() == at::kFloat
                             ? 1.0F / static_cast<float>(sampling.temperature)
                             : 1.0 / sampling.temperature;
  return log_prob.mul(inverse).add_(noise(log_prob, counter, sampling.seed));
}

}  // namespace

at::Tensor sample_tokens(const at::Tensor& log_prob, const at::Tensor& counter,
                         const Sampling& sampling, OpsKind path) {
  check_input(log_prob, counter, sampling);
  at::Tensor none = at::full({log_prob.size(0)}, -1, counter.options());
  if (log_prob.numel() == 0) return none;
  if (const Backend* rows = rows_of(log_prob, path)) {
    at::Tensor tokens = at::empty_like(none);
    rows->sample_tokens(log_prob.contiguous(), counter.contiguous(), sampling, tokens);
    return tokens;
  }
  // The first of equal ones; a NaN is the largest, and above nothing.
  const auto [best, token] = composed_scores(log_prob, counter, sampling).max(1);
  return at::where(best.gt(-std::numeric_limits<double>::infinity()), token, none);
}

}  // namespace cplm::ops
