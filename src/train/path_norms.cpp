// See path_norms.h.
#include "train/path_norms.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "cplm/base.h"
#include "train/rank_step.h"

namespace cplm {
namespace {

enum WeightPath : int64_t { kLmHead, kCopyToken, kCpHead, kBackbone };
constexpr int64_t kNumWeightPaths = 4, kNumHiddenPaths = 3;

WeightPath path_of(const std::string& name, bool tied) {
  if (name == (tied ? "model.embed_tokens.weight" : "lm_head.weight")) return kLmHead;
  if (name == "copy_token.weight") return kCopyToken;
  return name.starts_with("cp_head.") ? kCpHead : kBackbone;
}

// Neighbours in the flat buffers on one path. Padding behind a tensor is zero.
struct Run {
  WeightPath path;
  FlatRange range;
};

std::vector<Run> runs_of(const LanguageModel& model) {
  std::vector<Run> runs;
  for (const Parameter& p : model.parameters().all()) {
    const WeightPath path = path_of(p.name, model.config().tie_word_embeddings);
    if (runs.empty() || runs.back().path != path) runs.push_back({path, {p.offset, p.offset}});
    runs.back().range.end = p.offset + p.numel;
  }
  return runs;
}

}  // namespace

HiddenGradientSquares zero_squares(at::Device device) {
  const auto zero = [&] { return at::zeros({}, at::TensorOptions(at::kDouble).device(device)); };
  return {zero(), zero(), zero()};
}

at::Tensor weight_squares(const LanguageModel& model, const std::vector<FlatRange>& ranges) {
  const at::Tensor& grad = model.parameters().flat_grad();
  at::Tensor squares = at::zeros({kNumWeightPaths}, grad.options().dtype(at::kDouble));
  for (const Run& run : runs_of(model)) {
    for (const FlatRange& range : ranges) {
      const int64_t begin = std::max(run.range.begin, range.begin);
      const int64_t end = std::min(run.range.end, range.end);
      if (begin >= end) continue;
      const at::Tensor part = grad.narrow(0, begin, end - begin);
      squares.select(0, run.path).add_(ops::grad_norm(part, 0, model.options().ops).norm.square());
    }
  }
  return squares;
}

at::Tensor path_norms(const LanguageModel& model, const HiddenGradientSquares& hidden,
                      RankStep* ranks) {
  const at::Tensor of_hidden = at::stack({hidden.lm_head, hidden.copy_token, hidden.cp_head});
  if (ranks != nullptr) return ranks->path_squares(of_hidden).sqrt_();
  const FlatRange whole{0, model.parameters().flat_grad().numel()};
  return at::cat({weight_squares(model, {whole}), of_hidden}).sqrt_();
}

GradientsRecord gradients_record(const std::vector<double>& norms, bool copies) {
  CPLM_CHECK(norms.size() == size_t{kNumWeightPaths + kNumHiddenPaths},
             "[train.path_norms] expected ", kNumWeightPaths + kNumHiddenPaths, " norms, got ",
             norms.size());
  GradientsRecord record;
  const double* hidden = norms.data() + kNumWeightPaths;
  record.weights.lm_head = norms[kLmHead];
  record.backbone = norms[kBackbone];
  record.hidden.lm_head = hidden[0];
  if (copies) {
    record.weights.copy_token = norms[kCopyToken];
    record.weights.cp_head = norms[kCpHead];
    record.hidden.copy_token = hidden[1];
    record.hidden.cp_head = hidden[2];
  }
  return record;
}

int64_t copyable_targets(const TokenBatch& batch, bool include_current, bool document_mask) {
  if (batch.rows == 0) return 0;
  const int64_t positions = batch.sequence_length;
  const auto at = [](int64_t i) { return static_cast<size_t>(i); };
  const int32_t largest = *std::max_element(batch.tokens.begin(), batch.tokens.end());
  // Where each token was seen last, positions counted through all rows.
  std::vector<int64_t> last_seen(at(largest) + 1, -1);
  int64_t found = 0;
  for (int64_t row = 0; row < batch.rows; ++row) {
    for (int64_t t = 0; t < positions; ++t) {
      const int64_t here = row * positions + t;
      const int32_t* token = batch.tokens.data() + row * (positions + 1) + t;
      const int64_t start = document_mask ? batch.document_start[at(here)] : 0;
      if (include_current) last_seen[at(token[0])] = here;
      const bool seen = last_seen[at(token[1])] >= row * positions + start;
      found += seen && batch.target_counted[at(here)] != 0 ? 1 : 0;
      last_seen[at(token[0])] = here;
    }
  }
  return found;
}

}  // namespace cplm
