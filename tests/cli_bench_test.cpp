// cplm bench: what programs read of it. No times are asked for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cplm/base.h"
#include "cplm/data.h"
#include "support/shards.h"
#include "support/training_folder.h"

namespace cplm::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

TEST(CliBench, LoaderMeasuresMadeUpShardsAndLeavesNothing) {
  const TrainingFolder folder;
  const std::filesystem::path scratch = folder / "scratch";
  std::filesystem::create_directory(scratch);
  ProcessOptions options;
  options.environment["TMPDIR"] = scratch.string();
  const ProcessResult result = folder.cplm(
      {"bench", "loader", "--million-tokens", "1", "--length", "128", "--json"}, options);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json report = json::parse(result.out);
  EXPECT_EQ(report["sequence_length"], 128);
  for (const char* kind : {"uncompressed", "gzip"}) {
    EXPECT_GT(report[kind]["tokens_per_s"].get<double>(), 0) << kind;
    EXPECT_EQ(report[kind]["shards"], 4) << kind;
  }
  EXPECT_NEAR(report["uncompressed"]["stored_bytes_per_token"].get<double>(), 2, 0.2);
  EXPECT_LT(report["gzip"]["stored_bytes_per_token"].get<double>(), 1.8);
  EXPECT_TRUE(std::filesystem::is_empty(scratch));
}

TEST(CliBench, LoaderTakesGivenShards) {
  const TrainingFolder folder;
  const ProcessResult result = folder.cplm(
      {"bench", "loader", "--data", "data/train/*.h5", "--length", "16", "--rows", "8", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(json::parse(result.out)["data"]["shards"], 2);
  const ProcessResult few = folder.cplm(
      {"bench", "loader", "--data", "data/train/*.h5", "--length", "16", "--rows", "800"});
  EXPECT_EQ(few.exit_code, 2);
  EXPECT_THAT(error_line(few), HasSubstr("expected at least 800 windows, found 120"));
  EXPECT_EQ(folder.cplm({"bench", "loader", "--data", "none/*.h5"}).exit_code, 3);
}

TEST(CliBench, EvalTellsWhatItRanAndItsShares) {
  const TrainingFolder folder;
  const ProcessResult result =
      folder.cplm({"bench", "eval", "config.yaml", "--batch", "3", "--passes", "2", "--warmup", "0",
                   "--profile", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json report = json::parse(result.out);
  EXPECT_EQ(report["sequences"], 3);
  EXPECT_EQ(report["sequence_length"], 16);
  double named = 0;
  for (const char* part : {"backbone", "lm head", "cp head", "rest"}) {
    EXPECT_GT(report["share"][part].get<double>(), 0) << part;
    named += report["share"][part].get<double>();
  }
  EXPECT_NEAR(named, 1, 1e-9);
  EXPECT_GT(report["products_and_attention"].get<double>(), 0);
  EXPECT_LT(report["products_and_attention"].get<double>(), 1);
  EXPECT_EQ(folder.cplm({"bench", "eval", "none.yaml"}).exit_code, 2);
}

TEST(CliBench, OpsSetsMixersBesideEachOtherAtEveryLength) {
  const TrainingFolder folder;
  const ProcessResult result = folder.cplm({"bench",
                                            "ops",
                                            "--size",
                                            "97x64",
                                            "--length",
                                            "70,140",
                                            "--tokens",
                                            "1",
                                            "--repeats",
                                            "2",
                                            "--device",
                                            "cpu",
                                            "--threads",
                                            "1",
                                            "--cpu-time",
                                            "--op",
                                            "mixer, full attention",
                                            "--op",
                                            "mixer, Gated DeltaNet",
                                            "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json report = json::parse(result.out);
  EXPECT_EQ(report["clock"], "cpu");
  ASSERT_EQ(report["ops"].size(), 4U);
  for (size_t i = 0; i < 4; ++i) {
    const json& row = report["ops"][i];
    const bool is_recurrent = i % 2 == 1;
    EXPECT_EQ(row["op"], is_recurrent ? "mixer, Gated DeltaNet" : "mixer, full attention");
    EXPECT_EQ(row["length"], i < 2 ? 70 : 140);
    EXPECT_NEAR(row["us_per_token"].get<double>() * row["tokens"].get<double>(),
                1000 * row["ms"].get<double>(), 1e-6);
    EXPECT_GT(row["token_time_over_first_length"].get<double>(), 0);
    if (i < 2) {
      EXPECT_EQ(row["token_time_over_first_length"], 1);
    }
    EXPECT_EQ(row.contains("rival"), is_recurrent);
    if (!is_recurrent) continue;
    EXPECT_EQ(row["rival"], "mixer, full attention");
    EXPECT_GT(row["time_over_rival"].get<double>(), 0);
    EXPECT_NEAR(row["memory_over_rival"].get<double>(),
                row["extra_mb"].get<double>() / report["ops"][i - 1]["extra_mb"].get<double>(),
                1e-9);
  }
}

TEST(CliBench, OpsRefusesUnknownNamesAndCpuTimeOfSeveralThreads) {
  const TrainingFolder folder;
  const ProcessResult unknown = folder.cplm({"bench", "ops", "--op", "mixer"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(error_line(unknown), HasSubstr("\"mixer, Gated DeltaNet\", found \"mixer\""));
  const ProcessResult threads =
      folder.cplm({"bench", "ops", "--device", "cpu", "--threads", "2", "--cpu-time"});
  EXPECT_EQ(threads.exit_code, 2);
  EXPECT_THAT(error_line(threads), HasSubstr("expected --threads 1 on a CPU, found 2 threads"));
}

}  // namespace
}  // namespace cplm::test
