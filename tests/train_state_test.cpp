// state.json: what a checkpoint keeps of its data, and which shards it finds changed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cplm/base.h"
#include "train/run_state.h"

namespace cplm {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TrainingShard shard(const std::string& path, char digit) { return {path, std::string(64, digit)}; }

TEST(TrainingData, IsReadBackFromTheState) {
  TrainingData data{2, 300, "abc", {shard("data/a b.h5", '1'), shard("~/\xc3\xa9.h5", '2')}};
  const SavedRun saved = run_from_json(to_json({}, "x: 1", 4, 7, data), "state.json");
  EXPECT_EQ(saved.data.sha256, "abc");
  ASSERT_EQ(saved.data.files.size(), 2U);
  EXPECT_EQ(saved.data.files[0].path, "data/a b.h5");
  EXPECT_EQ(saved.data.files[0].content_sha256, std::string(64, '1'));
  EXPECT_EQ(saved.data.files[1].path, "~/\xc3\xa9.h5");
  EXPECT_EQ(changed_files(saved.data.files, data.files), "");
}

TEST(TrainingData, OfTooManyShardsOnlyTheSumIsKept) {
  TrainingData data{30'000, 300, "abc", std::vector<TrainingShard>(30'000, shard("a.h5", '1'))};
  const std::string json = to_json({}, "", 4, 7, data);
  EXPECT_LT(json.size(), 2000U);
  EXPECT_TRUE(run_from_json(json, "state.json").data.files.empty());
  data.files.resize(6000);
  EXPECT_LT(to_json({}, "", 4, 7, data).size(), 600'000U);
}

TEST(TrainingData, CheckpointsOfBeforeNameNoShards) {
  std::string json = to_json({}, "", 4, 7, {1, 2, "abc", {}});
  const size_t begin = json.find(",\n    \"files\": []");
  ASSERT_NE(begin, std::string::npos);
  json.erase(begin, std::string(",\n    \"files\": []").size());
  const SavedRun saved = run_from_json(json, "state.json");
  EXPECT_EQ(saved.data.sha256, "abc");
  EXPECT_TRUE(saved.data.files.empty());
  EXPECT_EQ(changed_files(saved.data.files, {shard("a.h5", '1')}), "");
}

TEST(TrainingData, StatesOfOtherShapesAreRefused) {
  std::string json = to_json({}, "", 4, 7, {1, 2, "abc", {shard("a.h5", '1')}});
  json.replace(json.find("\"1111"), 5, "[\"1");
  EXPECT_THROW(run_from_json(json, "state.json"), Error);
}

TEST(RunState, NumbersThatNoRunCountsAreRefused) {
  RunState state;
  state.step = 7;
  state.tokens = 448;
  state.left_out = {3};
  state.owes_validation = true;
  const std::string json = to_json(state, "", 4, 7, {});
  const SavedRun saved = run_from_json(json, "state.json");
  EXPECT_EQ(saved.state.left_out, state.left_out);
  EXPECT_TRUE(saved.state.owes_validation);
  const std::pair<const char*, const char*> edits[] = {
      {"\"step\": 7", "\"step\": -7"},
      {"\"step\": 7", "\"step\": 7.5"},
      {"\"tokens\": 448", "\"tokens\": 4611686018427387904"},
      {"\"rewinds\": 0", "\"rewinds\": -1"},
      {"    3\n", "    1e300\n"}};
  for (const auto& [before, after] : edits) {
    std::string edited = json;
    ASSERT_NE(edited.find(before), std::string::npos) << before;
    edited.replace(edited.find(before), std::string(before).size(), after);
    try {
      run_from_json(edited, "state.json");
      ADD_FAILURE() << after;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("state.json: expected the training state"),
                                      HasSubstr("a whole number from 0 to")));
    }
  }
}

TEST(ChangedFiles, AreNamedByPath) {
  const std::vector<TrainingShard> saved = {shard("d/a.h5", '1'), shard("d/b.h5", '2'),
                                            shard("d/c.h5", '3')};
  EXPECT_THAT(changed_files(saved, {saved[0], shard("d/b.h5", '9'), saved[2]}),
              AllOf(HasSubstr("d/b.h5 has changed (content_sha256 2222"), HasSubstr(" 9999"),
                    Not(HasSubstr("a.h5"))));
  EXPECT_EQ(changed_files(saved, {saved[0], saved[2], shard("d/d.h5", '4')}),
            "d/b.h5 is missing, d/d.h5 is new");
}

TEST(ChangedFiles, AreFoundByFileNameWhenTheFolderMoved) {
  EXPECT_THAT(changed_files({shard("old/a.h5", '1'), shard("old/b.h5", '2')},
                            {shard("new/place/a.h5", '1'), shard("new/place/b.h5", '3')}),
              AllOf(HasSubstr("new/place/b.h5 has changed"), Not(HasSubstr("a.h5"))));
}

TEST(ChangedFiles, ManyAreCounted) {
  std::vector<TrainingShard> saved;
  for (int i = 0; i < 9; ++i) saved.push_back(shard(str("d/", i, ".h5"), '1'));
  EXPECT_THAT(changed_files(saved, {shard("d/0.h5", '1')}),
              AllOf(HasSubstr("d/5.h5 is missing, and 3 more"), Not(HasSubstr("d/6.h5"))));
}

}  // namespace
}  // namespace cplm
