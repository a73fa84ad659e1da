// Shards as written, read back, described and verified (docs/shard-format.md).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cplm/base.h"
#include "cplm/data.h"
#include "cplm/shard_tools.h"
#include "data/hdf5_file.h"
#include "support/shards.h"
#include "support/temp_dir.h"

namespace cplm {
namespace {

using test::TempDir;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

ShardContents tiny_contents() {
  ShardContents contents;
  contents.tokens = {1, 2, 0, 3, 0};
  contents.document_offsets = {0, 3, 5};
  contents.vocab_size = 4;
  contents.eos_token_id = 0;
  contents.source = "example";
  return contents;
}

void expect_read_back(const std::filesystem::path& path, const ShardContents& contents) {
  const ShardReader reader(path);
  const int64_t size = static_cast<int64_t>(contents.tokens.size());
  ASSERT_EQ(reader.info().token_count, size);
  std::vector<int32_t> tokens(contents.tokens.size());
  reader.read_tokens(0, size, tokens.data());
  EXPECT_EQ(tokens, contents.tokens);
  EXPECT_EQ(reader.read_document_offsets(0, reader.info().document_count + 1),
            contents.document_offsets);
  std::vector<uint8_t> mask(contents.tokens.size());
  reader.read_loss_mask(0, size, mask.data());
  EXPECT_EQ(mask,
            contents.loss_mask.empty() ? std::vector<uint8_t>(mask.size(), 1) : contents.loss_mask);
}

TEST(Shard, ReadsBackWhatWasWritten) {
  const TempDir dir;
  for (const int64_t vocab_size : {300, 65536, 65537, 200000}) {
    for (const int gzip_level : {0, 3}) {
      ShardContents contents = test::text_like_contents(150000, vocab_size, 7);
      contents.tokens[5] = static_cast<int32_t>(vocab_size - 1);
      contents.gzip_level = gzip_level;
      contents.loss_mask.assign(contents.tokens.size(), 0);
      for (size_t i = 0; i < contents.loss_mask.size(); i += 3) contents.loss_mask[i] = 1;
      write_shard(dir / "a.h5", contents);
      expect_read_back(dir / "a.h5", contents);
      EXPECT_THAT(verify_shard(dir / "a.h5"), IsEmpty());
      const ShardInfo info = ShardReader(dir / "a.h5").info();
      EXPECT_EQ(info.token_bytes, vocab_size <= 65536 ? 2 : 4);
      EXPECT_EQ(info.has_gzip, gzip_level > 0);
      EXPECT_TRUE(info.has_loss_mask);
      EXPECT_EQ(info.tokens_per_chunk, 65536);
    }
  }
}

TEST(Shard, KeepsAttributesAndTheDocumentedContentHash) {
  const TempDir dir;
  write_shard(dir / "a.h5", tiny_contents());
  const ShardInfo info = ShardReader(dir / "a.h5").info();
  EXPECT_EQ(info.format_version, 1);
  EXPECT_EQ(info.vocab_size, 4);
  EXPECT_EQ(info.document_count, 2);
  EXPECT_EQ(info.source, "example");
  EXPECT_EQ(info.tokenizer_sha256, "");
  // The example of docs/shard-format.md.
  EXPECT_EQ(info.content_sha256,
            "fa452656ecc576e9f693a0df41aa6b597278e088b290621a859bb0d58d8b87e5");
}

TEST(Shard, ContentHashIgnoresStorageButNothingElse) {
  const TempDir dir;
  const auto hash_of = [&dir](const ShardContents& contents) {
    write_shard(dir / "a.h5", contents);
    return ShardReader(dir / "a.h5").info().content_sha256;
  };
  const std::string plain = hash_of(tiny_contents());
  ShardContents changed = tiny_contents();
  changed.gzip_level = 9;
  EXPECT_EQ(hash_of(changed), plain);
  changed = tiny_contents();
  changed.source = "";
  EXPECT_NE(hash_of(changed), plain);
  changed = tiny_contents();
  changed.loss_mask = {1, 1, 1, 1, 1};
  EXPECT_NE(hash_of(changed), plain);
  changed = tiny_contents();
  changed.document_offsets = {0, 5};
  EXPECT_NE(hash_of(changed), plain);
}

TEST(Shard, EqualContentsGiveEqualBytes) {
  const TempDir dir;
  const ShardContents contents = test::text_like_contents(100000, 5000, 3);
  write_shard(dir / "a.h5", contents);
  write_shard(dir / "b.h5", test::text_like_contents(10, 5000, 4));
  write_shard(dir / "b.h5", contents);  // over another one
  EXPECT_EQ(read_file(dir / "a.h5"), read_file(dir / "b.h5"));
}

TEST(Shard, AllowsNoTokensEmptyDocumentsAndOneTokenDocuments) {
  const TempDir dir;
  ShardContents contents = tiny_contents();
  contents.tokens = {};
  contents.document_offsets = {0};
  write_shard(dir / "none.h5", contents);
  expect_read_back(dir / "none.h5", contents);
  EXPECT_THAT(verify_shard(dir / "none.h5"), IsEmpty());
  EXPECT_EQ(inspect_shards({dir / "none.h5"}, {}).documents, 0);

  contents.tokens = {0, 0, 1, 0};
  contents.document_offsets = {0, 0, 1, 2, 2, 4, 4};
  write_shard(dir / "some.h5", contents);
  expect_read_back(dir / "some.h5", contents);
  EXPECT_THAT(verify_shard(dir / "some.h5"), IsEmpty());
  EXPECT_EQ(inspect_shards({dir / "some.h5"}, {}).without_tokens, 3);
}

TEST(Shard, ReadsRangesAcrossChunks) {
  const TempDir dir;
  const ShardContents contents = test::text_like_contents(200000, 5000, 3);
  write_shard(dir / "a.h5", contents);
  const ShardReader reader(dir / "a.h5");
  std::vector<int32_t> tokens(3000);
  for (const int64_t begin : {int64_t{0}, int64_t{65535}, int64_t{131000}, int64_t{197000}}) {
    reader.read_tokens(begin, 3000, tokens.data());
    EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), contents.tokens.begin() + begin));
  }
  EXPECT_THAT([&] { reader.read_tokens(199999, 2, tokens.data()); },
              ThrowsMessage<Error>(HasSubstr("asked for elements 199999 to 200001 of 200000")));
  EXPECT_THAT([&] { reader.read_tokens(0, -1, tokens.data()); },
              ThrowsMessage<Error>(HasSubstr("asked for elements")));
}

TEST(Shard, RefusesToWriteWhatTheFormatForbids) {
  const TempDir dir;
  const auto expect_refused = [&dir](auto change, const std::string& message) {
    ShardContents contents = tiny_contents();
    change(contents);
    EXPECT_THAT([&] { write_shard(dir / "bad.h5", contents); },
                ThrowsMessage<Error>(HasSubstr(message)));
  };
  expect_refused([](auto& c) { c.tokens[3] = 4; }, "index 3 is not in 0 to 3");
  expect_refused([](auto& c) { c.tokens[3] = -1; }, "index 3 is not in 0 to 3");
  expect_refused([](auto& c) { c.tokens[4] = 1; }, "document 1 does not end with eos 0");
  expect_refused([](auto& c) { c.document_offsets = {}; }, "at least the entry 0");
  expect_refused([](auto& c) { c.document_offsets = {0, 4}; }, "must be token_count 5, found 4");
  expect_refused([](auto& c) { c.document_offsets = {0, 4, 3, 5}; }, "never decrease");
  expect_refused([](auto& c) { c.loss_mask = {1}; }, "expected 5 elements of loss_mask, got 1");
  expect_refused([](auto& c) { c.loss_mask = {1, 2, 1, 1, 1}; }, "only hold 0 and 1");
  expect_refused([](auto& c) { c.vocab_size = 0; }, "expected vocab_size in 1 to");
  expect_refused([](auto& c) { c.eos_token_id = 4; }, "expected eos_token_id in 0 to 3");
  expect_refused([](auto& c) { c.gzip_level = 10; }, "gzip_level in 0 to 9");
  expect_refused([](auto& c) { c.source = std::string("a\0b", 3); }, "null byte");
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(Shard, LeavesNothingBehindWhenWritingFails) {
  const TempDir dir;
  EXPECT_THAT([&] { write_shard(dir / "absent" / "a.h5", tiny_contents()); },
              ThrowsMessage<Error>(HasSubstr("No such file or directory")));
  std::filesystem::create_directory(dir / "taken.h5");
  EXPECT_THROW(write_shard(dir / "taken.h5", tiny_contents()), Error);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 1);
}

class Manifest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(shard_.parent_path());
    write_shard(shard_, tiny_contents());
  }
  std::string entry(uint64_t size_bytes, const std::string& sha256) const {
    return str("{\"size_bytes\": ", size_bytes, ", \"sha256\": \"", sha256, "\"}");
  }
  const TempDir dir_;
  const std::filesystem::path shard_ = dir_ / "train" / "a.h5";
  uint64_t size() const { return std::filesystem::file_size(shard_); }
};

TEST_F(Manifest, IsFoundOneFolderUpAndBeside) {
  const std::string good = entry(size(), sha256_file(shard_));
  dir_.write("manifest.json", str("{\"files\": {\"train/a.h5\": ", good, "}, \"more\": 1}"));
  EXPECT_THAT(verify_shard(shard_), IsEmpty());
  dir_.write("train/manifest.json", str("{\"files\": {\"a.h5\": ", good, "}}"));
  EXPECT_THAT(verify_shard(shard_), IsEmpty());
}

TEST_F(Manifest, DisagreementIsAProblem) {
  const auto problem_with = [this](const std::string& text) {
    dir_.write("manifest.json", text);
    const std::vector<std::string> problems = verify_shard(shard_);
    return problems.size() == 1 ? problems[0] : str(problems.size(), " problems");
  };
  const auto files = [](const std::string& text) { return str("{\"files\": {", text, "}}"); };
  EXPECT_THAT(problem_with(files("\"train/a.h5\": " + entry(size() + 1, sha256_file(shard_)))),
              HasSubstr(str("says ", size() + 1, " bytes, the file has ", size())));
  EXPECT_THAT(problem_with(files("\"train/a.h5\": " + entry(size(), "00"))),
              HasSubstr("says sha256 00, the file has"));
  EXPECT_THAT(problem_with(files("")), HasSubstr("does not list it as 'train/a.h5'"));
  EXPECT_THAT(problem_with(files("\"train/a.h5\": 3")), HasSubstr("needs an integer size_bytes"));
  EXPECT_THAT(problem_with("{\"fi"), HasSubstr("expected JSON with an object 'files'"));
  EXPECT_THAT(problem_with("[]"), HasSubstr("expected JSON with an object 'files'"));
}

}  // namespace
}  // namespace cplm
