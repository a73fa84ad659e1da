// Numbers are read exactly: an integer never passes through a double, a double is the nearest one
// to its decimal.
#include "config/scalar.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>

#include "cplm/base.h"

namespace cplm {
namespace {

constexpr std::string_view kDigits = "0123456789";

bool all_digits(std::string_view text) {
  return !text.empty() && text.find_first_not_of(kDigits) == std::string_view::npos;
}

// sign, digits, and the power of ten they are multiplied by
struct Decimal {
  bool negative = false;
  std::string digits;
  int64_t exponent = 0;
};

// [-+]? digits [. digits] [e [-+]? digits], at least one digit before e, no leading zeros.
std::optional<Decimal> parse_decimal(std::string_view text) {
  Decimal out;
  const auto take_sign = [&text] {
    const bool negative = text.starts_with('-');
    if (negative || text.starts_with('+')) text.remove_prefix(1);
    return negative;
  };
  const auto take_digits = [&text] {
    const size_t count = std::min(text.find_first_not_of(kDigits), text.size());
    const std::string_view digits = text.substr(0, count);
    text.remove_prefix(count);
    return digits;
  };
  out.negative = take_sign();
  out.digits = take_digits();
  if (out.digits.size() > 1 && out.digits[0] == '0') return std::nullopt;
  if (text.starts_with('.')) {
    text.remove_prefix(1);
    const std::string_view fraction = take_digits();
    out.digits += fraction;
    out.exponent = -static_cast<int64_t>(fraction.size());
  }
  if (out.digits.empty()) return std::nullopt;
  if (text.starts_with('e') || text.starts_with('E')) {
    text.remove_prefix(1);
    const bool negative = take_sign();
    const std::string_view digits = take_digits();
    if (digits.empty()) return std::nullopt;
    int64_t exponent = 0;
    constexpr int64_t kLargest = 1'000'000;  // far beyond any double; keeps the sums small
    for (char c : digits) exponent = std::min(kLargest, exponent * 10 + (c - '0'));
    out.exponent += negative ? -exponent : exponent;
  }
  if (!text.empty()) return std::nullopt;
  return out;
}

// The magnitude when it is a whole number that fits 64 bits.
std::optional<uint64_t> whole_magnitude(const Decimal& decimal) {
  std::string digits = decimal.digits;
  int64_t exponent = decimal.exponent;
  if (digits.find_first_not_of('0') == std::string::npos) return 0;
  for (; exponent < 0; ++exponent) {
    if (digits.empty() || digits.back() != '0') return std::nullopt;
    digits.pop_back();
  }
  constexpr int64_t kMostZeros = 20;
  if (exponent > kMostZeros) return std::nullopt;
  digits.append(static_cast<size_t>(exponent), '0');
  uint64_t value = 0;
  const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (result.ec != std::errc()) return std::nullopt;
  return value;
}

// 0x10, 0o4, 0b1 -> what they mean in decimal.
std::optional<uint64_t> prefixed_value(std::string_view text) {
  if (text.size() < 3 || text[0] != '0') return std::nullopt;
  const char letter = text[1];
  const int base = letter == 'x' || letter == 'X'   ? 16
                   : letter == 'o' || letter == 'O' ? 8
                   : letter == 'b' || letter == 'B' ? 2
                                                    : 0;
  if (base == 0) return std::nullopt;
  uint64_t value = 0;
  const auto result = std::from_chars(text.data() + 2, text.data() + text.size(), value, base);
  if (result.ec != std::errc() || result.ptr != text.data() + text.size()) return std::nullopt;
  return value;
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

// What somebody who wrote this meant, where that can be told.
std::string number_hint(const Node& node) {
  if (node.kind != Node::Kind::kScalar) return "";
  if (node.quoted) return parse_decimal(node.text) ? "remove the quotes" : "";
  std::string text = node.text;
  if (const auto value = prefixed_value(text)) return str("write ", *value, " in decimal");
  const std::string word = lower(text);
  for (const char* name : {"nan", ".nan", "inf", ".inf", "-inf", "-.inf", "+.inf", "infinity"}) {
    if (word == name) return "it must be finite";
  }
  const size_t before = text.size();
  std::erase(text, '_');
  const bool negative = text.starts_with('-');
  const size_t first = text.find_first_not_of('0', negative ? 1 : 0);
  const bool leading_zero = all_digits(text.substr(negative ? 1 : 0, 2)) && text[negative] == '0';
  if (leading_zero) text = (negative ? "-" : "") + (first < text.size() ? text.substr(first) : "0");
  if (!leading_zero && text.size() == before) return "";
  return parse_decimal(text) ? str("write ", text) : "";
}

const std::string& plain_text(const Node& node, const Wanted& wanted) {
  if (node.kind != Node::Kind::kScalar || node.quoted) {
    fail_value(node, wanted, number_hint(node));
  }
  return node.text;
}

Decimal decimal_of(const Node& node, const Wanted& wanted) {
  const auto decimal = parse_decimal(plain_text(node, wanted));
  if (!decimal) fail_value(node, wanted, number_hint(node));
  return *decimal;
}

}  // namespace

void fail_value(const Node& node, const Wanted& wanted, const std::string& hint) {
  fail_at(node.place, str(wanted.key, ": expected ", wanted.expected, ", found ", describe(node),
                          hint.empty() ? "" : "; ", hint));
}

int64_t integer_of(const Node& node, const Wanted& wanted) {
  const Decimal decimal = decimal_of(node, wanted);
  const auto magnitude = whole_magnitude(decimal);
  constexpr auto kLargest = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  if (!magnitude || *magnitude > kLargest) fail_value(node, wanted);
  const auto value = static_cast<int64_t>(*magnitude);
  return decimal.negative ? -value : value;
}

uint64_t unsigned_of(const Node& node, const Wanted& wanted) {
  const Decimal decimal = decimal_of(node, wanted);
  const auto magnitude = whole_magnitude(decimal);
  if (!magnitude || (decimal.negative && *magnitude > 0)) fail_value(node, wanted);
  return *magnitude;
}

double number_of(const Node& node, const Wanted& wanted) {
  decimal_of(node, wanted);
  std::string_view text = node.text;
  if (text.starts_with('+')) text.remove_prefix(1);
  double value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc()) fail_value(node, wanted, "a double cannot hold it");
  return value;
}

bool boolean_of(const Node& node, const Wanted& wanted) {
  if (node.kind != Node::Kind::kScalar) fail_value(node, wanted);
  const std::string word = lower(node.text);
  const bool known_case = node.text == word || node.text == "True" || node.text == "TRUE" ||
                          node.text == "False" || node.text == "FALSE";
  if (!node.quoted && known_case && (word == "true" || word == "false")) return word == "true";
  for (const char* yes : {"true", "yes", "on", "y", "1"}) {
    if (word == yes) fail_value(node, wanted, "write true");
  }
  for (const char* no : {"false", "no", "off", "n", "0"}) {
    if (word == no) fail_value(node, wanted, "write false");
  }
  fail_value(node, wanted);
}

std::string text_of(const Node& node, const Wanted& wanted) {
  if (node.kind != Node::Kind::kScalar) fail_value(node, wanted);
  const std::string word = lower(node.text);
  // A path or name called "false" is far likelier a switch on the wrong key.
  if (!node.quoted && (word == "true" || word == "false")) {
    fail_value(node, wanted, str("if the word is meant, quote it: \"", node.text, "\""));
  }
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  if (std::any_of(node.text.begin(), node.text.end(), is_control)) {
    fail_value(node, wanted, "control characters are not allowed");
  }
  return node.text;
}

}  // namespace cplm
