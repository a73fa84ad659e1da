// Unusual data, schedules and paths in whole runs: they work, or end in one line that says why.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cplm/base.h"
#include "support/checks.h"
#include "support/raw_shard.h"
#include "support/shards.h"
#include "support/training_folder.h"

namespace cplm::test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// 1,000 tokens of ids 1 to 62 in `folder`, but for what the caller changes.
RawShard raw_shard() {
  RawShard shard;
  shard.tokens.clear();
  for (uint16_t i = 0; i < 1000; ++i) shard.tokens.push_back(static_cast<uint16_t>(1 + i % 62));
  shard.offsets = {0, 1000};
  shard.ints = {{"format_version", 1},
                {"vocab_size", 64},
                {"eos_token_id", 0},
                {"token_count", 1000},
                {"document_count", 1}};
  return shard;
}

class TrainInputs : public testing::Test {
 protected:
  // Few steps over `name`/0.h5, every document masked off from the others.
  ProcessResult train_on(const RawShard& shard, const std::string& name,
                         const std::string& key = "data.train") const {
    fs::create_directory(folder_ / name);
    shard.write(folder_ / name / "0.h5");
    return folder_.train("run-" + name, {"train.steps=20", "data.intra_document_mask=true",
                                         key + "=[" + name + "/*.h5]", "validation.sequences=0"});
  }
  // Finished, with a finite loss in every line.
  void expect_trained(const ProcessResult& result, const std::string& name) const {
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const Texts lines = folder_.metrics("run-" + name);
    EXPECT_EQ(lines.size(), 21U);
    for (const std::string& line : lines) EXPECT_GT(number_in(line, "loss"), 0) << line;
  }
  const TrainingFolder folder_;
};

// ---- data

TEST_F(TrainInputs, AnIdOutsideTheVocabularyIsNamedWithFileAndIndex) {
  RawShard shard = raw_shard();
  shard.tokens[777] = 64;
  for (const char* key : {"data.train", "data.validation"}) {
    expect_error(train_on(shard, str("bad-", key), key), ExitCode::kBadData,
                 AllOf(HasSubstr(str("bad-", key, "/0.h5")),
                       HasSubstr("id 64 at index 777 is not below vocab_size 64")));
  }
}

TEST_F(TrainInputs, DataShorterThanAWindowIsNamed) {
  RawShard shard = raw_shard();
  for (const size_t count : {size_t{16}, size_t{1}, size_t{0}}) {
    shard.tokens.resize(count);
    shard.offsets = {0, count};
    shard.ints["token_count"] = static_cast<int64_t>(count);
    expect_error(train_on(shard, str("short", count)), ExitCode::kBadData,
                 AllOf(HasSubstr("no window of sequence_length + 1 = 17 tokens"),
                       HasSubstr(str("the longest has ", count))));
  }
}

TEST_F(TrainInputs, EmptyAndOneTokenDocumentsAreTrainedOn) {
  RawShard shard = raw_shard();
  shard.offsets = {0, 0, 0, 500, 500, 1000, 1000};
  shard.ints["document_count"] = 6;
  expect_trained(train_on(shard, "empty"), "empty");

  shard.tokens.assign(1000, 0);  // nothing but ends
  shard.offsets.clear();
  for (uint64_t offset = 0; offset <= 1000; ++offset) shard.offsets.push_back(offset);
  shard.ints["document_count"] = 1000;
  expect_trained(train_on(shard, "ones"), "ones");
}

// The copy head has nothing to copy in the one, and nothing else in the other.
TEST_F(TrainInputs, NoTargetInTheContextAndAllIdsEqualAreTrainedOn) {
  RawShard shard = raw_shard();  // an id comes back after 62 tokens; a window has 16
  expect_trained(train_on(shard, "none"), "none");
  EXPECT_LT(number_in(folder_.metrics("run-none", "train").back(), "loss"), 4.2);
  shard.tokens.assign(1000, 5);
  expect_trained(train_on(shard, "same"), "same");
  EXPECT_LT(number_in(folder_.metrics("run-same", "train").back(), "loss"), 3.0);
}

// Counted are the first `counted` tokens alone.
RawShard masked_shard(size_t counted) {
  RawShard shard = raw_shard();
  shard.write_more = [counted](Hdf5File& file) {
    std::vector<uint8_t> mask(1000, 0);
    std::fill_n(mask.begin(), counted, uint8_t{1});
    file.write_dataset("loss_mask", mask);
  };
  return shard;
}

TEST_F(TrainInputs, ABatchWithoutTargetsTeachesNothingAndHasNoLoss) {
  const ProcessResult result = train_on(masked_shard(16), "masked");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("no target was counted since the last line"));
  int64_t without_targets = 0;
  for (const std::string& line : folder_.metrics("run-masked", "train")) {
    if (line.find("\"loss\":\"nan\"") == std::string::npos) continue;
    without_targets += 1;
    EXPECT_THAT(line, HasSubstr("\"grad_norm\":0.0"));
  }
  EXPECT_GT(without_targets, 0);
  EXPECT_EQ(folder_.cplm({"verify-checkpoint", "run-masked"}).exit_code, 0);
}

TEST_F(TrainInputs, DataWithoutAnyTargetIsRefusedBeforeTheFirstStep) {
  for (const char* key : {"data.train", "data.validation"}) {
    const ProcessResult result = train_on(masked_shard(0), str("empty-", key), key);
    expect_error(result, ExitCode::kBadData,
                 AllOf(HasSubstr(key), HasSubstr("none of the 6"),
                       HasSubstr("has a counted target"), HasSubstr(".h5")));
    EXPECT_FALSE(fs::exists(folder_ / str("run-empty-", key)));
  }
}

// Documents of 8 tokens, two a window, of which the second's targets are counted; the first one's
// tokens are shifted by `shift`.
RawShard second_documents(uint16_t shift) {
  RawShard shard = raw_shard();
  shard.offsets.clear();
  std::vector<uint8_t> mask(1000, 0);
  for (size_t i = 0; i < 1000; ++i) {
    if (i % 8 == 0) shard.offsets.push_back(i);
    mask[i] = i % 16 > 8;  // its first token would be told by the document before
    if (i % 16 < 8) shard.tokens[i] = static_cast<uint16_t>(1 + (i + shift) % 62);
  }
  shard.offsets.push_back(1000);
  shard.ints["document_count"] = 125;
  shard.write_more = [mask](Hdf5File& file) { file.write_dataset("loss_mask", mask); };
  return shard;
}

TEST_F(TrainInputs, ValidationSeesNoOtherDocumentWhenThoseAreMasked) {
  const auto loss_of = [&](const char* masked, uint16_t shift) {
    const std::string name = str("documents-", masked, shift);
    fs::create_directory(folder_ / name);
    second_documents(shift).write(folder_ / name / "0.h5");
    const ProcessResult result = folder_.train(
        name + "-run", {"train.steps=8", str("data.intra_document_mask=", masked),
                        "data.validation=[" + name + "/*.h5]", "validation.sequences=0"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return number_in(folder_.metrics(name + "-run", "validation").at(0), "loss");
  };
  EXPECT_EQ(loss_of("true", 0), loss_of("true", 5));
  EXPECT_NE(loss_of("false", 0), loss_of("false", 5));
}

// ---- schedules

TEST_F(TrainInputs, SchedulesAtTheirEdgesRun) {
  const auto rates_of = [&](const std::string& run, const Texts& settings) {
    const ProcessResult result = folder_.train(run, settings);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    std::vector<double> rates;
    for (const std::string& line : folder_.metrics(run, "train")) {
      rates.push_back(number_in(line, "lr"));
    }
    return rates;
  };
  using testing::ElementsAre;
  EXPECT_THAT(
      rates_of("flat", {"train.steps=3", "schedule.warmup_steps=0", "schedule.decay_fraction=0"}),
      ElementsAre(0.01, 0.01, 0.01));
  EXPECT_THAT(
      rates_of("one", {"train.steps=1", "schedule.warmup_steps=0", "schedule.decay_fraction=1"}),
      ElementsAre(0.01));
  EXPECT_THAT(
      rates_of("late", {"train.steps=2", "schedule.warmup_steps=100", "schedule.decay_fraction=0"}),
      ElementsAre(0.0001, 0.0002));
  EXPECT_THAT(read_file(folder_ / "late/log.txt"), HasSubstr("never reached"));
}

// ---- paths

TEST_F(TrainInputs, PathsWithSpacesUnicodeAndATildeWork) {
  const fs::path odd = "a b/ünï cödé 日本";
  fs::create_directories(folder_ / odd);
  fs::copy(folder_ / "data", folder_ / odd / "data", fs::copy_options::recursive);
  fs::rename(folder_ / "config.yaml", folder_ / odd / "bäse config.yaml");
  folder_.files().write("a b/my cönfig.yaml",
                        "include: \"ünï cödé 日本/bäse config.yaml\"\n"
                        "run: {dir: \"~/a b/rün\"}\n"
                        "data: {train: [\"a b/ünï cödé 日本/data/train/*.h5\"], validation: "
                        "[\"~/a b/ünï cödé 日本/data/validation/*.h5\"]}\n");
  folder_.files().write("by tilde.yaml", "include: \"~/a b/my cönfig.yaml\"\n");
  ProcessOptions options;
  options.environment = {{"HOME", folder_.path().string()}};
  const ProcessResult first =
      folder_.cplm({"train", "a b/my cönfig.yaml", "--stop-after", "12"}, options);
  EXPECT_EQ(first.exit_code, 75) << first.err;
  const ProcessResult second = folder_.cplm({"train", "by tilde.yaml"}, options);
  ASSERT_EQ(second.exit_code, 0) << second.err;
  EXPECT_THAT(second.err, AllOf(HasSubstr("resumed at step 12"), HasSubstr("a b/rün")));
  EXPECT_TRUE(fs::exists(folder_ / "a b/rün/tokenizer.json"));
  const ProcessResult third =
      folder_.cplm({"train", "by tilde.yaml", "--set", "run.dir=~/third", "--set",
                    "train.init_from=\"~/a b/rün\"", "--set", "train.steps=1"},
                   options);
  EXPECT_EQ(third.exit_code, 0) << third.err;
  EXPECT_FALSE(fs::exists(folder_ / "~"));
  EXPECT_EQ(folder_.cplm({"verify-checkpoint", "a b/rün"}).exit_code, 0);
  EXPECT_EQ(folder_.cplm({"data", "verify", (odd / "data/train/0.h5").string()}).exit_code, 0);
}

}  // namespace
}  // namespace cplm::test
