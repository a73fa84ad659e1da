// Sets of shards verified together, by names, folders and patterns; and bytes that no checksum of
// HDF5 covers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cplm/base.h"
#include "cplm/data.h"
#include "cplm/shard_tools.h"
#include "data/hdf5_gaps.h"
#include "support/raw_shard.h"
#include "support/shards.h"
#include "support/temp_dir.h"

namespace cplm::test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;
using testing::ThrowsMessage;

// A data set as it is prepared: train/a.h5, train/b.h5, validation/c.h5 and their manifest.
class ShardSet : public testing::Test {
 protected:
  ShardSet() {
    for (size_t i = 0; i < std::size(kNames); ++i) {
      fs::create_directories((dir_ / kNames[i]).parent_path());
      write_shard(dir_ / kNames[i], text_like_contents(400 + static_cast<int64_t>(i), 64, i));
    }
    write_manifest();
  }
  void write_manifest() const {
    std::vector<std::string> entries;
    for (const char* name : kNames) {
      entries.push_back(str("\"", name, "\": {\"size_bytes\": ", fs::file_size(dir_ / name),
                            ", \"sha256\": \"", sha256_file(dir_ / name), "\"}"));
    }
    dir_.write("manifest.json", "{\"files\": {" + join(entries, ",") + "}}");
  }
  std::vector<std::string> problems_of(const std::vector<std::string>& names) {
    std::vector<fs::path> shards;
    for (const std::string& name : names) shards.push_back(dir_ / name);
    return problems_in(shards);
  }
  std::vector<std::string> problems_in(const std::vector<fs::path>& shards) {
    std::vector<std::string> problems;
    VerifyOptions options;
    options.on_problem = [&](const std::string& line) { problems.push_back(line); };
    options.on_progress = [](int64_t done, int64_t total) { EXPECT_LE(done, total); };
    report_ = verify_shards(shards, options);
    EXPECT_EQ(report_.problems, static_cast<int64_t>(problems.size()));
    EXPECT_EQ(report_.shards, static_cast<int64_t>(shards.size()));
    return problems;
  }
  static constexpr const char* kNames[] = {"train/a.h5", "train/b.h5", "validation/c.h5"};
  const TempDir dir_;
  VerifyReport report_;
};

TEST_F(ShardSet, ASoundSetHasNoProblems) {
  EXPECT_THAT(problems_in(list_shards({dir_.path().string()})), IsEmpty());
  EXPECT_EQ(report_.shards, 3);
  EXPECT_EQ(report_.tokens, 1203);
  EXPECT_EQ(report_.damaged_shards, 0);
}

TEST_F(ShardSet, FilesThatManifestAndFolderDisagreeAboutAreNamed) {
  write_shard(dir_ / "train/more.h5", text_like_contents(50, 64, 9));
  EXPECT_THAT(problems_of({"train/a.h5"}),
              ElementsAre(AllOf(HasSubstr("more.h5"), HasSubstr("does not list it"))));
  EXPECT_EQ(report_.damaged_shards, 0);
  EXPECT_THAT(problems_of({"train/more.h5"}),
              ElementsAre(HasSubstr("does not list it as 'train/more.h5'")));
  EXPECT_EQ(report_.damaged_shards, 1);
  fs::remove(dir_ / "train/more.h5");
  fs::remove(dir_ / "validation/c.h5");
  EXPECT_THAT(problems_of({"train/a.h5", "train/b.h5"}),
              ElementsAre(AllOf(HasSubstr("validation/c.h5: is missing"), HasSubstr("lists it"))));
}

TEST_F(ShardSet, ABrokenManifestIsToldOnce) {
  dir_.write("manifest.json", "{");
  EXPECT_THAT(problems_of({"train/a.h5", "train/b.h5"}),
              ElementsAre(HasSubstr("expected JSON with an object 'files'")));
}

TEST_F(ShardSet, CopiesAreNamed) {
  ShardContents contents = text_like_contents(400, 64, 0);  // as a.h5, stored in another way
  contents.gzip_level = 3;
  write_shard(dir_ / "train/b.h5", contents);
  write_manifest();
  EXPECT_THAT(problems_of({"train/a.h5", "train/b.h5"}),
              ElementsAre(AllOf(HasSubstr("train/b.h5: holds the same as"),
                                HasSubstr("train/a.h5 (content_sha256"))));
}

TEST_F(ShardSet, ShardsThatDoNotBelongTogetherAreNamed) {
  ShardContents contents = text_like_contents(100, 80, 3);
  contents.tokenizer_sha256 = std::string(64, 'a');
  write_shard(dir_ / "train/b.h5", contents);
  write_manifest();
  EXPECT_THAT(problems_of({"train/a.h5", "train/b.h5"}),
              ElementsAre(AllOf(HasSubstr("b.h5: vocab_size is 80, but 64 in"), HasSubstr("a.h5")),
                          HasSubstr("tokenizer_sha256 is aaaa")));
}

TEST_F(ShardSet, AnotherTokenizerThanTheShardsIsNamed) {
  ShardContents contents = text_like_contents(100, 64, 3);
  contents.tokenizer_sha256 = sha256_hex("{}");
  write_shard(dir_ / "validation/c.h5", contents);
  write_manifest();
  dir_.write("tokenizer.json", "{}");
  EXPECT_THAT(problems_of({"validation/c.h5"}), IsEmpty());
  dir_.write("tokenizer.json", "{ }");
  EXPECT_THAT(problems_of({"validation/c.h5"}),
              ElementsAre(AllOf(HasSubstr("validation/c.h5: was made with the tokenizer"),
                                HasSubstr(sha256_hex("{ }")))));
}

TEST_F(ShardSet, ProblemsComeInTheOrderOfTheShards) {
  std::vector<fs::path> shards;
  for (int i = 0; i < 20; ++i) shards.push_back(dir_ / str("absent", i / 10, i % 10, ".h5"));
  const std::vector<std::string> problems = problems_in(shards);
  ASSERT_EQ(problems.size(), 20U);
  for (size_t i = 0; i < 20; ++i) EXPECT_THAT(problems[i], StartsWith(shards[i].string()));
}

TEST_F(ShardSet, NamesFoldersAndPatternsAreListedOnce) {
  const fs::path a = dir_ / "train/a.h5", b = dir_ / "train/b.h5", c = dir_ / "validation/c.h5";
  dir_.write("train/.hidden.h5", "");
  dir_.write("train/notes.txt", "");
  dir_.write("deep/er/d.h5", "");
  EXPECT_THAT(list_shards({dir_.path().string()}), ElementsAre(a, b, c));
  EXPECT_THAT(list_shards({(dir_ / "train").string(), a.string()}), ElementsAre(a, b));
  EXPECT_THAT(list_shards({(dir_ / "*/[bc].h5").string()}), ElementsAre(b, c));
  EXPECT_THAT(list_shards({(dir_ / "*").string()}).size(), 5U);  // with the manifest and d.h5
  fs::rename(a, dir_ / "train/[b].h5");
  EXPECT_THAT(list_shards({(dir_ / "train/[b].h5").string()}), ElementsAre(dir_ / "train/[b].h5"));
  dir_.write("[train]/e.h5", "");
  dir_.write("t/f.h5", "");
  EXPECT_THAT(list_shards({(dir_ / "[train]/*.h5").string()}), ElementsAre(dir_ / "[train]/e.h5"));
  fs::remove_all(dir_ / "[train]");
  fs::remove_all(dir_ / "t");
  EXPECT_THAT(
      [&] {
        list_shards({b.string(), (dir_ / "none*").string()});
      },
      ThrowsMessage<Error>(AllOf(HasSubstr("none*: no such file"), HasSubstr("seen from /"),
                                 HasSubstr("correct the path"))));
  EXPECT_THAT([&] { list_shards({(dir_ / "deep").string() + "/er/.."}); },
              testing::Not(testing::Throws<Error>()));
  fs::remove_all(dir_ / "deep/er");
  EXPECT_THAT(
      [&] {
        list_shards({b.string(), (dir_ / "deep").string()});
      },
      ThrowsMessage<Error>(HasSubstr("deep: no shards (*.h5) in this folder")));
}

TEST(Verify, TheTypeOfTokensFollowsFromTheVocabulary) {
  const TempDir dir;
  RawShard shard;
  shard.write_tokens = [](Hdf5File& file) {
    file.write_dataset("tokens", std::vector<uint32_t>{1, 2, 0, 3, 0});
  };
  shard.write(dir / "wide.h5");
  EXPECT_THAT(
      verify_shard(dir / "wide.h5"),
      testing::Contains(HasSubstr("expected elements of 2 bytes for vocab_size 4, found 4")));
}

// ---- bytes between the structures

TEST(Gaps, EveryPartOfAShardIsGuarded) {
  const TempDir dir;
  write_shard(dir / "sound.h5", text_like_contents(300, 500, 5));
  const std::string sound = read_file(dir / "sound.h5");
  for (size_t at = 0; at < sound.size(); at += 3) {
    std::string bytes = sound;
    bytes[at] = static_cast<char>(bytes[at] ^ (1 << at % 8));
    dir.write("changed.h5", bytes);
    EXPECT_FALSE(verify_shard(dir / "changed.h5").empty()) << "byte " << at;
  }
}

// Chunk lists of every depth: in the index block, in data blocks, in super blocks.
TEST(Gaps, AreFoundInShardsOfManyChunks) {
  const TempDir dir;
  const fs::path file = dir / "a.h5";
  for (const int64_t chunks : {1, 4, 5, 20, 21, 100, 400, 3000}) {
    RawShard shard;
    shard.write_tokens = [&](Hdf5File& writer) {
      std::vector<uint16_t> tokens(static_cast<size_t>(chunks * 2), 0);
      writer.write_dataset("tokens", tokens, 2);
    };
    shard.write(file);
    EXPECT_EQ(first_stray_byte(file), std::nullopt) << chunks;
    // Found only when every structure before is known.
    std::string bytes = read_file(file);
    dir.write("a.h5", bytes + std::string(1, '\0') + "x");
    EXPECT_EQ(first_stray_byte(file), static_cast<int64_t>(bytes.size()) + 1) << chunks;
  }
}

TEST(Gaps, FilesOfOtherWritersAreNotJudged) {
  const TempDir dir;
  dir.write("text.h5", "no HDF5 at all");
  EXPECT_EQ(first_stray_byte(dir / "text.h5"), std::nullopt);
  dir.write("empty.h5", "");
  EXPECT_EQ(first_stray_byte(dir / "empty.h5"), std::nullopt);
}

}  // namespace
}  // namespace cplm::test
