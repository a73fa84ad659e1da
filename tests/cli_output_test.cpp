// What the program writes to the console: results that get lost, warnings that quote files, and
// readers that end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "cplm/base.h"
#include "support/checks.h"
#include "support/small_disk.h"
#include "support/training_folder.h"

namespace cplm::test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

// A shell's line in which $CPLM is the program.
ProcessResult shell(const TrainingFolder& folder, const std::string& line) {
  return run_process("bash", {.arguments = {"-c", line},
                              .working_dir = folder.path(),
                              .environment = {{"CPLM", CPLM_BINARY}}});
}

int64_t num_errors(const std::string& text) {
  int64_t count = 0;
  for (size_t at = 0; (at = text.find("error: ", at)) != std::string::npos; ++at) ++count;
  return count;
}

TEST(CliOutput, AResultThatCannotBeWrittenIsAnError) {
  const TrainingFolder folder;
  ASSERT_EQ(folder.train("run", {}, {"--stop-after", "1"}).exit_code, 75);
  for (const char* arguments :
       {"--version", "--help", "train --help", "check config.yaml", "check config.yaml --json",
        "data inspect data/train", "data inspect data/train --json", "data verify data/train",
        "data make repeat --output made --samples 2 --validation-samples 1",
        "verify-checkpoint run", "eval memory config.yaml",
        "bench ops --size 64x8 --length 8 --tokens 8 --repeats 1 --json"}) {
    const ProcessResult result = shell(folder, str("\"$CPLM\" ", arguments, " >/dev/full"));
    EXPECT_EQ(result.exit_code, 1) << arguments;
    EXPECT_THAT(result.err, AllOf(HasSubstr("error: cannot write the result to standard output: "),
                                  HasSubstr("disk is full"), EndsWith("\n")))
        << arguments;
    EXPECT_EQ(num_errors(result.err), 1) << arguments;
  }
}

TEST(CliOutput, AWarningStaysOneShortLineWhateverAFileHolds) {
  const TrainingFolder folder;
  ASSERT_EQ(folder.train("run", {}, {"--stop-after", "2"}).exit_code, 75);
  const auto go_on = [&](const std::string& latest) {
    folder.files().write("run/latest", latest);
    return folder.train("run", {}, {"--stop-after", "1"}).err;
  };
  EXPECT_THAT(go_on("a\nb\x1b[31mred\n"),
              AllOf(HasSubstr("run/latest names a\\nb\\x1b[31mred; the newest complete"),
                    Not(HasSubstr("\x1b"))));
  const std::string text = go_on(std::string(5'000'000, 'x'));
  EXPECT_THAT(text, HasSubstr("run/latest names xxxxxxx"));
  EXPECT_LT(text.size(), 10'000U);
}

TEST(CliOutput, AFullDiskIsOneErrorWithTheFilesOwnName) {
  const SmallDisk disk;
  if (!disk.mounted()) GTEST_SKIP() << "may not mount a file system";
  const TrainingFolder folder;
  const std::string run = (disk.path() / "run").string();
  disk.fill_but(4096);  // for the process id in the lock
  const ProcessResult result = folder.train(run);
  expect_error(result, ExitCode::kFailed,
               AllOf(HasSubstr("cannot write " + run + "/config.yaml: the disk is full")));
  EXPECT_EQ(num_errors(result.err), 1) << result.err;
  EXPECT_THAT(result.err, Not(HasSubstr("unfinished")));
}

TEST(CliOutput, AReaderThatEndsDoesNotTakeATrainingRunWithIt) {
  const TrainingFolder folder;
  const ProcessResult result = shell(
      folder,
      "(\"$CPLM\" train config.yaml --set run.dir=run 2>&1; echo $? >code) | head -1 >/dev/null");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(read_file(folder / "code"), "0\n");
  EXPECT_TRUE(fs::exists(folder.checkpoint("run", TrainingFolder::kSteps)));
  const std::string log = read_file(folder / "run/log.txt");
  EXPECT_THAT(log, AllOf(HasSubstr(" step 40/40 "), HasSubstr("summary: "), EndsWith("\n")));
}

}  // namespace
}  // namespace cplm::test
