// Mutated shards: each is refused by an Error that names the file, or gives exactly what is in it;
// no crash, no hang; and verify finds every change. --trials N and --first-seed N for more than
// scripts/test runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cplm/base.h"
#include "cplm/data.h"
#include "cplm/shard_tools.h"
#include "fuzz/byte_mutator.h"
#include "fuzz/forked_trials.h"
#include "support/raw_shard.h"
#include "support/shards.h"
#include "support/temp_dir.h"

namespace cplm::test {
namespace {

constexpr int64_t kLength = 24;  // of a window

// All that a run reads of a shard.
struct Read {
  std::vector<int32_t> tokens;
  std::vector<int64_t> offsets;
  std::vector<uint8_t> mask;

  bool operator==(const Read&) const = default;
};

Read read_shard(const std::filesystem::path& path) {
  const ShardReader reader(path);
  Read read;
  const int64_t count = reader.info().token_count;
  read.tokens.resize(static_cast<size_t>(count));
  reader.read_tokens(0, count, read.tokens.data());
  read.mask.resize(read.tokens.size());
  reader.read_loss_mask(0, count, read.mask.data());
  read.offsets = reader.read_document_offsets(0, reader.info().document_count + 1);
  return read;
}

// The document's start of each position, from the offsets alone.
int64_t start_in_window(const Read& shard, int64_t begin, int64_t position) {
  int64_t start = 0;
  for (const int64_t offset : shard.offsets) {
    if (offset > begin + position) break;
    start = std::max(start, offset - begin);
  }
  return start;
}

// What the windows of `path` say that `shard` does not; "" when they agree.
std::string windows_differ(const std::filesystem::path& path, const Read& shard) {
  const int64_t targets = static_cast<int64_t>(shard.tokens.size()) - 1;
  if (targets < 1) return "";
  const WindowSet windows({path.string()}, kLength, WindowSet::ShortWindows::kKeep);
  for (int64_t window = 0; window < windows.size(); ++window) {
    const TokenBatch batch = windows.read_batch({window});
    const int64_t begin = window * kLength;
    for (int64_t t = 0; t < std::min(kLength, targets - begin); ++t) {
      const auto at = static_cast<size_t>(t), in_shard = static_cast<size_t>(begin + t);
      if (batch.tokens[at] != shard.tokens[in_shard] ||
          batch.tokens[at + 1] != shard.tokens[in_shard + 1] ||
          batch.target_counted[at] != shard.mask[in_shard + 1] ||
          batch.document_start[at] != start_in_window(shard, begin, t)) {
        return str("window ", window, " is wrong at position ", t);
      }
    }
  }
  return "";
}

// Reads `path`; accepted means that it holds `expected`.
TrialResult try_to_read(const std::filesystem::path& path, const Read& expected) {
  try {
    const Read found = read_shard(path);
    if (found != expected) return {true, "other contents were accepted"};
    return {true, windows_differ(path, found)};
  } catch (const Error& error) {
    const std::string message = error.what();
    const bool clear = error.code() == ExitCode::kBadData &&
                       message.find(path.filename().string()) != std::string::npos &&
                       message.find('\n') == std::string::npos;
    return {false, clear ? "" : str("an unclear error: ", message)};
  }
}

class ShardFuzz : public testing::Test {
 protected:
  const TempDir dir_;
  const std::filesystem::path file_ = dir_ / "mutated.h5";
};

// Sound shards of each kind of storage, with what they hold.
struct Original {
  ShardContents contents;
  std::string bytes;
  Read read;
};

Original make_original(const TempDir& dir, int64_t vocab_size, bool masked, int gzip_level) {
  Original original;
  original.contents = text_like_contents(900, vocab_size, 5);
  original.contents.gzip_level = gzip_level;
  if (masked) {
    for (size_t i = 0; i < original.contents.tokens.size(); ++i) {
      original.contents.loss_mask.push_back(i % 5 == 0 ? 0 : 1);
    }
  }
  write_shard(dir / "original.h5", original.contents);
  original.bytes = read_file(dir / "original.h5");
  original.read = read_shard(dir / "original.h5");
  return original;
}

TEST_F(ShardFuzz, DamagedBytesAreNoticed) {
  const std::vector<Original> originals = {make_original(dir_, 500, true, 0),
                                           make_original(dir_, 100'000, false, 0),
                                           make_original(dir_, 500, false, 6)};
  const auto mutated = [&](uint64_t seed, std::string* done) {
    ByteMutator mutator(seed);
    std::string bytes = mutator.mutate(originals[seed % originals.size()].bytes);
    if (done != nullptr) *done = mutator.done();
    return bytes;
  };
  const auto trial = [&](uint64_t seed) -> TrialResult {
    const Original& original = originals[seed % originals.size()];
    const std::string bytes = mutated(seed, nullptr);
    std::filesystem::remove(file_);  // writing over it would wait for the disk
    dir_.write("mutated.h5", bytes);
    if (bytes == original.bytes) return {true, ""};  // zeros over zeros
    const TrialResult result = try_to_read(file_, original.read);
    if (!result.wrong.empty()) return result;
    if (verify_shard(file_).empty()) return {result.accepted, "verify calls it sound"};
    return result;
  };
  const auto describe = [&](uint64_t seed) {
    std::string done;
    mutated(seed, &done);
    return done;
  };
  const TrialSummary summary = run_forked_trials({trial, describe, num_trials()});
  EXPECT_THAT(summary.failures, testing::IsEmpty());
  EXPECT_EQ(summary.accepted + summary.refused, num_trials());
  EXPECT_GT(summary.refused, num_trials() / 2);
}

// A writer of sound checksums and unsound contents.
RawShard made_up_shard(uint64_t seed) {
  ByteMutator random(seed);
  RawShard shard;
  const int64_t vocab_size = 4 + static_cast<int64_t>(random.below(60));
  const bool bad_ids = random.below(4) == 0;
  shard.tokens.resize(random.below(120));
  for (uint16_t& token : shard.tokens) {
    token = static_cast<uint16_t>(random.below(static_cast<uint64_t>(vocab_size) + bad_ids));
  }
  shard.offsets = {0};
  while (shard.offsets.back() < shard.tokens.size()) {
    const uint64_t step = random.below(30) < 29 ? random.below(20) : ~0ULL - random.below(9);
    shard.offsets.push_back(std::min<uint64_t>(shard.tokens.size(), shard.offsets.back() + step));
  }
  shard.ints["vocab_size"] = vocab_size;
  shard.ints["token_count"] = static_cast<int64_t>(shard.tokens.size());
  shard.ints["document_count"] = static_cast<int64_t>(shard.offsets.size()) - 1;
  constexpr int64_t kHostile[] = {-1, 0, 1, 5, 65535, INT32_MAX, INT64_MAX, INT64_MIN};
  if (random.below(3) == 0) {
    auto attribute = shard.ints.begin();
    std::advance(attribute, static_cast<ptrdiff_t>(random.below(shard.ints.size())));
    attribute->second = kHostile[random.below(std::size(kHostile))];
  }
  return shard;
}

TEST_F(ShardFuzz, MadeUpContentsAreRefusedOrReadAsTheyAre) {
  const auto trial = [&](uint64_t seed) {
    const RawShard shard = made_up_shard(seed);
    shard.write(file_);
    Read expected;
    expected.tokens.assign(shard.tokens.begin(), shard.tokens.end());
    expected.offsets.assign(shard.offsets.begin(), shard.offsets.end());
    expected.mask.assign(shard.tokens.size(), 1);
    TrialResult result = try_to_read(file_, expected);
    const int64_t vocab_size = shard.ints.at("vocab_size");
    for (const int32_t token : expected.tokens) {
      if (result.accepted && token >= vocab_size) result.wrong = str("accepted the id ", token);
    }
    return result;
  };
  const auto describe = [](uint64_t seed) {
    std::string text;
    for (const auto& [name, value] : made_up_shard(seed).ints) text += str(name, " ", value, " ");
    return text;
  };
  const TrialSummary summary = run_forked_trials({trial, describe, num_trials() / 4});
  EXPECT_THAT(summary.failures, testing::IsEmpty());
  EXPECT_GT(summary.accepted, num_trials() / 40);
  EXPECT_GT(summary.refused, num_trials() / 40);
}

}  // namespace
}  // namespace cplm::test
