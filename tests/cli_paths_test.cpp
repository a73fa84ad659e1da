// Paths on the command line: `~`, and names with characters that a terminal would obey.
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
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

TEST(CliPaths, ATildeIsTheHomeFolder) {
  const TrainingFolder folder;
  ProcessOptions home;
  home.environment["HOME"] = folder.path().string();
  ASSERT_EQ(folder.train("run", {}, {"--stop-after", "3"}).exit_code, 75);
  EXPECT_EQ(folder.cplm({"verify-checkpoint", "~/run"}, home).out, "~/run: ok\n");
  // Both are found, and have no validation yet.
  fs::copy(folder / "run", folder / "other", fs::copy_options::recursive);
  expect_error(folder.cplm({"compare", "~/run", "~/other", "--out", "~/table"}, home),
               ExitCode::kBadConfig,
               AllOf(HasSubstr((folder / "run").string()), HasSubstr("holds no validation yet")));
}

TEST(CliPaths, ATildeBeforeAConfigToo) {
  const TrainingFolder folder;
  ProcessOptions home;
  home.environment["HOME"] = folder.path().string();
  EXPECT_EQ(folder.cplm({"check", "~/config.yaml"}, home).exit_code,
            folder.cplm({"check", "config.yaml"}).exit_code);
  expect_error(folder.cplm({"check", "~/absent.yaml"}, home), ExitCode::kBadConfig,
               HasSubstr("cannot read " + (folder / "absent.yaml").string()));
}

TEST(CliPaths, APathThatIsTooLongIsAClearError) {
  const TrainingFolder folder;
  const std::string name(300, 'n');
  const auto message = AllOf(HasSubstr(name), HasSubstr(": File name too long; shorten it"),
                             Not(HasSubstr("filesystem error")), Not(HasSubstr("status")));
  expect_error(folder.train(name), ExitCode::kBadConfig, message);
  for (const Texts& arguments :
       {Texts{"check", "config.yaml", "--set", "run.dir=" + name}, Texts{"check", name},
        Texts{"compare", name, name}, Texts{"generate", name}, Texts{"eval", "memory", name},
        Texts{"data", "make", "repeat", "--output", name}, Texts{"export", name, "x"},
        Texts{"import", name, "x"}}) {
    SCOPED_TRACE(arguments.front());
    expect_error(folder.cplm(arguments), ExitCode::kBadConfig, message);
  }
}

TEST(CliPaths, AnErrorStaysOneLineWhateverThePath) {
  const ProcessResult result = TrainingFolder().cplm({"compare", "two\nlines\x1b[31m\t", "b"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, StartsWith("error: two\\nlines\\x1b[31m\\t: no such folder"));
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1);
}

}  // namespace
}  // namespace cplm::test
