// What all ranks of a run find wrong before they have met.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/ranks.h"
#include "support/training_folder.h"

namespace cplm::test {
namespace {

using testing::HasSubstr;

std::vector<ProcessResult> train(const TrainingFolder& folder, int size, const Texts& overrides,
                                 const Texts& arguments = {},
                                 const std::function<void(int, ProcessOptions&)>& adjust = {}) {
  ProcessOptions options;
  options.arguments = {"train", "config.yaml"};
  for (const std::string& text : overrides) {
    options.arguments.insert(options.arguments.end(), {"--set", text});
  }
  options.arguments.insert(options.arguments.end(), arguments.begin(), arguments.end());
  options.working_dir = folder.path();
  return run_ranks(CPLM_BINARY, size, options, adjust);
}

TEST(RankErrors, MoreRanksThanSequencesAreRefused) {
  const TrainingFolder folder;
  const auto results = train(folder, 3, {"train.batch_tokens=32"});
  for (const ProcessResult& rank : results) EXPECT_EQ(rank.exit_code, 2) << rank.err;
  EXPECT_THAT(results[0].err, HasSubstr("2 sequences a batch are fewer than 3 ranks"));
}

// What all processes of a machine read alike is wrong for all: one line, not one a rank.
TEST(RankErrors, AnErrorOfTheConfigIsToldOnceAMachine) {
  const TrainingFolder folder;
  const std::pair<Texts, Texts> wrongs[] = {
      {{"train.steps=ten"}, {}}, {{"validation.tasks=[nedle]"}, {}}, {{}, {"--stop-after", "0"}}};
  for (const auto& [overrides, arguments] : wrongs) {
    const auto results = train(folder, 2, overrides, arguments);
    for (const ProcessResult& rank : results) EXPECT_EQ(rank.exit_code, 2) << rank.err;
    EXPECT_THAT(error_line(results[0]), testing::StartsWith("error: "));
    EXPECT_EQ(results[1].err, "");
  }
  // On request the others tell it too, and on another machine the first does.
  const auto asked = train(folder, 2, {"train.steps=ten"}, {"--log-level", "debug"});
  EXPECT_THAT(asked[1].err, HasSubstr("as the first process of this machine: "));
  const auto apart = train(folder, 2, {"train.steps=ten"}, {}, [](int, ProcessOptions& options) {
    options.environment["LOCAL_RANK"] = "0";
  });
  for (const ProcessResult& rank : apart) EXPECT_THAT(rank.err, HasSubstr("train.steps"));
}

}  // namespace
}  // namespace cplm::test
