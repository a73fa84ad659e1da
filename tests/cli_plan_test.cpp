// cplm check --ranks N --gpu NAME, as its users meet it. The figures: train_plan_test.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cplm/base.h"
#include "support/training_folder.h"

namespace cplm::test {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

ProcessResult check(const std::string& config, const Texts& more) {
  ProcessOptions options;
  options.arguments = {"check", str(CPLM_SOURCE_DIR, "/configs/", config)};
  options.arguments.insert(options.arguments.end(), more.begin(), more.end());
  return run_process(CPLM_BINARY, options);
}

json report_of(const std::string& config, Texts more) {
  more.push_back("--json");
  const ProcessResult result = check(config, more);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return json::parse(result.out);
}

TEST(CliPlan, ShardingAndCheckpointingTogetherFit1700MOnGpusOf40Gigabytes) {
  const Texts gpus = {"--ranks", "8", "--gpu", "a100-40gb"};
  for (const char* backbone : {"full", "sliding", "hybrid"}) {
    const std::string config = str("1.7b-", backbone, "-cplm.yaml");
    EXPECT_EQ(report_of(config, gpus)["cluster"]["memory"]["fits"], false) << config;
    Texts saving = gpus;
    for (const char* setting :
         {"optimizer.shard=true", "train.activation_checkpointing=full", "checkpoint.async=true"}) {
      saving.insert(saving.end(), {"--set", setting});
    }
    const json cluster = report_of(config, saving)["cluster"];
    EXPECT_EQ(cluster["memory"]["fits"], true) << config;
    EXPECT_GT(cluster["recomputed_flops_per_token"], 0);
    EXPECT_GT(cluster["traffic"]["weight_bytes_sent_a_step"], 0);
  }
}

TEST(CliPlan, TheReportHoldsMemoryStepScalingAndAssumptions) {
  const json report = report_of("135m-full-vanilla.yaml", {"--ranks", "16"});
  const json& cluster = report["cluster"];
  EXPECT_EQ(cluster["gpu"], "h100");
  EXPECT_EQ(cluster["modelled"], true);
  EXPECT_EQ(report["memory"], cluster["memory"]);
  EXPECT_EQ(cluster["step"]["gpus"], 16);
  std::vector<int64_t> counts;
  for (const json& row : cluster["scaling"]) counts.push_back(row["gpus"]);
  EXPECT_EQ(counts, (std::vector<int64_t>{1, 8, 16, 64, 256, 1024}));
  EXPECT_GE(cluster["assumptions"].size(), 5U);
  EXPECT_FALSE(report_of("135m-full-vanilla.yaml", {}).contains("cluster"));
}

TEST(CliPlan, TheTextForPeopleSaysThatItIsModelled) {
  const ProcessResult result = check("debug.yaml", {"--ranks", "4096", "--gpu", "l4"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("4096 x l4 (modelled, not measured)"), HasSubstr("fits"),
                    HasSubstr("Assumptions"), HasSubstr("Memory of one rank (modelled)"),
                    HasSubstr("sequences a batch are fewer than 4096 ranks")));
  EXPECT_THAT(check("debug.yaml", {}).out, Not(HasSubstr("Assumptions")));
}

TEST(CliPlan, WrongArgumentsAreRefused) {
  for (const Texts& arguments :
       {Texts{"--ranks", "0"}, Texts{"--ranks", "many"}, Texts{"--gpu", "h1000"},
        Texts{"--gpu", "h100", "--set", "train.precision=float64", "--set", "train.device=cpu"}}) {
    const ProcessResult result = check("debug.yaml", arguments);
    EXPECT_EQ(result.exit_code, static_cast<int>(ExitCode::kBadConfig)) << join(arguments, " ");
    EXPECT_THAT(error_line(result), Not(HasSubstr("terminate")));
  }
}

}  // namespace
}  // namespace cplm::test
