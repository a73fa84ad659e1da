// Validation loss window by window, and the means of the copy head's gates.
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>

#include "cplm/base.h"
#include "cplm/eval.h"

namespace cplm {
namespace {

int64_t window_count(const WindowSet& windows, int64_t sequences) {
  return sequences > 0 ? std::min(sequences, windows.size()) : windows.size();
}

constexpr int64_t kMostSums = 5;

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

// Windows [begin, begin + rows): their sums and counted targets, into the columns that are theirs.
void score_windows(LanguageModel& model, const WindowSet& windows, const ValidationOptions& options,
                   int64_t begin, int64_t rows, const at::Tensor& sums, const at::Tensor& counts) {
  std::vector<int64_t> indices(static_cast<size_t>(rows));
  std::iota(indices.begin(), indices.end(), begin);
  const TokenBatch batch = windows.read_batch(indices);
  const ModelInput input =
      model_input(batch, 0, rows, options.document_mask, model.options().tensor.device());
  const at::Tensor counted = input.targets.ge(0).to(at::kDouble);
  const at::Tensor found = row_sums(model.score(input), counted);
  sums.narrow(0, 0, found.size(0)).narrow(1, begin, rows).copy_(found);
  counts.narrow(0, begin, rows).copy_(counted.sum(-1));
}

ValidationResult summarize(const at::Tensor& sums, const at::Tensor& counts, bool has_copy_head) {
  const int64_t total = counts.numel();
  const double* of_window = sums.const_data_ptr<double>();
  ValidationResult result;
  result.window_loss_sum.assign(of_window, of_window + total);
  result.window_counted.assign(counts.const_data_ptr<int64_t>(),
                               counts.const_data_ptr<int64_t>() + total);
  result.counted =
      std::accumulate(result.window_counted.begin(), result.window_counted.end(), int64_t{0});
  if (result.counted == 0) {
    throw Error(str("[eval.validate] none of the ", total,
                    " validation windows has a counted target; check loss_mask of the validation "
                    "shards"),
                ExitCode::kBadData);
  }
  const auto mean = [&](int64_t i) {  // in window order, whoever computed them
    return std::accumulate(of_window + i * total, of_window + (i + 1) * total, 0.0) /
           static_cast<double>(result.counted);
  };
  result.loss = mean(0);
  if (has_copy_head) result.copy = CopyMeans{mean(1), mean(2), mean(3), mean(4)};
  return result;
}

}  // namespace

ValidationResult validate(LanguageModel& model, const WindowSet& windows,
                          const ValidationOptions& options, Communicator* ranks) {
  const int64_t total = window_count(windows, options.sequences);
  const at::Tensor sums = at::zeros({kMostSums, total}, at::kDouble);
  const at::Tensor counts = at::zeros({total}, at::kLong);
  const int64_t size = ranks == nullptr ? 1 : ranks->size();
  const int64_t rank = ranks == nullptr ? 0 : ranks->rank();
  for (int64_t begin = rank * options.micro_batch; begin < total;
       begin += size * options.micro_batch) {
    score_windows(model, windows, options, begin, std::min(options.micro_batch, total - begin),
                  sums, counts);
    if (ranks != nullptr) ranks->makes_progress();
  }
  if (ranks != nullptr) {  // each window has one rank's numbers and zeros: the sum is exact
    PendingCollective all_sums = ranks->host_all_reduce(sums);
    ranks->host_all_reduce(counts).wait();
    all_sums.wait();
  }
  return summarize(sums, counts, model.config().head == HeadKind::kCplm);
}

std::string validation_id(const WindowSet& windows, int64_t sequences) {
  std::string text =
      str("windows ", window_count(windows, sequences), " length ", windows.sequence_length());
  for (const ShardInfo& shard : windows.shards()) text += "\n" + shard.content_sha256;
  return sha256_hex(text);
}

}  // namespace cplm
