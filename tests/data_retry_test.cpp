// Reads that fail: which are done again, how often, and that a failure of the system in the middle
// of a run costs nothing but a wait. Real ones: /proc/self/mem answers EIO where nothing is mapped.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "cplm/base.h"
#include "data/read_retry.h"
#include "data/shard_cache.h"
#include "support/shards.h"
#include "support/temp_dir.h"

namespace cplm {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using test::TempDir;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

constexpr ReadRetry kQuick{.attempts = 4, .first_wait = milliseconds(1)};

struct Counts {
  int reads = 0, reopens = 0;
};

// Reads that fail with the given causes, one after another, and then succeed.
Counts retried(const std::vector<ReadError::Cause>& failures, const ReadRetry& retry = kQuick) {
  Counts counts;
  const auto read = [&] {
    const auto attempt = static_cast<size_t>(counts.reads++);
    if (attempt < failures.size()) throw ReadError("a.h5: broken", failures[attempt]);
  };
  try {
    read_with_retry(retry, read, [&] { ++counts.reopens; });
  } catch (const Error&) {
    counts.reads = -counts.reads;  // given up
  }
  return counts;
}

class Retry : public ::testing::Test {
 protected:
  Retry() { log::set_level("error"); }
  ~Retry() override { log::set_level("info"); }
};

TEST_F(Retry, FailuresOfTheSystemAreTriedAFewTimes) {
  constexpr auto kSystem = ReadError::Cause::kSystem;
  EXPECT_EQ(retried({}).reads, 1);
  EXPECT_EQ(retried({kSystem}).reads, 2);
  EXPECT_EQ(retried({kSystem, kSystem, kSystem}).reads, 4);
  EXPECT_EQ(retried({kSystem, kSystem, kSystem}).reopens, 3);
  EXPECT_EQ(retried({kSystem, kSystem, kSystem, kSystem}).reads, -4);
  EXPECT_EQ(retried({kSystem}, {.attempts = 1}).reads, -1);
}

TEST_F(Retry, AWrongChecksumIsReadOnceMore) {
  constexpr auto kSystem = ReadError::Cause::kSystem, kChecksum = ReadError::Cause::kChecksum;
  const ReadRetry never_ends{.attempts = 1000000, .first_wait = std::chrono::hours(1)};
  EXPECT_EQ(retried({kChecksum}, never_ends).reads, 2);  // at once
  EXPECT_EQ(retried({kChecksum, kChecksum}, never_ends).reads, -2);
  EXPECT_EQ(retried({kSystem, kChecksum, kSystem}).reads, 4);
}

TEST_F(Retry, OtherErrorsAreFinal) {
  int reads = 0;
  const auto read = [&] {
    ++reads;
    throw Error("a.h5: no such file", ExitCode::kBadData);
  };
  EXPECT_THROW(read_with_retry(kQuick, read, [] {}), Error);
  EXPECT_EQ(reads, 1);
}

TEST_F(Retry, ReopeningMayFailToo) {
  int reopens = 0;
  const auto read = [&] {
    if (reopens < 3) throw ReadError("first", ReadError::Cause::kSystem);
  };
  const auto reopen = [&] {
    if (++reopens < 3) throw ReadError("again", ReadError::Cause::kSystem);
  };
  EXPECT_NO_THROW(read_with_retry(kQuick, read, reopen));
  EXPECT_EQ(reopens, 3);
}

TEST_F(Retry, TheLastErrorSaysHowOftenAndHowLong) {
  const auto read = [] { throw ReadError("a.h5: stale handle", ReadError::Cause::kSystem); };
  EXPECT_THAT([&] { read_with_retry(kQuick, read, [] {}); },
              ThrowsMessage<Error>(HasSubstr("a.h5: stale handle (4 attempts over 0.007 s)")));
}

TEST_F(Retry, OnlyWhatMayPassIsTriedAgain) {
  for (const int number : {EIO, ESTALE, ETIMEDOUT, EAGAIN}) EXPECT_TRUE(may_pass(number));
  for (const int number : {ENOENT, EACCES, EPERM, EISDIR, ENOMEM, EMFILE, EINVAL, EBADF, 0}) {
    EXPECT_FALSE(may_pass(number));
  }
}

// ---- with HDF5 in between
class ShardRetry : public Retry {
 protected:
  static constexpr int64_t kChunk = 65536;

  void SetUp() override {
    contents_ = test::text_like_contents(3 * kChunk, 500, 1);
    write_shard(path_, contents_);
    shards_ = {ShardReader(path_).info()};
  }

  // Every open descriptor of the shard answers EIO from now on.
  void break_descriptors() const {
    const int broken = ::open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
    ASSERT_GE(broken, 0);
    int num_broken = 0;
    for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
      std::error_code gone;
      if (fs::read_symlink(entry.path(), gone) != path_) continue;
      ASSERT_GE(::dup2(broken, std::stoi(entry.path().filename())), 0);
      ++num_broken;
    }
    ::close(broken);
    ASSERT_GT(num_broken, 0);
  }

  void expect_read(ShardCache& cache, int64_t begin) const {
    std::vector<int32_t> tokens(100);
    cache.read_tokens(0, begin, 100, tokens.data());
    const auto expected = contents_.tokens.begin() + begin;
    EXPECT_EQ(tokens, std::vector<int32_t>(expected, expected + 100));
  }

  const TempDir dir_;
  const fs::path path_ = fs::canonical(dir_.path()) / "a.h5";
  ShardContents contents_;
  std::vector<ShardInfo> shards_;
};

TEST_F(ShardRetry, AReadThatTheSystemFailsIsDoneAgainOnAFreshHandle) {
  ShardCache cache(shards_, 1, kQuick);
  expect_read(cache, 0);
  break_descriptors();
  expect_read(cache, kChunk);
  break_descriptors();
  EXPECT_EQ(cache.document_starts_between(0, 0, kChunk).empty(), false);
  ShardCache without(shards_, 1, {.attempts = 1});
  expect_read(without, 0);
  break_descriptors();
  EXPECT_THAT([&] { expect_read(without, kChunk); },
              ThrowsMessage<Error>(AllOf(HasSubstr("a.h5: dataset 'tokens'"),
                                         HasSubstr("Input/output error (1 attempts"))));
}

TEST_F(ShardRetry, AFileThatStaysUnreadableStopsTheRun) {
  ShardCache cache(shards_, 1, kQuick);
  fs::remove(path_);
  fs::create_symlink("/proc/self/mem", path_);
  EXPECT_THAT([&] { expect_read(cache, 0); },
              ThrowsMessage<Error>(AllOf(HasSubstr("a.h5: cannot be opened as HDF5"),
                                         HasSubstr("Input/output error (4 attempts over 0.007"))));
}

TEST_F(ShardRetry, DamageInTheFileIsReadTwiceAndNamed) {
  const int64_t size = static_cast<int64_t>(fs::file_size(path_));
  std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(size / 2);
  const char byte = static_cast<char>(file.peek());
  file.seekp(size / 2);
  file.put(static_cast<char>(byte ^ 1));
  file.close();
  ShardCache cache(shards_, 1, {.attempts = 1000000, .first_wait = std::chrono::hours(1)});
  EXPECT_THAT(
      [&] {
        for (int64_t chunk = 0; chunk < 3; ++chunk) expect_read(cache, chunk * kChunk);
      },
      ThrowsMessage<Error>(AllOf(HasSubstr("checksum"), Not(HasSubstr("attempts")))));
}

TEST_F(ShardRetry, AMissingOrForeignFileIsNotWaitedFor) {
  const ReadRetry never_ends{.attempts = 1000000, .first_wait = std::chrono::hours(1)};
  ShardCache cache(shards_, 1, never_ends);
  fs::remove(path_);
  EXPECT_THAT([&] { expect_read(cache, 0); }, ThrowsMessage<Error>(HasSubstr("No such file")));
  std::ofstream(path_) << "errno = 5, error message = 'Input/output error'";
  EXPECT_THAT([&] { expect_read(cache, 0); }, ThrowsMessage<Error>(HasSubstr("signature")));
}

// A name that looks like the library's report of a failure that may pass.
TEST_F(ShardRetry, NamesDoNotDecide) {
  const fs::path odd = dir_ / "errno = 5, error message = 'x";
  EXPECT_THAT(
      [&] {
        read_with_retry(
            {.attempts = 2, .first_wait = std::chrono::hours(1)}, [&] { ShardReader reader(odd); },
            [] {});
      },
      ThrowsMessage<Error>(HasSubstr("No such file")));
}

}  // namespace
}  // namespace cplm
