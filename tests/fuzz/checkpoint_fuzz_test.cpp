// Mutated checkpoints: what is read equals what was saved, or there is an Error that names the
// file; verify names every damage; the older checkpoint is offered and never silently taken. No
// crash, no hang. --trials N and --first-seed N for more than scripts/test runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cplm/base.h"
#include "cplm/checkpoint.h"
#include "fuzz/byte_mutator.h"
#include "fuzz/forked_trials.h"
#include "support/checkpoints.h"
#include "support/temp_dir.h"

namespace cplm::test {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kStep = 20, kOlderStep = 10;
constexpr const char* kFiles[] = {"model.safetensors", "optimizer.safetensors", "state.json",
                                  "manifest.json"};

// Every number in a checkpoint of step N is N (support/checkpoints.h).
bool holds(const SafetensorsFile& file, const NamedTensors& saved) {
  if (file.entries().size() != saved.size()) return false;
  for (const auto& [name, tensor] : saved) {
    if (!file.contains(name) || !file.read(name).equal(tensor)) return false;
  }
  return true;
}

// A run with two checkpoints; a trial damages a file of the newer one and mends it again.
class CheckpointFuzz : public testing::Test {
 protected:
  CheckpointFuzz() {
    save(run_.path(), kOlderStep);
    newest_ = save(run_.path(), kStep);
    for (const char* name : kFiles) originals_.push_back(read_file(newest_ / name));
  }

  struct Damage {
    size_t file = 0;
    std::string bytes, done;
    bool removed = false;
  };

  Damage damage(uint64_t seed) const {
    ByteMutator mutator(seed);
    Damage damage;
    damage.file = mutator.below(std::size(kFiles));
    const std::string& bytes = originals_[damage.file];
    switch (mutator.below(20)) {
      case 0:
        damage.removed = true;
        damage.done = "removed";
        break;
      case 1:
        damage.bytes = originals_[mutator.below(std::size(kFiles))];
        damage.done = "another file of the checkpoint under its name";
        break;
      case 2:
        damage.bytes = read_file(run_ / "checkpoints/step_0000000010" / kFiles[damage.file]);
        damage.done = "the older checkpoint's file";
        break;
      default:
        damage.bytes = mutator.mutate(bytes);
        damage.done = mutator.done();
    }
    damage.done = str(kFiles[damage.file], ": ", damage.done);
    return damage;
  }

  void put(size_t file, const std::string& bytes) const {
    fs::remove(newest_ / kFiles[file]);  // writing over it would wait for the disk
    run_.write(fs::path("checkpoints/step_0000000020") / kFiles[file], bytes);
  }

  // What a resume reads; "" when that is what was saved.
  static std::string read_all(const fs::path& folder) {
    CheckpointReader reader(folder);
    if (reader.step() != kStep) return str("step ", reader.step(), " was accepted");
    if (reader.state() != state_of(kStep)) return "another state was accepted";
    if (!holds(reader.model(), model_of(kStep))) return "other weights were accepted";
    if (!holds(reader.optimizer(), optimizer_of(kStep))) return "other moments were accepted";
    return "";
  }

  TrialResult try_to_read() const {
    try {
      const auto newest = newest_complete(run_.path());
      if (!newest) return {false, "both checkpoints were passed over"};
      if (newest->step == kOlderStep) return {false, "the older checkpoint was taken silently"};
      return {true, read_all(newest->path)};
    } catch (const Error& error) {
      const std::string message = error.what();
      const bool clear = message.find("step_0000000020") != std::string::npos &&
                         message.find('\n') == std::string::npos;
      if (!clear) return {false, str("an unclear error: ", message)};
      const bool offers = message.find("step_0000000010") != std::string::npos;
      return {false, offers ? "" : "offers nothing older: " + message};
    }
  }

  const TempDir run_;
  fs::path newest_;
  std::vector<std::string> originals_;
};

TEST_F(CheckpointFuzz, DamageIsNeverTakenForACheckpoint) {
  const auto trial = [&](uint64_t seed) {
    const Damage damage = this->damage(seed);
    const bool changed = damage.removed || damage.bytes != originals_[damage.file];
    damage.removed ? void(fs::remove(newest_ / kFiles[damage.file]))
                   : put(damage.file, damage.bytes);
    TrialResult result = try_to_read();
    // A manifest may change in what nothing depends on, such as white space.
    const bool must_be_found = changed && (damage.file < 3 || !result.accepted);
    if (result.wrong.empty() && must_be_found) {
      if (result.accepted) result.wrong = "damage was accepted";
      if (verify_checkpoint(newest_).empty()) result.wrong = "verify calls it sound";
    }
    put(damage.file, originals_[damage.file]);
    return result;
  };
  const TrialSummary summary =
      run_forked_trials({trial, [this](uint64_t seed) { return damage(seed).done; }, num_trials()});
  EXPECT_THAT(summary.failures, testing::IsEmpty());
  EXPECT_EQ(summary.accepted + summary.refused, num_trials());
  EXPECT_GT(summary.refused, num_trials() / 2);
  EXPECT_EQ(read_all(newest_), "");
}

// Weights without a manifest have no hash: values may change, but every byte read lies in the file.
TEST_F(CheckpointFuzz, ForeignWeightsAreReadWithinTheirBytes) {
  const TempDir foreign;
  const auto trial = [&](uint64_t seed) -> TrialResult {
    fs::remove(foreign / "model.safetensors");
    const fs::path file =
        foreign.write("model.safetensors", ByteMutator(seed).mutate(originals_[0]));
    try {
      CheckpointReader reader(resolve_checkpoint(foreign.path()));
      uint64_t bytes = 0;
      for (const auto& [name, entry] : reader.model().entries()) {
        bytes += static_cast<uint64_t>(reader.model().read(name).nbytes());
      }
      return {true, bytes <= fs::file_size(file) ? "" : "more was read than there is"};
    } catch (const Error& error) {
      const bool clear = std::string(error.what()).find(foreign.path()) != std::string::npos;
      return {false, clear ? "" : str("an unclear error: ", error.what())};
    }
  };
  const auto describe = [&](uint64_t seed) {
    ByteMutator mutator(seed);
    mutator.mutate(originals_[0]);
    return mutator.done();
  };
  const TrialSummary summary = run_forked_trials({trial, describe, num_trials()});
  EXPECT_THAT(summary.failures, testing::IsEmpty());
  EXPECT_GT(summary.accepted, num_trials() / 20);
  EXPECT_GT(summary.refused, num_trials() / 20);
}

}  // namespace
}  // namespace cplm::test
