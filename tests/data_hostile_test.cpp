// Damaged and wrong shards: reading gives an error that names the fault, or the right tokens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "cplm/base.h"
#include "cplm/data.h"
#include "cplm/shard_tools.h"
#include "support/raw_shard.h"
#include "support/shards.h"
#include "support/temp_dir.h"

namespace cplm {
namespace {

using test::RawShard;
using test::TempDir;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::ThrowsMessage;

class Hostile : public ::testing::Test {
 protected:
  // Reads everything a run would.
  static std::vector<int32_t> read_all(const std::filesystem::path& path) {
    const ShardReader reader(path);
    const int64_t size = reader.info().token_count;
    std::vector<int32_t> tokens(static_cast<size_t>(size));
    reader.read_tokens(0, size, tokens.data());
    std::vector<uint8_t> mask(tokens.size());
    reader.read_loss_mask(0, size, mask.data());
    reader.read_document_offsets(0, reader.info().document_count + 1);
    return tokens;
  }
  void expect_error(const RawShard& shard, const std::string& message) const {
    shard.write(file_);
    EXPECT_THAT([this] { read_all(file_); },
                ThrowsMessage<Error>(AllOf(HasSubstr(file_.string()), HasSubstr(message))));
    EXPECT_THAT(verify_shard(file_), Contains(HasSubstr(message)));
  }
  const TempDir dir_;
  const std::filesystem::path file_ = dir_ / "bad.h5";
};

TEST_F(Hostile, TheUntouchedRawShardIsGood) {
  RawShard().write(file_);
  EXPECT_THAT(read_all(file_), ElementsAre(1, 2, 0, 3, 0));
  EXPECT_THAT(verify_shard(file_), IsEmpty());
}

TEST_F(Hostile, MissingAttributesAreNamed) {
  for (const auto& [name, value] : RawShard().ints) {
    RawShard shard;
    shard.ints.erase(name);
    expect_error(shard, "attribute '" + name + "' is missing");
  }
  for (const auto& [name, value] : RawShard().strings) {
    RawShard shard;
    shard.strings.erase(name);
    expect_error(shard, "attribute '" + name + "' is missing");
  }
}

TEST_F(Hostile, WrongAttributesAreNamed) {
  RawShard shard;
  shard.ints["format_version"] = 2;
  expect_error(shard, "expected format_version 1, found 2");
  shard = RawShard();
  shard.ints["vocab_size"] = 0;
  expect_error(shard, "expected vocab_size in 1 to 2147483647, found 0");
  shard = RawShard();
  shard.ints["eos_token_id"] = 4;
  expect_error(shard, "expected eos_token_id in 0 to 3 (vocab_size 4), found 4");
  shard = RawShard();
  shard.ints["token_count"] = 6;
  expect_error(shard, "dataset 'tokens': expected token_count = 6 elements, found 5");
  shard = RawShard();
  shard.ints["document_count"] = -1;
  expect_error(shard, "dataset 'document_offsets': expected document_count + 1 = 0 elements");
  shard = RawShard();
  shard.ints["document_count"] = std::numeric_limits<int64_t>::max();
  expect_error(shard, "expected document_count + 1 = 9223372036854775808 elements");
  shard = RawShard();
  shard.ints.erase("vocab_size");
  shard.strings["vocab_size"] = "4";
  expect_error(shard, "attribute 'vocab_size': expected an integer");
  shard = RawShard();
  shard.strings.erase("source");
  shard.ints["source"] = 4;
  expect_error(shard, "attribute 'source': expected a string of fixed length");
}

TEST_F(Hostile, WrongDatasetsAreNamed) {
  RawShard shard;
  shard.write_tokens = [](Hdf5File&) {};
  expect_error(shard, "dataset 'tokens' is missing");
  shard.write_tokens = [](Hdf5File& file) {
    file.write_dataset("tokens", std::vector<double>{1, 2, 0, 3, 0});
  };
  expect_error(shard, "expected elements of type uint16 or uint32 (little-endian), found float64");
  shard.write_tokens = [](Hdf5File& file) {
    file.write_dataset("tokens", std::vector<int64_t>{1, 2, 0, 3, 0});
  };
  expect_error(shard, "found int64");
  shard = RawShard();
  shard.offsets = {};
  expect_error(shard, "dataset 'document_offsets' is missing");
  shard.write_more = [](Hdf5File& file) {
    file.write_dataset("document_offsets", std::vector<int64_t>{0, 3, 5});
  };
  expect_error(shard, "'document_offsets': expected elements of type uint64");
  shard = RawShard();
  shard.write_more = [](Hdf5File& file) {
    file.write_dataset("loss_mask", std::vector<uint8_t>{1});
  };
  expect_error(shard, "dataset 'loss_mask': expected token_count = 5 elements, found 1");
  shard.write_more = [](Hdf5File& file) {
    file.write_dataset("loss_mask", std::vector<uint8_t>{1, 1, 7, 1, 1});
  };
  expect_error(shard, "dataset 'loss_mask': expected 0 or 1 at index 2, found 7");
}

TEST_F(Hostile, WrongIdsAndOffsetsAreNamed) {
  RawShard shard;
  shard.tokens[3] = 4;
  expect_error(shard, "dataset 'tokens': id 4 at index 3 is not below vocab_size 4");
  shard = RawShard();
  shard.offsets = {1, 3, 5};
  expect_error(shard, "dataset 'document_offsets': entry 0 must be 0, found 1");
  shard.offsets = {0, 3, 4};
  expect_error(shard, "the last entry must be token_count 5, found 4");
  shard.offsets = {0, 9, 5};
  expect_error(shard, "entry 1 is 9, beyond token_count 5");
  shard.offsets = {0, 3, 2, 5};
  shard.ints["document_count"] = 3;
  expect_error(shard, "entries must never decrease, found 3 then 2 at entry 2");
}

TEST_F(Hostile, VerifyFindsWhatReadingCannot) {
  RawShard shard;
  shard.tokens[1] = 3;
  shard.write(file_);
  EXPECT_THAT(verify_shard(file_), ElementsAre(HasSubstr("but the contents give")));
  shard = RawShard();
  shard.write_more = [](Hdf5File& file) {
    file.write_dataset("extra", std::vector<uint8_t>{1});
    file.write_int_attribute("note", 1);
  };
  shard.write(file_);
  EXPECT_THAT(verify_shard(file_),
              ElementsAre(HasSubstr("dataset 'extra' is not part of the format"),
                          HasSubstr("attribute 'note' is not part of the format")));
}

TEST_F(Hostile, VerifyFindsDocumentsWithoutEos) {
  RawShard shard;
  shard.offsets = {0, 2, 5};
  shard.write(file_);
  const std::vector<std::string> problems = verify_shard(file_);
  ASSERT_THAT(problems, ElementsAre(HasSubstr("but the contents give")));
  shard.strings["content_sha256"] = problems[0].substr(problems[0].rfind(' ') + 1);
  shard.write(file_);
  EXPECT_THAT(
      verify_shard(file_),
      ElementsAre(HasSubstr("1 document(s) do not end with eos 0, the first is document 0")));
}

TEST_F(Hostile, OtherFilesAreRefused) {
  dir_.write("bad.h5", "no HDF5 at all, but long enough to hold a signature somewhere");
  EXPECT_THAT([this] { ShardReader{file_}; },
              ThrowsMessage<Error>(HasSubstr("signature not found")));
  dir_.write("bad.h5", "");
  EXPECT_THROW(ShardReader{file_}, Error);
  EXPECT_THAT([this] { ShardReader{dir_ / "absent.h5"}; },
              ThrowsMessage<Error>(HasSubstr("absent.h5: cannot be opened as HDF5: No such file")));
  EXPECT_THROW(ShardReader{dir_.path()}, Error);
  EXPECT_THAT(verify_shard(dir_ / "absent.h5"), ElementsAre(HasSubstr("No such file")));
  try {
    ShardReader{dir_ / "absent.h5"};
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadData);
  }
}

// One shard with all datasets, and what must be read from it if anything is.
class Damage : public Hostile {
 protected:
  void SetUp() override {
    contents_ = test::text_like_contents(1500, 500, 11);
    contents_.loss_mask.assign(contents_.tokens.size(), 1);
    write_shard(file_, contents_);
    bytes_ = read_file(file_);
    dir_.write("manifest.json", str("{\"files\": {\"bad.h5\": {\"size_bytes\": ", bytes_.size(),
                                    ", \"sha256\": \"", sha256_hex(bytes_), "\"}}}"));
  }
  void expect_noticed(const std::string& damaged) {
    dir_.write("bad.h5", damaged);
    EXPECT_THAT(verify_shard(file_), Not(IsEmpty()));
    try {
      EXPECT_EQ(read_all(file_), contents_.tokens);
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(file_.string()));
      ++num_errors_;
    }
  }
  ShardContents contents_;
  std::string bytes_;
  int num_errors_ = 0;
};

TEST_F(Damage, FlippedBitsNeverGiveWrongTokens) {
  std::mt19937_64 random(5);
  constexpr int kTrials = 600;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::string damaged = bytes_;
    const int num_flips = 1 + trial % 3;
    for (int i = 0; i < num_flips; ++i) {
      const size_t place = random() % damaged.size();
      damaged[place] = static_cast<char>(damaged[place] ^ (1 << random() % 8));
    }
    if (damaged != bytes_) expect_noticed(damaged);
  }
  EXPECT_GT(num_errors_, kTrials / 2);
}

TEST_F(Damage, OverwrittenStretchesNeverGiveWrongTokens) {
  std::mt19937_64 random(6);
  for (int trial = 0; trial < 200; ++trial) {
    std::string damaged = bytes_;
    const size_t begin = random() % damaged.size();
    const size_t end = std::min(damaged.size(), begin + 1 + random() % 64);
    const char value = trial % 3 == 0   ? '\0'
                       : trial % 3 == 1 ? '\xff'
                                        : static_cast<char>(random());
    std::fill(damaged.begin() + static_cast<ptrdiff_t>(begin),
              damaged.begin() + static_cast<ptrdiff_t>(end), value);
    if (damaged != bytes_) expect_noticed(damaged);
  }
}

TEST_F(Damage, TruncatedFilesAreRefused) {
  for (size_t size = 0; size < bytes_.size(); size += 97) {
    dir_.write("bad.h5", bytes_.substr(0, size));
    EXPECT_THROW(read_all(file_), Error) << size;
    EXPECT_THAT(verify_shard(file_), Not(IsEmpty()));
  }
}

}  // namespace
}  // namespace cplm
