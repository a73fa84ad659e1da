// More than 2^31 tokens in one shard, 2^31 windows in a set and 2^40 in an order: every index is
// 64 bits wide. The shard is real but small: one compressed chunk stands at every place but the
// last.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hdf5.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <iostream>

#include "cplm/base.h"
#include "cplm/data.h"
#include "data/hdf5_file.h"
#include "support/temp_dir.h"

namespace cplm {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kChunk = int64_t{1} << 20;
constexpr int64_t kChunks = 2049;  // 2^31 + 2^20 tokens
constexpr int64_t kTokens = kChunks * kChunk;
constexpr int64_t kDocument = int64_t{1} << 30;  // documents of this length, the last one shorter

// Ids of a chunk: eos (0) at its end, so that documents may end there.
std::vector<uint16_t> chunk_tokens(bool last) {
  std::vector<uint16_t> tokens(kChunk, 5);
  if (last) {
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<uint16_t>(1 + i % 250);
  }
  tokens.back() = 0;
  return tokens;
}

// Copies the stored bytes of the two chunks of `from` to every chunk of a dataset as long as asked.
void write_repeated(hid_t file, hid_t from) {
  const hid_t creation = H5Dget_create_plist(from), type = H5Dget_type(from);
  const hsize_t length = static_cast<hsize_t>(kTokens), limit = H5S_UNLIMITED;
  const hid_t space = H5Screate_simple(1, &length, &limit);
  const hid_t to = H5Dcreate2(file, "tokens", type, space, H5P_DEFAULT, creation, H5P_DEFAULT);
  ASSERT_GE(to, 0);
  std::vector<char> bytes[2];
  for (const hsize_t which : {0, 1}) {
    const hsize_t place = which * kChunk;
    hsize_t size_bytes = 0;
    uint32_t filters = 0;
    ASSERT_GE(H5Dget_chunk_storage_size(from, &place, &size_bytes), 0);
    bytes[which].resize(size_bytes);
    ASSERT_GE(H5Dread_chunk(from, H5P_DEFAULT, &place, &filters, bytes[which].data()), 0);
  }
  for (int64_t chunk = 0; chunk < kChunks; ++chunk) {
    const hsize_t place = static_cast<hsize_t>(chunk * kChunk);
    const std::vector<char>& stored = bytes[chunk + 1 == kChunks];
    ASSERT_GE(H5Dwrite_chunk(to, H5P_DEFAULT, 0, &place, stored.size(), stored.data()), 0);
  }
  H5Dclose(to);
  H5Sclose(space);
  H5Tclose(type);
  H5Pclose(creation);
}

// Everything but the tokens, and two chunks of them to copy from.
void write_frame(const std::filesystem::path& path) {
  std::vector<uint16_t> tokens = chunk_tokens(false);
  const std::vector<uint16_t> last = chunk_tokens(true);
  tokens.insert(tokens.end(), last.begin(), last.end());
  Hdf5File file = Hdf5File::create(path);
  file.write_dataset("two_chunks", tokens, kChunk, /*gzip_level=*/9);
  file.write_dataset("document_offsets",
                     std::vector<uint64_t>{0, kDocument, 2 * kDocument, kTokens});
  file.write_int_attribute("format_version", 1);
  file.write_int_attribute("vocab_size", 251);
  file.write_int_attribute("eos_token_id", 0);
  file.write_int_attribute("token_count", kTokens);
  file.write_int_attribute("document_count", 3);
  for (const char* name : {"tokenizer_sha256", "source", "content_sha256"}) {
    file.write_string_attribute(name, "made by a test");
  }
  file.close();
}

class LargeShard : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    dir_ = new test::TempDir;
    write_frame(path());
    const hid_t file = H5Fopen(path().c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
    ASSERT_GE(file, 0);
    const hid_t from = H5Dopen2(file, "two_chunks", H5P_DEFAULT);
    write_repeated(file, from);
    H5Dclose(from);
    H5Ldelete(file, "two_chunks", H5P_DEFAULT);
    ASSERT_GE(H5Fclose(file), 0);
  }
  static void TearDownTestSuite() { delete dir_; }
  static std::filesystem::path path() { return *dir_ / "large.h5"; }

  static int32_t expected_token(int64_t index) {
    const int64_t place = index % kChunk;
    if (place == kChunk - 1) return 0;
    return index / kChunk + 1 == kChunks ? static_cast<int32_t>(1 + place % 250) : 5;
  }

  static test::TempDir* dir_;
};
test::TempDir* LargeShard::dir_ = nullptr;

TEST_F(LargeShard, TokensAndOffsetsBeyondTwoToThe31AreRead) {
  const ShardReader reader(path());
  ASSERT_EQ(reader.info().token_count, kTokens);
  for (const int64_t begin : {int64_t{0}, (int64_t{1} << 31) - 4, kTokens - 8}) {
    std::vector<int32_t> tokens(8);
    reader.read_tokens(begin, 8, tokens.data());
    for (int64_t i = 0; i < 8; ++i) {
      EXPECT_EQ(tokens[static_cast<size_t>(i)], expected_token(begin + i)) << begin + i;
    }
  }
  EXPECT_THAT(reader.read_document_offsets(1, 3),
              ::testing::ElementsAre(kDocument, 2 * kDocument, kTokens));
  EXPECT_THROW(reader.read_tokens(kTokens - 7, 8, std::vector<int32_t>(8).data()), Error);
}

TEST_F(LargeShard, WindowsAreCountedAndPlacedIn64Bits) {
  constexpr int64_t kLength = 1000;
  const WindowSet windows({path().string()}, kLength, WindowSet::ShortWindows::kKeep);
  ASSERT_EQ(windows.size(), (kTokens - 1 + kLength - 1) / kLength);
  for (const int64_t index : {int64_t{0}, (int64_t{1} << 31) / kLength, windows.size() - 1}) {
    const TokenBatch batch = windows.read_batch({index});
    const int64_t targets = std::min(kLength, kTokens - 1 - index * kLength);
    EXPECT_EQ(batch.counted_targets, targets);
    for (int64_t t = 0; t <= targets; ++t) {
      ASSERT_EQ(batch.tokens[static_cast<size_t>(t)], expected_token(index * kLength + t)) << t;
    }
  }
  // The document that begins at 2^31 begins inside its window.
  const int64_t index = (int64_t{1} << 31) / kLength, place = (int64_t{1} << 31) % kLength;
  const TokenBatch batch = windows.read_batch({index});
  EXPECT_EQ(batch.document_start[static_cast<size_t>(place - 1)], 0);
  EXPECT_EQ(batch.document_start[static_cast<size_t>(place)], place);
  EXPECT_THAT(windows.describe(index), HasSubstr(str("tokens ", index * kLength, " to ")));
}

// Windows of one token: more than 2^31 of them, so that their numbers need 64 bits too.
TEST_F(LargeShard, MoreThanTwoToThe31WindowsStreamInOrder) {
  const WindowSet windows({path().string()}, 1, WindowSet::ShortWindows::kDrop);
  ASSERT_EQ(windows.size(), kTokens - 1);
  ASSERT_GT(windows.size(), int64_t{1} << 31);
  const TokenBatch last = windows.read_batch({windows.size() - 1});
  EXPECT_THAT(last.tokens, ::testing::ElementsAre(expected_token(kTokens - 2), 0));
  constexpr int64_t kRows = 4, kStep = (int64_t{1} << 33) / kRows + 7;
  BatchLoader loader(windows,
                     {.seed = 3, .global_rows = kRows, .last_row = kRows, .first_step = kStep});
  const TokenBatch batch = loader.next();
  for (int64_t row = 0; row < kRows; ++row) {
    const int64_t sequence = kStep * kRows + row;
    const int64_t window =
        window_at(3, sequence / windows.size(), sequence % windows.size(), windows.size());
    EXPECT_EQ(batch.window_index[static_cast<size_t>(row)], window);
    EXPECT_EQ(batch.tokens[static_cast<size_t>(2 * row)], expected_token(window));
  }
}

int64_t resident_bytes() {
  int64_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

// Growth of resident memory from opening the set at a step to its first rows.
int64_t growth_of_resume(const std::string& pattern, int64_t step, int64_t* num_tokens) {
  const int64_t before = resident_bytes();
  const WindowSet windows({pattern}, 2048, WindowSet::ShortWindows::kDrop);
  BatchLoader loader(windows, {.seed = 3, .global_rows = 512, .last_row = 8, .first_step = step});
  const TokenBatch batch = loader.next();
  EXPECT_EQ(batch.window_index[7], TrainingOrder(3, windows.sources()).window_of(512 * step + 7));
  *num_tokens = windows.size() * 2048;
  return resident_bytes() - before;
}

// Ten billion tokens: the shard under five names (links, which the set takes for five files).
TEST_F(LargeShard, AResumeFarIntoTenBillionTokensIsQuickAndSmall) {
  const std::filesystem::path folder = *dir_ / "ten_billion";
  std::filesystem::create_directory(folder);
  for (int i = 0; i < 5; ++i) std::filesystem::create_hard_link(path(), folder / str(i, ".h5"));
  int64_t num_tokens = 0;
  const int64_t one_shard = growth_of_resume(path().string(), 0, &num_tokens);
  const auto start = std::chrono::steady_clock::now();
  const int64_t whole = growth_of_resume((folder / "*.h5").string(), 1000000, &num_tokens);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::cout << "resume at step 1,000,000 of " << with_commas(num_tokens) << " tokens: " << seconds
            << " s, " << (whole >> 20) << " MiB (one shard of them: " << (one_shard >> 20)
            << " MiB)\n";
  EXPECT_GT(num_tokens, 10'000'000'000);
  EXPECT_LT(whole, one_shard + (int64_t{32} << 20));
}

}  // namespace
}  // namespace cplm
