// See sampler.h and cplm/generate.h.
#include "generate/sampler.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/topk.h>

#include <limits>

#include "cplm/base.h"

namespace cplm {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

at::Tensor within_top_k(const at::Tensor& log_prob, int64_t top_k) {
  if (top_k <= 0 || top_k >= log_prob.size(1)) return log_prob;
  const at::Tensor least = std::get<0>(log_prob.topk(top_k, 1)).select(1, top_k - 1).unsqueeze(1);
  return log_prob.masked_fill(log_prob.lt(least), kMinusInfinity);
}

// The likeliest so many whose probability before them is below p.
at::Tensor within_top_p(const at::Tensor& log_prob, const SamplingOptions& sampling) {
  if (sampling.top_p >= 1) return log_prob;
  const auto [sorted, order] = log_prob.sort(/*stable=*/true, 1, /*descending=*/true);
  const at::Tensor p = sorted.to(at::kDouble).div_(sampling.temperature).softmax(1);
  at::Tensor cut = p.cumsum(1).sub_(p).ge(sampling.top_p);
  cut.select(1, 0).fill_(false);
  return log_prob.masked_fill(cut.scatter(1, order, cut), kMinusInfinity);
}

uint64_t noise_key(int64_t prompt, int64_t position) {
  return mix64(static_cast<uint64_t>(prompt)) + static_cast<uint64_t>(position);
}

}  // namespace

at::Tensor filter_log_probs(const at::Tensor& log_prob, const SamplingOptions& sampling) {
  if (sampling.temperature == 0) return log_prob;  // the likeliest passes every filter
  return within_top_p(within_top_k(log_prob, sampling.top_k), sampling);
}

Chosen choose_tokens(const NextTokens& next, CopyMode mode, const SamplingOptions& sampling,
                     const std::vector<int64_t>& prompts, OpsKind ops) {
  ops::NextTokenInput input = next.input;
  if (input.copy.scores.defined()) input.mode = mode;
  input.log_space = true;
  const at::Tensor log_prob = ops::next_token_distribution(input, ops);
  std::vector<int64_t> keys;
  for (size_t r = 0; r < prompts.size(); ++r) {
    keys.push_back(static_cast<int64_t>(noise_key(prompts[r], next.positions[r])));
  }
  const at::Tensor counter =
      at::from_blob(keys.data(), {static_cast<int64_t>(keys.size())}, at::kLong)
          .clone()
          .to(log_prob.device());
  const at::Tensor tokens = ops::sample_tokens(filter_log_probs(log_prob, sampling), counter,
                                               {sampling.temperature, sampling.seed}, ops);
  const at::Tensor chosen =
      log_prob.gather(1, tokens.clamp_min(0).unsqueeze(1)).squeeze(1).to(at::kDouble).cpu();
  const at::Tensor ids = tokens.cpu();
  Chosen out;
  for (int64_t r = 0; r < ids.numel(); ++r) {
    out.ids.push_back(ids.const_data_ptr<int64_t>()[r]);
    out.log_probs.push_back(chosen.const_data_ptr<double>()[r]);
    if (out.ids.back() < 0) {
      throw Error(str("prompt ", prompts[static_cast<size_t>(r)], ", position ",
                      next.positions[static_cast<size_t>(r)],
                      ": no token has a finite probability; the weights are damaged or diverged"),
                  ExitCode::kNotFinite);
    }
  }
  return out;
}

}  // namespace cplm
