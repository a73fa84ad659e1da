// What must not lose a checkpoint: kills at any instant, a full disk, folders without rights, a
// second writer, interrupted renames; and which ones retention removes.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <random>
#include <thread>

#include "checkpoint/publish.h"
#include "cplm/base.h"
#include "cplm/checkpoint.h"
#include "support/checkpoints.h"
#include "support/small_disk.h"
#include "support/temp_dir.h"

namespace cplm {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using test::names_in;
using test::save;
using test::SmallDisk;
using test::TempDir;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<int64_t> steps_of(const fs::path& run_dir) {
  std::vector<int64_t> steps;
  for (const CheckpointFound& found : list_checkpoints(run_dir)) steps.push_back(found.step);
  return steps;
}

float value_of(const fs::path& folder) {
  return CheckpointReader(folder).model().read("norm.weight").select(0, 0).item<float>();
}

// Saves and prunes until it is killed; steps repeat, so that replacing is hit too.
[[noreturn]] void save_until_killed(const fs::path& run_dir, int64_t first_step) {
  for (int64_t i = 0;; ++i) {
    save(run_dir, first_step + i / 2);
    prune_checkpoints(run_dir, {.keep = 2, .keep_every = 10});
  }
}

TEST(CheckpointFaults, KilledAtAnyInstantTheNewestIsSound) {
  const TempDir run;
  save(run.path(), 0);
  std::mt19937 random(11);
  int64_t newest_step = 0;
  for (int round = 0; round < 30; ++round) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) save_until_killed(run.path(), newest_step + 1);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 150000));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child ended by itself";

    for (const CheckpointFound& found : list_checkpoints(run.path())) {
      ASSERT_TRUE(found.complete()) << found.path << ": " << found.problem;
    }
    const auto newest = newest_complete(run.path());
    ASSERT_TRUE(newest);
    ASSERT_GE(newest->step, newest_step) << "a finished checkpoint was lost";
    newest_step = newest->step;
    ASSERT_THAT(verify_checkpoint(newest->path), IsEmpty());
    ASSERT_EQ(value_of(newest->path), static_cast<float>(newest_step));
  }
  EXPECT_GT(newest_step, 0) << "no child lived long enough to save";
  save(run.path(), newest_step + 1);
  prune_checkpoints(run.path(), {.keep = 1});
  EXPECT_EQ(names_in(run.path()).size(), 1) << "leftovers remain";
}

TEST(CheckpointFaults, RetentionKeepsTheNewestAndTheMilestones) {
  const TempDir run;
  for (int64_t step : {100, 200, 300, 400, 500, 600, 700}) save(run.path(), step);
  prune_checkpoints(run.path(), {.keep = 2, .keep_every = 300});
  EXPECT_THAT(steps_of(run.path()), ElementsAre(700, 600, 300));
  prune_checkpoints(run.path(), {.keep = 0, .keep_every = 0});
  EXPECT_THAT(steps_of(run.path()), ElementsAre(700));
  EXPECT_THAT(error_of([&] { prune_checkpoints(run.path(), {.keep = -1}); }),
              HasSubstr("negative"));
  prune_checkpoints(run / "nothing_here", {});
  EXPECT_FALSE(fs::exists(run / "nothing_here"));
}

TEST(CheckpointFaults, RetentionCountsOnlyCompleteOnesAndLeavesOthers) {
  const TempDir run;
  for (int64_t step : {1, 2, 3, 4}) save(run.path(), step);
  fs::remove(run / "checkpoints/step_0000000004/manifest.json");
  run.write("checkpoints/mine/file", "x");
  run.write("checkpoints/.step_0000000009.partial/model.safetensors", "half");
  run.write("checkpoints/.step_0000000002.removed/state.json", "half");
  prune_checkpoints(run.path(), {.keep = 2});
  EXPECT_THAT(names_in(run.path()),
              ElementsAre("mine", "step_0000000002", "step_0000000003", "step_0000000004"));
}

TEST(CheckpointFaults, ALiveWriterIsLeftAlone) {
  const TempDir run;
  save(run.path(), 1);
  run.write("checkpoints/.step_0000000002.partial/model.safetensors", "in flight");
  const FileLock other(run / "checkpoints/.lock");
  EXPECT_THAT(error_of([&] { prune_checkpoints(run.path(), {}); }), HasSubstr("holds it"));
  EXPECT_THAT(error_of([&] { save(run.path(), 2); }),
              AllOf(HasSubstr("the checkpoint of step 2 was not saved"), HasSubstr("holds it"),
                    HasSubstr("the newest is ")));
  EXPECT_TRUE(fs::exists(run / "checkpoints/.step_0000000002.partial/model.safetensors"));
}

TEST(CheckpointFaults, ReplacingWorksWithoutExchange) {
  const TempDir run;
  const fs::path checkpoints = run / "checkpoints";
  save(run.path(), 5);
  const TempDir other;
  const fs::path replacement =
      save_checkpoint(other.path(), 5, test::model_of(55), {}, test::state_of(5));
  fs::copy(replacement, checkpoints / ".step_0000000005.partial");
  checkpoint::publish_step(checkpoints, 5, checkpoint::Exchange::kUnavailable);
  EXPECT_THAT(names_in(run.path()), ElementsAre(".step_0000000005.replaced", "step_0000000005"));
  EXPECT_THAT(steps_of(run.path()), ElementsAre(5));
  EXPECT_EQ(value_of(checkpoints / "step_0000000005"), 55);
  EXPECT_EQ(value_of(checkpoints / ".step_0000000005.replaced"), 5);
  checkpoint::recover_interrupted(checkpoints);
  EXPECT_THAT(names_in(run.path()), ElementsAre("step_0000000005"));
}

// The instant between the two renames of a file system that cannot exchange names.
TEST(CheckpointFaults, AReplacedStepIsFoundAndPutBack) {
  const TempDir run;
  const fs::path checkpoints = run / "checkpoints";
  save(run.path(), 4);
  fs::rename(save(run.path(), 5), checkpoints / ".step_0000000005.replaced");
  fs::create_directory(checkpoints / ".step_0000000005.partial");
  const auto newest = newest_complete(run.path());
  ASSERT_TRUE(newest);
  EXPECT_EQ(newest->step, 5);
  EXPECT_EQ(value_of(resolve_checkpoint(run.path())), 5);
  EXPECT_THAT(verify_checkpoint(run.path()), IsEmpty());
  prune_checkpoints(run.path(), {.keep = 3});
  EXPECT_THAT(names_in(run.path()), ElementsAre("step_0000000004", "step_0000000005"));
}

TEST(CheckpointFaults, ResumingAtAnOlderStepSetsTheNewerAside) {
  const TempDir run;
  for (int64_t step : {10, 20, 30}) save(run.path(), step);
  EXPECT_EQ(set_aside_newer_checkpoints(run.path(), 10).size(), 2);
  EXPECT_THAT(steps_of(run.path()), ElementsAre(10));
  EXPECT_EQ(read_file(run / "latest"), "step_0000000010\n");
  save(run.path(), 20);
  EXPECT_THAT(set_aside_newer_checkpoints(run.path(), 10),
              ElementsAre(run / "checkpoints.stale/step_0000000020.2"));
  EXPECT_TRUE(fs::exists(run / "checkpoints.stale/step_0000000020/manifest.json"));
  EXPECT_THAT(set_aside_newer_checkpoints(run.path(), 10), IsEmpty());
  EXPECT_EQ(set_aside_newer_checkpoints(run.path(), 0).size(), 1);
  EXPECT_FALSE(fs::exists(run / "latest"));
}

TEST(CheckpointFaults, AFileInPlaceOfAFolderIsAnError) {
  const TempDir run;
  run.write("checkpoints", "a file");
  EXPECT_THAT(error_of([&] { save(run.path(), 1); }),
              AllOf(HasSubstr("the checkpoint of step 1 was not saved: cannot make folder"),
                    HasSubstr("there was no checkpoint before")));
  EXPECT_EQ(read_file(run / "checkpoints"), "a file");
}

// Root may write everywhere, so as root the test acts as the user "nobody".
class WithoutRoot {
 public:
  WithoutRoot() {
    if (was_root_ && ::seteuid(65534) != 0) throw Error("cannot act as nobody");
  }
  ~WithoutRoot() {
    if (was_root_ && ::seteuid(0) != 0) std::abort();
  }

 private:
  bool was_root_ = ::geteuid() == 0;
};

TEST(CheckpointFaults, AFolderWithoutRightsIsAnError) {
  const WithoutRoot without_root;
  const TempDir run;
  save(run.path(), 1);
  fs::permissions(run / "checkpoints", fs::perms::owner_read | fs::perms::owner_exec);
  const std::string error = error_of([&] { save(run.path(), 2); });
  const std::string first_error = error_of([&] { save(run / "checkpoints/run", 2); });
  fs::permissions(run / "checkpoints", fs::perms::owner_all);
  EXPECT_THAT(error, AllOf(HasSubstr("Permission denied"), HasSubstr("step_0000000001")));
  EXPECT_THAT(first_error, HasSubstr("cannot make folder"));
  EXPECT_THAT(names_in(run.path()), ElementsAre("step_0000000001"));
}

// It may be sound, so it is neither passed over nor replaced.
TEST(CheckpointFaults, WhatCannotBeReadIsNotTakenForDamaged) {
  const WithoutRoot without_root;
  const TempDir run;
  save(run.path(), 1);
  const fs::path folder = save(run.path(), 2);
  const auto out_of_reach =
      AllOf(HasSubstr("step_0000000002 may be sound but is out of reach: cannot read "),
            HasSubstr("Permission denied; give access to it"), HasSubstr("--resume "),
            HasSubstr("step_0000000001"), testing::Not(HasSubstr("\n")));
  for (const fs::path& path : {folder, folder / "manifest.json"}) {
    const fs::perms before = fs::status(path).permissions();
    fs::permissions(path, fs::perms::none);
    const auto found = list_checkpoints(run.path());
    const std::string newest_error = error_of([&] { newest_complete(run.path()); });
    const std::string resolve_error = error_of([&] { resolve_checkpoint(folder); });
    const std::string reader_error = error_of([&] { CheckpointReader reader(folder); });
    const auto problems = verify_checkpoint(run.path());
    prune_checkpoints(run.path(), {.keep = 1});
    fs::permissions(path, before);
    EXPECT_EQ(found.at(0).state, CheckpointState::kUnreadable) << path;
    EXPECT_THAT(newest_error, out_of_reach);
    EXPECT_THAT(resolve_error, out_of_reach);
    EXPECT_THAT(reader_error, HasSubstr("Permission denied"));
    EXPECT_THAT(problems, ElementsAre(HasSubstr("Permission denied")));
    EXPECT_THAT(verify_checkpoint(folder), IsEmpty());
  }
  EXPECT_THAT(steps_of(run.path()), ElementsAre(2, 1));
  // Older than the newest complete one, it is in nobody's way.
  fs::permissions(run / "checkpoints/step_0000000001", fs::perms::none);
  EXPECT_EQ(newest_complete(run.path())->step, 2);
  save(run.path(), 3);
  prune_checkpoints(run.path(), {.keep = 1});
  fs::permissions(run / "checkpoints/step_0000000001", fs::perms::owner_all);
  EXPECT_THAT(names_in(run.path()), ElementsAre("step_0000000001", "step_0000000003"));
}

TEST(CheckpointFaults, AnUnreadableRunIsNoEmptyOne) {
  const WithoutRoot without_root;
  const TempDir run;
  save(run / "run", 1);
  fs::permissions(run / "run", fs::perms::none);
  const std::string resolve_error = error_of([&] { resolve_checkpoint(run / "run"); });
  const std::string prune_error = error_of([&] { prune_checkpoints(run / "run", {}); });
  const std::string newest_error = error_of([&] { newest_complete(run / "run"); });
  const std::string save_error = error_of([&] { save(run / "run", 2); });
  fs::permissions(run / "run", fs::perms::owner_all);
  for (const std::string& error : {resolve_error, prune_error, newest_error}) {
    EXPECT_THAT(error, AllOf(HasSubstr("cannot read "), HasSubstr("Permission denied")));
  }
  EXPECT_THAT(save_error, AllOf(HasSubstr("the checkpoint of step 2 was not saved"),
                                HasSubstr("whether the previous checkpoints are intact is not")));
}

// Lowers the largest file that this process may write.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit lowered{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &lowered);
  }
  ~FileSizeLimit() { ::setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

TEST(CheckpointFaults, AWriteThatFailsLeavesThePreviousOne) {
  const TempDir run;
  save(run.path(), 1);
  for (int64_t step : {1, 2}) {
    const NamedTensors large = test::model_of(step, 4096);
    std::string error;
    {
      const FileSizeLimit limit(64 << 10);
      error = error_of([&] { save_checkpoint(run.path(), step, large, {}, "{}"); });
    }
    EXPECT_THAT(error, AllOf(HasSubstr(str("the checkpoint of step ", step, " was not saved")),
                             HasSubstr("model.safetensors"), HasSubstr("File too large"),
                             HasSubstr(" bytes, "),
                             HasSubstr("the previous checkpoints are intact, "
                                       "the newest is ")));
    EXPECT_THAT(names_in(run.path()), ElementsAre("step_0000000001"));
    EXPECT_THAT(verify_checkpoint(run.path()), IsEmpty());
    EXPECT_EQ(value_of(resolve_checkpoint(run.path())), 1);
  }
}

TEST(CheckpointFaults, AFullDiskIsSaidBeforeWriting) {
  const SmallDisk disk;
  if (!disk.mounted()) GTEST_SKIP() << "this user may not mount a tmpfs";
  save(disk.path(), 1);
  const NamedTensors large = test::model_of(2, 32768);  // 2 MiB
  EXPECT_THAT(
      error_of([&] { save_checkpoint(disk.path(), 2, large, {}, "{}"); }),
      AllOf(HasSubstr("too little room"), HasSubstr("are free in"), HasSubstr("the newest is ")));
  EXPECT_THAT(names_in(disk.path()), ElementsAre("step_0000000001"));
  EXPECT_THAT(verify_checkpoint(disk.path()), IsEmpty());
  // What a dead writer left is cleared before its room is counted.
  fs::create_directory(disk.path() / "checkpoints/.step_0000000002.partial");
  const fs::path filler = disk.path() / "checkpoints/.step_0000000002.partial/model.safetensors";
  write_file_atomic(filler, std::string(900 << 10, 'x'));
  save(disk.path(), 3);
  EXPECT_THAT(names_in(disk.path()), ElementsAre("step_0000000001", "step_0000000003"));
}

}  // namespace
}  // namespace cplm
