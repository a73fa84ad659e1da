// The fair pair: at step 0 both arms have the same backbone, and every step reads the same batch.
// Weights stand still, so that each logged loss can be held against the fresh model's own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cplm/eval.h"
#include "cplm/train.h"
#include "support/compare.h"
#include "support/tensors.h"
#include "support/training_folder.h"

namespace cplm::test {
namespace {

constexpr int64_t kSteps = 34;  // more than one epoch

// Mean loss of each of the first batches in data order under a fresh model.
std::vector<double> expected_losses(const TrainingFolder& folder, const Config& config) {
  LanguageModel model(config.model, {at::TensorOptions().dtype(at::kDouble), OpsKind::kFused, {}});
  initialize(model.parameters(), config.model, config.run.seed);
  const WindowSet windows({(folder / "data/train/*.h5").string()}, config.data.sequence_length,
                          WindowSet::ShortWindows::kDrop);
  std::vector<double> losses;
  for (int64_t step = 0; step < kSteps; ++step) {
    std::vector<int64_t> rows;
    for (int64_t row = 0; row < config.batch_sequences(); ++row) {
      const int64_t sequence = step * config.batch_sequences() + row;
      rows.push_back(window_at(config.run.seed, sequence / windows.size(),
                               sequence % windows.size(), windows.size()));
    }
    const TokenBatch batch = windows.read_batch(rows);
    const PositionScores scores =
        model.score(model_input(batch, 0, batch.rows, false, at::Device(at::kCPU)));
    double sum = 0;
    for (const double log_prob : values(scores.log_prob)) sum -= log_prob;
    losses.push_back(sum / static_cast<double>(batch.counted_targets));
  }
  return losses;
}

TEST(TrainArms, ShareBackboneAndBatches) {
  const TrainingFolder folder;
  for (const char* head : {"vanilla", "cplm"}) {
    const Texts overrides = {std::string("model.head=") + head, "optimizer.lr=1e-300",
                             "train.steps=34", "train.precision=float64", "data.validation=[]"};
    const ProcessResult result = folder.train(head, overrides);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    std::vector<double> losses;
    for (const std::string& line : folder.metrics(head, "train")) {
      losses.push_back(number_in(line, "loss"));
    }
    const Config config = load_config(folder / "config.yaml", overrides);
    EXPECT_TRUE(close(losses, expected_losses(folder, config), kModelValue)) << head;
  }
}

}  // namespace
}  // namespace cplm::test
