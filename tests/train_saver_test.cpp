// Saves of a run: that waiting for one tells of progress, and what an asynchronous one leaves to
// its own thread.
#include <ATen/ops/full.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <thread>

#include "cplm/base.h"
#include "support/temp_dir.h"
#include "train/saver.h"

namespace cplm::test {
namespace {

constexpr int64_t kPieces = 3;  // of 32 MiB, as they are written

class Saver : public testing::Test {
 protected:
  static CheckpointConfig config(bool async) { return {.every = 1, .keep = 2, .async = async}; }
  static CheckpointTensors tensors(double value, int64_t elements = kPieces * (8 << 20)) {
    const at::Tensor weights = at::full({elements}, value, at::kFloat);
    return {{{"weights", weights}}, {{"exp_avg.weights", weights.narrow(0, 0, 1)}}};
  }
  bool is_saved(int64_t step) const {
    const auto newest = newest_complete(folder_.path());
    return newest && newest->step == step;
  }
  double saved_value() const {
    CheckpointReader reader(newest_complete(folder_.path())->path);
    return reader.model().read("weights").max().item<double>();
  }
  std::string state(int64_t step) const { return str("{\"step\": ", step, "}"); }

  TempDir folder_;
};

TEST_F(Saver, ASaveTellsThatItGetsOn) {
  int64_t heard = 0;
  bool sealed = true;
  CheckpointSaver saver(folder_.path(), config(false), [&] { heard += 1; });
  saver.save(1, tensors(1.0), state(1),
             [&] { sealed = newest_complete(folder_.path()).has_value(); });
  EXPECT_GE(heard, kPieces);
  EXPECT_FALSE(sealed) << "what must be on disk first comes first";
  EXPECT_EQ(saver.last_saved(), 1);
  EXPECT_TRUE(is_saved(1));
}

TEST_F(Saver, ReadingTellsThatItGetsOn) {
  CheckpointSaver saver(folder_.path(), config(false), [] {});
  saver.save(1, tensors(1.0), state(1), [] {});
  int64_t heard = 0;
  CheckpointReader reader(newest_complete(folder_.path())->path, Verify::kHashes,
                          [&] { heard += 1; });
  reader.model();
  EXPECT_GE(heard, kPieces);
}

TEST_F(Saver, AnAsynchronousSaveHoldsWhatWasThereWhenItBegan) {
  std::promise<void> may_write;
  CheckpointSaver saver(folder_.path(), config(true), [] {});
  const CheckpointTensors of_step = tensors(1.0, 100);
  saver.save(1, of_step, state(1), [&] { may_write.get_future().wait(); });
  of_step.model.front().second.fill_(2.0);  // the next step's update
  saver.check();                            // does not wait
  EXPECT_EQ(saver.last_saved(), -1);
  EXPECT_FALSE(is_saved(1));
  may_write.set_value();
  saver.finish();
  EXPECT_EQ(saver.last_saved(), 1);
  EXPECT_EQ(saved_value(), 1.0);
}

// A pipe in the place of the file that `latest` is made of holds the save at its last instant: the
// new checkpoint is written, synced and hashed, and only its name in `latest` is missing.
TEST_F(Saver, LatestMovesLastAndNothingIsCalledSavedBefore) {
  CheckpointSaver saver(folder_.path(), config(true), [] {});
  saver.save(1, tensors(1.0, 100), state(1), [] {});
  saver.finish();
  const auto pipe = folder_ / ".latest.partial";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  log::set_level("trace");
  testing::internal::CaptureStderr();
  saver.save(2, tensors(2.0, 100), state(2), [] {});
  const auto second = folder_ / "checkpoints/step_0000000002";
  for (int i = 0; i < 3000 && !std::filesystem::exists(second / "manifest.json"); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_NO_THROW(CheckpointReader(second, Verify::kHashes, [] {}).model())
      << "whole, by its hashes";
  saver.check();
  EXPECT_EQ(read_file(folder_ / "latest"), "step_0000000001\n");
  EXPECT_EQ(saver.last_saved(), 1);
  const std::string told = testing::internal::GetCapturedStderr();
  EXPECT_THAT(told, testing::HasSubstr("step 2: the steps waited"));
  EXPECT_THAT(told, testing::Not(testing::ContainsRegex("saved|written")));
  log::set_level("info");
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_CLOEXEC);  // lets it go on
  EXPECT_THROW(saver.finish(), Error) << "a pipe cannot be synced";
  ::close(reader);
  EXPECT_EQ(saver.last_saved(), 1);
  std::filesystem::remove(pipe);
  saver.save(3, tensors(3.0, 100), state(3), [] {});
  saver.finish();
  EXPECT_EQ(read_file(folder_ / "latest"), "step_0000000003\n");
  EXPECT_EQ(saver.last_saved(), 3);
}

TEST_F(Saver, WaitingForAnAsynchronousSaveTellsThatItGetsOn) {
  const std::thread::id waiting = std::this_thread::get_id();
  int64_t heard = 0;
  CheckpointSaver saver(folder_.path(), config(true), [&] {
    heard += 1;
    EXPECT_EQ(std::this_thread::get_id(), waiting);
  });
  // Large enough that the wait sees some of it.
  saver.save(1, tensors(1.0, 32 * (8 << 20)), state(1), [] {});
  EXPECT_EQ(heard, 0) << "steps go on meanwhile, and tell of themselves";
  saver.finish();
  EXPECT_GE(heard, 1);
}

TEST_F(Saver, AnErrorOfAnAsynchronousSaveComesWithTheNextQuestion) {
  CheckpointSaver saver(folder_.path(), config(true), [] {});
  saver.save(1, tensors(1.0, 100), state(1), [] { throw Error("metrics are gone"); });
  EXPECT_THROW(saver.finish(), Error);
  EXPECT_EQ(saver.last_saved(), -1);
  EXPECT_FALSE(newest_complete(folder_.path()));
}

}  // namespace
}  // namespace cplm::test
