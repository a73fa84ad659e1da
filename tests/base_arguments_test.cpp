// Whole numbers of the command line (base/argument_checks.h).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <limits>
#include <optional>

#include "base/argument_checks.h"
#include "base/excerpt.h"

namespace cplm {
namespace {

TEST(WholeNumbers, PlainDigitsAlone) {
  EXPECT_EQ(read_whole_number<int64_t>("0"), 0);
  EXPECT_EQ(read_whole_number<int64_t>("-12"), -12);
  EXPECT_EQ(read_whole_number<int64_t>("9223372036854775807"), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(read_whole_number<uint64_t>("18446744073709551615"),
            std::numeric_limits<uint64_t>::max());
  for (const char* text : {"", "-", "010", "-010", "00", "0x10", "1_000", "1'000", "1e3", "+5",
                           " 5", "5 ", "1.0", "1k", "9223372036854775808", "--1"}) {
    EXPECT_EQ(read_whole_number<int64_t>(text), std::nullopt) << text;
  }
  EXPECT_EQ(read_whole_number<uint64_t>("-1"), std::nullopt);
  EXPECT_EQ(read_whole_number<uint64_t>("18446744073709551616"), std::nullopt);
}

TEST(WholeNumbers, AMessageTellsThePlainSpelling) {
  EXPECT_EQ(found_number("010"), "found 010; write 10");
  EXPECT_EQ(found_number("-010"), "found -010; write -10");
  EXPECT_EQ(found_number("00"), "found 00; write 0");
  EXPECT_EQ(found_number("0x1F"), "found 0x1F; write 31");
  EXPECT_EQ(found_number("0o17"), "found 0o17; write 15");
  EXPECT_EQ(found_number("0b101"), "found 0b101; write 5");
  EXPECT_EQ(found_number("1_000"), "found 1_000; write 1000");
  EXPECT_EQ(found_number("1'000"), "found 1'000; write 1000");
  EXPECT_EQ(found_number("1e3"), "found 1e3; write 1000");
  EXPECT_EQ(found_number("2.0"), "found 2.0; write 2");
  EXPECT_EQ(found_number("+5"), "found +5; write 5");
  EXPECT_EQ(found_number(" 5 "), "found  5 ; write 5");
  EXPECT_EQ(found_number("02k", "k"), "found 02k; write 2k");
  EXPECT_EQ(found_number(""), "found nothing");
  for (const char* text : {"10", "-1", "x", "1.5", "nan", "inf", "1,2", "0x", "-", "1e99", "--5"}) {
    EXPECT_EQ(found_number(text), std::string("found ") + text);
  }
}

TEST(WholeNumbers, AMessageTellsTheRange) {
  EXPECT_EQ(whole_from(1)("1"), "");
  EXPECT_EQ(whole_from(1)("0"), "expected a whole number from 1, found 0");
  EXPECT_EQ(whole_between(2, 4)("5"), "expected a whole number from 2 to 4, found 5");
  EXPECT_EQ(whole_from(1)("9223372036854775808"),
            "expected a whole number from 1 to 9223372036854775807, found 9223372036854775808");
}

// The options of a command below a command, as every one of the program.
class CheckedOptions : public testing::Test {
 protected:
  CheckedOptions() {
    CLI::App* command = app_.add_subcommand("outer")->add_subcommand("inner");
    command->add_option("--signed", signed_);
    command->add_option("--unsigned", unsigned_);
    command->add_option("--optional", optional_);
    command->add_option("--list", list_)->delimiter(',');
    command->add_option("--text", text_);
    command->add_option("--double", double_);
    command->add_flag("--flag", flag_);
    check_whole_numbers(app_);
  }
  std::string parse(const std::string& option) {
    try {
      app_.parse("outer inner " + option);
    } catch (const CLI::ParseError& error) {
      return error.what();
    }
    return "";
  }

  CLI::App app_;
  int64_t signed_ = 0;
  uint64_t unsigned_ = 0;
  std::optional<int64_t> optional_;
  std::vector<int64_t> list_;
  std::string text_;
  double double_ = 0;
  bool flag_ = false;
};

TEST_F(CheckedOptions, OfEveryWholeType) {
  EXPECT_EQ(parse("--signed 010"), "--signed: expected a whole number, found 010; write 10");
  EXPECT_EQ(parse("--signed=-010"), "--signed: expected a whole number, found -010; write -10");
  EXPECT_EQ(parse("--unsigned 0x10"),
            "--unsigned: expected a whole number from 0 to 2^64 - 1, found 0x10; write 16");
  EXPECT_EQ(parse("--unsigned=-1"),
            "--unsigned: expected a whole number from 0 to 2^64 - 1, found -1");
  EXPECT_EQ(parse("--optional 010"), "--optional: expected a whole number, found 010; write 10");
  EXPECT_EQ(parse("--list 1,010"), "--list: expected a whole number, found 010; write 10");
  EXPECT_EQ(parse("--signed 99999999999999999999"),
            "--signed: expected a whole number up to 9223372036854775807, found "
            "99999999999999999999");
}

TEST_F(CheckedOptions, OthersStayAsTheyAre) {
  EXPECT_EQ(
      parse("--signed=-3 --unsigned 4 --optional 5 --list 6,7 --text 010 --double 1e3 --flag"), "");
  EXPECT_EQ(signed_, -3);
  EXPECT_EQ(unsigned_, 4U);
  EXPECT_EQ(optional_, 5);
  EXPECT_EQ(list_, (std::vector<int64_t>{6, 7}));
  EXPECT_EQ(text_, "010");
  EXPECT_EQ(double_, 1000);
  EXPECT_TRUE(flag_);
}

TEST(Excerpt, EndsBetweenCharacters) {
  EXPECT_EQ(excerpt("short"), "short");
  EXPECT_EQ(excerpt(std::string(80, 'x')), std::string(80, 'x'));
  EXPECT_EQ(excerpt(std::string(1000, 'x')), std::string(80, 'x') + "...");
  EXPECT_EQ(excerpt(std::string(79, 'x') + "\u00e9"), std::string(79, 'x') + "...");
  EXPECT_EQ(excerpt(std::string(1000, '\x80')).size(), 80U);  // not UTF-8
}

}  // namespace
}  // namespace cplm
