// See argument_checks.h.
#include "base/argument_checks.h"

#include <CLI/App.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "cplm/base.h"

namespace cplm {
namespace {

constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

// The number that all of the text spells.
template <class Number>
bool read_whole_text(std::string_view text, Number& value) {
  const char* text_end = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), text_end, value);
  return error == std::errc() && end == text_end;
}

// A number of any size in plain digits.
bool is_plain(std::string_view text) {
  if (text.starts_with('-')) text.remove_prefix(1);
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos &&
         (text.size() == 1 || text.front() != '0');
}

std::optional<uint64_t> read_magnitude(std::string_view text) {
  const std::string_view prefix = text.substr(0, 2);
  const int base = prefix == "0x" || prefix == "0X"   ? 16
                   : prefix == "0o" || prefix == "0O" ? 8
                   : prefix == "0b" || prefix == "0B" ? 2
                                                      : 10;
  if (base != 10) text.remove_prefix(prefix.size());
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error == std::errc() && end == text.data() + text.size()) return value;
  constexpr double kMostExact = 9007199254740992.0;
  double number = 0;
  const bool is_whole = base == 10 && read_whole_text(text, number) && number >= 0 &&
                        number <= kMostExact && number == std::floor(number);
  return is_whole ? std::optional(static_cast<uint64_t>(number)) : std::nullopt;
}

// What somebody who wrote 010, 0x10, 1_000, 1'000, 1e3 or +5 meant; "" where that cannot be told.
std::string plain_spelling(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  std::string digits(text);
  std::erase_if(digits, [](char c) { return c == '_' || c == '\''; });
  const std::optional<uint64_t> magnitude = read_magnitude(digits);
  return magnitude ? str(negative && *magnitude > 0 ? "-" : "", *magnitude) : "";
}

}  // namespace

template <class Number>
std::optional<Number> read_whole_number(std::string_view text) {
  Number value = 0;
  return is_plain(text) && read_whole_text(text, value) ? std::optional(value) : std::nullopt;
}
template std::optional<int64_t> read_whole_number(std::string_view text);
template std::optional<uint64_t> read_whole_number(std::string_view text);

std::string found_number(std::string_view text, std::string_view suffix) {
  if (text.empty()) return "found nothing";
  std::string_view number = text;
  if (number.ends_with(suffix)) number.remove_suffix(suffix.size());
  const std::string plain = plain_spelling(number);
  const bool is_other = !plain.empty() && plain != number;
  return str("found ", text, is_other ? str("; write ", plain, text.substr(number.size())) : "");
}

ArgumentCheck whole_between(int64_t least, int64_t most) {
  return [least, most](const std::string& text) -> std::string {
    const std::optional<int64_t> value = read_whole_number<int64_t>(text);
    if (value && *value >= least && *value <= most) return "";
    const bool is_beyond_limits = is_plain(text) && !value;
    std::string range = least > kLeast ? str(" from ", least) : "";
    if (most < kMost || is_beyond_limits) range += str(range.empty() ? " up to " : " to ", most);
    return str("expected a whole number", range, ", ", found_number(text));
  };
}

ArgumentCheck whole_from(int64_t least) { return whole_between(least, kMost); }

ArgumentCheck number_between(double least, double most) {
  return [least, most](const std::string& text) -> std::string {
    double value = 0;
    if (read_whole_text(text, value) && value >= least && value <= most) return "";
    return str("expected a number from ", least, " to ", most, ", found ", text);
  };
}

std::string seed_problem(const std::string& text) {
  if (read_whole_number<uint64_t>(text)) return "";
  return str("expected a whole number from 0 to 2^64 - 1, ", found_number(text));
}

void check_whole_numbers(CLI::App& command) {
  for (CLI::Option* option : command.get_options([](CLI::Option*) { return true; })) {
    const std::string type = option->get_type_name();
    if (type.starts_with("INT")) option->check(whole_from(kLeast));
    if (type.starts_with("UINT")) option->check(seed_problem);
  }
  for (CLI::App* below : command.get_subcommands([](CLI::App*) { return true; })) {
    check_whole_numbers(*below);
  }
}

}  // namespace cplm
