// Text, hashes, logging and stop requests of src/base.
#include "cplm/base.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <csignal>
#include <limits>
#include <random>

#include "support/temp_dir.h"

namespace cplm {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

TEST(Text, NearestNameForgivesTyposCaseAndSeparators) {
  const std::vector<std::string> known = {"hidden_size", "vocab_size", "rope_theta", "lr", "betas"};
  EXPECT_EQ(nearest_name("hiden_size", known), "hidden_size");
  EXPECT_EQ(nearest_name("hiddenSize", known), "hidden_size");
  EXPECT_EQ(nearest_name("vocab-size", known), "vocab_size");
  EXPECT_EQ(nearest_name("rope_tehta", known), "rope_theta");
  EXPECT_EQ(nearest_name("hidden", known), "hidden_size");
  EXPECT_EQ(nearest_name("rl", known), "lr");
}

TEST(Text, NearestNameIsSilentWhenNothingIsNear) {
  EXPECT_EQ(nearest_name("banana", {"hidden_size", "lr"}), "");
  EXPECT_EQ(nearest_name("xy", {"lr"}), "");
  EXPECT_EQ(nearest_name("", {"lr"}), "");
  EXPECT_EQ(nearest_name("lr", {}), "");
  EXPECT_EQ(nearest_name(std::string(1 << 20, 'a'), {"hidden_size"}), "");
}

TEST(Text, WithCommas) {
  EXPECT_EQ(with_commas(0), "0");
  EXPECT_EQ(with_commas(999), "999");
  EXPECT_EQ(with_commas(1000), "1,000");
  EXPECT_EQ(with_commas(1234567), "1,234,567");
  EXPECT_EQ(with_commas(-123), "-123");
  EXPECT_EQ(with_commas(-1234), "-1,234");
  EXPECT_EQ(with_commas(std::numeric_limits<int64_t>::min()), "-9,223,372,036,854,775,808");
}

TEST(Text, FormatDuration) {
  EXPECT_EQ(format_duration(3.2), "3s");
  EXPECT_EQ(format_duration(75), "1m15s");
  EXPECT_EQ(format_duration(3725.2), "1h02m");
  EXPECT_EQ(format_duration(90000), "1d01h");
  EXPECT_EQ(format_duration(-1), "unknown");
  EXPECT_EQ(format_duration(std::nan("")), "unknown");
  EXPECT_EQ(format_duration(std::numeric_limits<double>::infinity()), "unknown");
}

TEST(Text, FormatDoubleIsAFloatInBothYamlVersions) {
  EXPECT_EQ(format_double(0.001), "0.001");
  EXPECT_EQ(format_double(1e-5), "1.0e-05");
  EXPECT_EQ(format_double(1.5e-8), "1.5e-08");
  EXPECT_EQ(format_double(10), "10.0");
  EXPECT_EQ(format_double(1e10), "1.0e+10");
  EXPECT_EQ(format_double(-0.0), "-0.0");
}

TEST(Text, FormatDoubleKeepsEveryBit) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 20000; ++i) {
    const double value = std::bit_cast<double>(static_cast<uint64_t>(random()));
    if (!std::isfinite(value)) continue;
    const std::string text = format_double(value);
    ASSERT_EQ(std::bit_cast<uint64_t>(std::strtod(text.c_str(), nullptr)),
              std::bit_cast<uint64_t>(value));
    ASSERT_THAT(text, MatchesRegex("-?[0-9]+\\.[0-9]+(e[-+][0-9]+)?"));
  }
}

TEST(Text, JoinAndStr) {
  EXPECT_EQ(join({}, ", "), "");
  EXPECT_EQ(join({"a", "b", "c"}, ", "), "a, b, c");
  EXPECT_EQ(str("a ", 3, " b"), "a 3 b");
}

TEST(Errors, CheckCarriesPartsAndCode) {
  try {
    CPLM_CHECK(1 + 1 == 3, "expected ", 3, ", found ", 2);
    FAIL() << "no Error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "expected 3, found 2");
    EXPECT_EQ(error.code(), ExitCode::kFailed);
  }
}

TEST(Hash, Sha256EqualsPublishedValues) {
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Hash, FileInPiecesEqualsWhole) {
  const test::TempDir dir;
  const std::string bytes((1 << 20) + 17, 'x');
  EXPECT_EQ(sha256_file(dir.write("x", bytes)), sha256_hex(bytes));
  EXPECT_THROW(sha256_file(dir / "missing"), Error);
  EXPECT_THROW(sha256_file(dir.path()), Error);
}

TEST(Hash, EndedHashRefusesMore) {
  Sha256 hash;
  hash.update("abc", 3);
  EXPECT_EQ(hash.hex(), sha256_hex("abc"));
  EXPECT_THROW(hash.hex(), Error);
}

TEST(Hash, Mix64AndNamesAreFixedForEver) {
  EXPECT_EQ(mix64(0), 0U);
  // The first output of splitmix64 seeded with 0, whose state is then the golden gamma.
  EXPECT_EQ(mix64(0x9e3779b97f4a7c15ULL), 0xe220a8397b1dcdafULL);
  EXPECT_EQ(hash_name(""), mix64(0xcbf29ce484222325ULL));
  EXPECT_EQ(hash_name("a"), mix64(0xaf63dc4c8601ec8cULL));
  EXPECT_NE(hash_name("model.norm.weight"), hash_name("model.norm.weighu"));
}

// Runs `body` in a child whose stderr is a terminal 40 columns wide; returns what it showed.
std::string shown_on_terminal(void (*body)()) {
  int master = -1;
  winsize size{.ws_row = 24, .ws_col = 40, .ws_xpixel = 0, .ws_ypixel = 0};
  const pid_t child = forkpty(&master, nullptr, nullptr, &size);
  if (child == 0) {
    body();
    _exit(0);
  }
  std::string shown;
  char buffer[4096];
  ssize_t count = 0;
  while ((count = read(master, buffer, sizeof buffer)) > 0) {
    shown.append(buffer, static_cast<size_t>(count));
  }
  close(master);
  waitpid(child, nullptr, 0);
  return shown;
}

TEST(Log, TerminalErasesTheStatusLineBeforeALogLine) {
  const std::string shown = shown_on_terminal([] {
    log::progress("step 1");
    log::progress("step 2");
    log::info("saved");
    log::warn("slow");
  });
  EXPECT_EQ(shown, "\r\033[Kstep 1\r\033[Kstep 2\r\033[Ksaved\r\nwarning: slow\r\n");
}

TEST(Log, TerminalStatusLineNeverWraps) {
  const std::string shown = shown_on_terminal([] { log::progress(std::string(500, 'x')); });
  EXPECT_EQ(shown, "\r\033[K" + std::string(39, 'x'));
}

TEST(Log, LinesGoToStderrAndFilesAndProgressOnlyToTerminals) {
  const test::TempDir dir;
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  EXPECT_FALSE(log::is_terminal());
  log::add_file(dir / "log.txt");
  log::progress("step 1");
  log::info("a {} line");
  log::debug("hidden");
  log::set_level("debug");
  log::debug("shown");
  log::set_level("info");
  log::error("bad");
  log::flush();
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "a {} line\nshown\nerror: bad\n");
  const std::string file = read_file(dir / "log.txt");
  EXPECT_THAT(file, HasSubstr(" info: a {} line\n"));
  EXPECT_THAT(file, HasSubstr(" error: bad\n"));
  EXPECT_THAT(file, Not(HasSubstr("hidden")));
}

TEST(Log, ALineIsOneLineThatNoTerminalObeys) {
  const test::TempDir dir;
  log::add_file(dir / "log.txt");
  testing::internal::CaptureStderr();
  log::info("a\nb");
  log::warn("\x1b[31m\r\t\x7f caf\u00e9");
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "a\\nb\nwarning: \\x1b[31m\\r\\t\\x7f caf\u00e9\n");
  EXPECT_THAT(read_file(dir / "log.txt"), Not(HasSubstr("\x1b")));
}

TEST(Log, FullDiskIsReportedOnceAndThenTheFileIsGivenUp) {
  const test::TempDir dir;
  std::filesystem::create_symlink("/dev/full", dir / "log.txt");
  log::add_file(dir / "log.txt");
  testing::internal::CaptureStderr();
  try {
    log::info("first");
    FAIL() << "no Error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("log.txt: the disk is full"));
  }
  EXPECT_NO_THROW(log::error("second"));
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "first\nerror: second\n");
}

TEST(Log, AFullDiskLeavesNoHalfLine) {
  const test::TempDir dir;
  const auto write_too_much = [&] {
    signal(SIGXFSZ, SIG_IGN);
    log::add_file(dir / "log.txt");
    log::info("fits");
    const rlim_t bytes = read_file(dir / "log.txt").size() + 10;
    const rlimit limit{.rlim_cur = bytes, .rlim_max = bytes};
    setrlimit(RLIMIT_FSIZE, &limit);
    try {
      log::info("does not fit");
    } catch (const Error& error) {
      _exit(std::string(error.what()).find("File too large") != std::string::npos ? 0 : 1);
    }
    _exit(2);
  };
  EXPECT_EXIT(write_too_much(), testing::ExitedWithCode(0), "");
  EXPECT_THAT(read_file(dir / "log.txt"), testing::EndsWith(" info: fits\n"));
}

TEST(Log, UnknownLevelNamesTheNearest) {
  try {
    log::set_level("inof");
    FAIL() << "no Error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadConfig);
    EXPECT_THAT(error.what(), HasSubstr("found \"inof\"; did you mean info?"));
  }
}

TEST(Stop, FirstSignalAsksTheSecondKills) {
  EXPECT_FALSE(stop_requested());
  EXPECT_EXIT(
      {
        install_stop_signals();
        raise(SIGTERM);
        _exit(stop_requested() ? 7 : 8);
      },
      testing::ExitedWithCode(7), "");
  EXPECT_EXIT(
      {
        install_stop_signals();
        raise(SIGTERM);
        raise(SIGINT);
        _exit(9);
      },
      testing::KilledBySignal(SIGINT), "");
}

}  // namespace
}  // namespace cplm
