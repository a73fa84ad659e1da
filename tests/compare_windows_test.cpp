// Which validations `cplm compare` lets meet: those over the same windows. Sets that changed on the
// way, sets that differ between runs, and files that would tell but are gone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runs/compare.h"
#include "support/fake_run.h"
#include "support/temp_dir.h"

namespace cplm {
namespace {

using test::FakeRun;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

using Texts = std::vector<std::string>;

// Validated at steps 20, 40, 60 and 80 with a file of window losses each.
FakeRun run_on(const std::string& id, const std::string& head = "vanilla") {
  return {.name = head,
          .head = head,
          .losses = {{20, 6.0}, {40, 5.0}, {60, 4.5}, {80, 4.0}},
          .validation_id = id,
          .window_loss_sums = {32, 32},
          .earlier_validation_ids = {id, id, id},
          .validation_data = id + "/*.h5"};
}

class CompareWindowsTest : public ::testing::Test {
 protected:
  test::TempDir dir_;

  void write(const std::string& name, const FakeRun& run) const { run.write_to(dir_ / name); }
  void remove_files(const std::string& name) const {
    std::filesystem::remove_all(dir_ / name / "validation");
  }
  Comparison compare_all(const Texts& names) const {
    std::vector<std::filesystem::path> dirs;
    for (const std::string& name : names) dirs.push_back(dir_ / name);
    return compare(load_compared_runs(dirs));
  }
  std::string refusal(const Texts& names) const {
    try {
      compare_all(names);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadConfig);
      return error.what();
    }
    return "no error";
  }
  static Texts notes_about_windows(const Comparison& comparison) {
    Texts notes;
    for (const std::string& note : comparison.notes) {
      if (note.find("validation set") != note.npos || note.find("windows") != note.npos) {
        notes.push_back(note);
      }
    }
    return notes;
  }
};

TEST_F(CompareWindowsTest, ValidationsBeforeTheSetChangedAreLeftOut) {
  FakeRun changed = run_on("b", "cplm");
  changed.earlier_validation_ids = {"a", "a", "b"};
  changed.losses = {{20, 3.0}, {40, 3.0}, {60, 4.5}, {80, 4.0}};
  write("a", run_on("b"));
  write("b", changed);
  const Comparison comparison = compare_all({"a", "b"});
  ASSERT_EQ(comparison.runs[1].validation.size(), 2u);
  EXPECT_EQ(comparison.runs[1].validation.front().step, 60);
  EXPECT_EQ(comparison.arms[1].points.size(), 2u);
  // The target of 4.0 is reached at step 80; 3.0 at step 20 was of other windows.
  EXPECT_DOUBLE_EQ(comparison.arms[1].at_end->mean->tokens, 12800);
  EXPECT_THAT(comparison.notes,
              Contains("cplm: 2 validations up to step 40 left out: its validation set is another "
                       "one since"));
}

TEST_F(CompareWindowsTest, TheBaselinesTargetIsOfTheLastSetToo) {
  FakeRun changed = run_on("b");
  changed.earlier_validation_ids = {"a", "a", "a"};
  write("a", changed);
  write("b", run_on("b", "cplm"));
  const Comparison comparison = compare_all({"a", "b"});
  EXPECT_EQ(comparison.runs[0].validation.size(), 1u);
  EXPECT_DOUBLE_EQ(comparison.at_end->loss, 4.0);
}

// Between two sets a validation without a file may belong to either.
TEST_F(CompareWindowsTest, AValidationWithoutAFileBetweenTwoSetsIsLeftOut) {
  FakeRun changed = run_on("b", "cplm");
  changed.earlier_validation_ids = {"a", "", "b"};
  write("a", run_on("b"));
  write("b", changed);
  EXPECT_EQ(compare_all({"a", "b"}).runs[1].validation.front().step, 60);
}

TEST_F(CompareWindowsTest, AnotherNumberOfCountedTokensIsAnotherSet) {
  FakeRun run = run_on("a", "cplm");
  write("a", run_on("a"));
  write("b", run);
  MetricsWriter(dir_ / "b", 80).write(ValidationRecord{100, 16000, 1, 1, 65, std::nullopt});
  EXPECT_THAT(refusal({"a", "b"}), HasSubstr("on different windows (64 and 65 counted tokens)"));
  run.counted_tokens = 48;  // and then as many as the baseline's
  write("c", run);
  MetricsWriter(dir_ / "c", 80).write(ValidationRecord{100, 16000, 1, 1, 64, std::nullopt});
  const Comparison comparison = compare_all({"a", "c"});
  EXPECT_EQ(comparison.runs[1].validation.size(), 1u);
  EXPECT_THAT(comparison.notes, Contains(HasSubstr("4 validations up to step 80 left out")));
}

TEST_F(CompareWindowsTest, EveryPairOfRunsIsHeldAgainstEachOther) {
  write("none", run_on("a"));
  remove_files("none");
  write("a", run_on("a"));
  write("b", run_on("b"));
  EXPECT_THAT(refusal({"none", "a", "b"}),
              AllOf(HasSubstr("/a and "), HasSubstr("/b were validated on different windows")));
  EXPECT_THAT(refusal({"a", "b"}), HasSubstr("data.validation"));
}

TEST_F(CompareWindowsTest, WithoutFilesTheConfigsDecide) {
  write("a", run_on("a"));
  write("same", run_on("a", "cplm"));
  write("other", run_on("b", "cplm"));
  remove_files("same");
  remove_files("other");
  const Texts both_ways[] = {{"a", "other"}, {"other", "a"}, {"a", "same", "other"}};
  for (const Texts& names : both_ways) {
    EXPECT_THAT(refusal(names),
                AllOf(HasSubstr("may have been validated on different windows"),
                      HasSubstr("data.validation is [\"b/*.h5\"] and [\"a/*.h5\"]"),
                      HasSubstr("other/validation/step_N.h5"), HasSubstr("put these files back")));
  }
  const Comparison comparison = compare_all({"a", "same"});
  EXPECT_THAT(comparison.notes,
              Contains("cplm: 4 of its 4 validations have no validation/step_N.h5: that they are "
                       "of the same windows is known by their counted tokens alone"));
  // Neither run has a file.
  remove_files("a");
  EXPECT_EQ(refusal({"a", "same"}), "no error");
  EXPECT_THAT(refusal({"a", "other"}), HasSubstr("may have been validated on different windows"));
}

// The files before it tell of the set before the change, the config of the set after it.
TEST_F(CompareWindowsTest, ALastValidationWithoutAFileIsHeldAgainstBoth) {
  write("a", run_on("a"));
  write("b", run_on("b"));
  FakeRun changed = run_on("b", "cplm");
  changed.earlier_validation_ids = {"a", "a", "a"};
  write("changed", changed);
  std::filesystem::remove(window_losses_path(dir_ / "changed", 80));
  EXPECT_THAT(refusal({"a", "changed"}), HasSubstr("may have been validated on different"));
  EXPECT_THAT(refusal({"changed", "b"}), HasSubstr("were validated on different windows"));
}

TEST_F(CompareWindowsTest, RunsOfOneSetHaveNoNotesOnIt) {
  write("a", run_on("a"));
  FakeRun other = run_on("a", "cplm");
  other.validation_data = "the/same/windows/*.h5";  // under another name
  write("b", other);
  const Comparison comparison = compare_all({"a", "b"});
  EXPECT_THAT(notes_about_windows(comparison), Each(Not(HasSubstr("left out"))));
  EXPECT_EQ(comparison.runs[1].validation.size(), 4u);
  EXPECT_TRUE(comparison.arms[1].difference);
}

TEST_F(CompareWindowsTest, ADamagedFileOfAnEarlierValidationIsNamed) {
  write("a", run_on("a"));
  write("b", run_on("a", "cplm"));
  std::filesystem::resize_file(window_losses_path(dir_ / "b", 40), 100);
  try {
    compare_all({"a", "b"});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadData);
    EXPECT_THAT(error.what(), HasSubstr("step_40.h5"));
  }
}

}  // namespace
}  // namespace cplm
