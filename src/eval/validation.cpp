// Validation loss window by window, and the means of the copy head's gates.
#include <ATen/ops/stack.h>

#include <algorithm>
#include <numeric>

#include "cplm/base.h"
#include "cplm/eval.h"

namespace cplm {
namespace {

int64_t window_count(const WindowSet& windows, int64_t sequences) {
  return sequences > 0 ? std::min(sequences, windows.size()) : windows.size();
}

// Sums over each row's counted targets, float64 [num, B], on the host.
at::Tensor row_sums(const PositionScores& scores, const at::Tensor& counted) {
  const auto sum = [&](const at::Tensor& x) {
    return x.to(at::kDouble).mul(counted).sum(-1);  // uncounted rows hold finite numbers
  };
  std::vector<at::Tensor> sums = {scores.log_prob.to(at::kDouble).sum(-1).neg_()};
  if (scores.copy_gate.defined()) {
    sums.push_back(scores.log_prob_no_copy.to(at::kDouble).sum(-1).neg_());
    sums.push_back(sum(scores.copy_gate));
    sums.push_back(sum(scores.sink_mass));
    sums.push_back(sum(scores.copy_weight));
  }
  return at::stack(sums).cpu().contiguous();
}

}  // namespace

ValidationResult validate(LanguageModel& model, const WindowSet& windows,
                          const ValidationOptions& options) {
  const int64_t total = window_count(windows, options.sequences);
  const at::Device device = model.options().tensor.device();
  ValidationResult result;
  std::vector<double> totals(5, 0.0);
  int64_t num_sums = 1;
  for (int64_t begin = 0; begin < total; begin += options.micro_batch) {
    const int64_t rows = std::min(options.micro_batch, total - begin);
    std::vector<int64_t> indices(static_cast<size_t>(rows));
    std::iota(indices.begin(), indices.end(), begin);
    const TokenBatch batch = windows.read_batch(indices);
    const ModelInput input = model_input(batch, 0, rows, options.document_mask, device);
    const at::Tensor counted = input.targets.ge(0).to(at::kDouble);
    const at::Tensor sums = row_sums(model.score(input), counted);
    const at::Tensor counts = counted.sum(-1).to(at::kLong).cpu();
    num_sums = sums.size(0);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = 0; i < num_sums; ++i) {
        totals[static_cast<size_t>(i)] += sums.const_data_ptr<double>()[i * rows + row];
      }
      result.window_loss_sum.push_back(sums.const_data_ptr<double>()[row]);
      result.window_counted.push_back(counts.const_data_ptr<int64_t>()[row]);
    }
    result.counted += batch.counted_targets;
  }
  if (result.counted == 0) {
    throw Error(
        "[eval.validate] none of the " + std::to_string(total) +
            " validation windows has a counted target; check loss_mask of the validation shards",
        ExitCode::kBadData);
  }
  const auto mean = [&](size_t i) { return totals[i] / static_cast<double>(result.counted); };
  result.loss = mean(0);
  if (num_sums > 1) result.copy = CopyMeans{mean(1), mean(2), mean(3), mean(4)};
  return result;
}

std::string validation_id(const WindowSet& windows, int64_t sequences) {
  std::string text =
      str("windows ", window_count(windows, sequences), " length ", windows.sequence_length());
  for (const ShardInfo& shard : windows.shards()) text += "\n" + shard.content_sha256;
  return sha256_hex(text);
}

}  // namespace cplm
