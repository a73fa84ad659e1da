// What the program writes to the console: results that get lost, warnings that quote files, and
// readers that end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "cplm/base.h"
#include "support/checks.h"
#include "support/training_folder.h"

namespace cplm::test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

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

}  // namespace
}  // namespace cplm::test
