// cplm check --ranks N --gpu NAME, as its users meet it. The figures: train_plan_test.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
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

Texts with_settings(Texts arguments, const Texts& settings) {
  for (const std::string& setting : settings) {
    arguments.insert(arguments.end(), {"--set", setting});
  }
  return arguments;
}

TEST(CliPlan, ShardingAndCheckpointingTogetherFit1700MOnGpusOf40Gigabytes) {
  const Texts gpus = {"--ranks", "8", "--gpu", "a100-40gb"};
  const Texts saving = with_settings(
      gpus,
      {"optimizer.shard=true", "train.activation_checkpointing=full", "checkpoint.async=true"});
  for (const char* backbone : {"full", "sliding", "hybrid"}) {
    const std::string config = str("1.7b-", backbone, "-cplm.yaml");
    EXPECT_EQ(report_of(config, gpus)["cluster"]["memory"]["fits"], false) << config;
    const json cluster = report_of(config, saving)["cluster"];
    EXPECT_EQ(cluster["memory"]["fits"], true) << config;
    EXPECT_LT(cluster["memory"]["total_bytes"], 40e9) << config;
    EXPECT_GT(cluster["recomputed_flops_per_token"], 0);
    EXPECT_GT(cluster["traffic"]["weight_bytes_sent_a_step"], 0);
  }
}

// What people read: 40 GB of the product's name are 37.3 GiB.
TEST(CliPlan, MemoryIsToldInGibibytesOfTheGpus) {
  const auto told = [](const Texts& settings) {
    const Texts gpus = {"--ranks", "8", "--gpu", "a100-40gb"};
    const ProcessResult result = check("1.7b-full-cplm.yaml", with_settings(gpus, settings));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    double total = 0, capacity = 0;
    char fits[16] = "";
    const size_t row = result.out.find("memory of a GPU");
    EXPECT_NE(row, std::string::npos) << result.out;
    EXPECT_EQ(std::sscanf(result.out.c_str() + std::min(row, result.out.size()),
                          "memory of a GPU %lf of %lf GiB: %15[A-Za-z ]", &total, &capacity, fits),
              3);
    EXPECT_EQ(capacity, 37.3);
    return std::pair{total, std::string(fits)};
  };
  const auto [whole, whole_fits] = told({});
  EXPECT_GT(whole, 37.3);
  EXPECT_EQ(whole_fits, "DOES NOT FIT");
  const auto [saving, saving_fits] =
      told({"optimizer.shard=true", "train.activation_checkpointing=full"});
  EXPECT_LT(saving, 37.3);
  EXPECT_EQ(saving_fits, "fits");
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
  ASSERT_EQ(result.exit_code, 2) << result.err;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("4096 x l4 (modelled, not measured)"), HasSubstr("fits"),
                    HasSubstr("Assumptions"), HasSubstr("Memory of one rank (modelled)"),
                    HasSubstr("sequences a batch are fewer than 4096 ranks")));
  EXPECT_THAT(check("debug.yaml", {}).out, Not(HasSubstr("Assumptions")));
}

TEST(CliPlan, WithoutAGpuItIsAnH100AndHelpSaysSo) {
  EXPECT_EQ(report_of("debug.yaml", {"--ranks", "2"})["cluster"]["gpu"], "h100");
  ProcessOptions help;
  help.arguments = {"check", "--help"};
  const std::string text = run_process(CPLM_BINARY, help).out;
  EXPECT_THAT(text, testing::ContainsRegex("--ranks INT[^-]*h100[ \n]+where[ \n]+--gpu"));
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
