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

int64_t num_errors(const std::string& text) {
  int64_t count = 0;
  for (size_t at = 0; (at = text.find("error: ", at)) != std::string::npos; ++at) ++count;
  return count;
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

}  // namespace
}  // namespace cplm::test
