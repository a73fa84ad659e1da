// Text for people and for YAML: near names, numbers with commas, durations, exact decimals.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "cplm/base.h"

namespace cplm {
namespace {

// Case and separators do not matter to somebody who mistypes: "hiddenSize" is "hidden_size".
std::string normalised(std::string_view name) {
  std::string out;
  for (char c : name) {
    if (c == '_' || c == '-' || c == ' ') continue;
    out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return out;
}

// Edits (insert, delete, replace, swap of neighbours) that turn a into b.
size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> two_ago(b.size() + 1), previous(b.size() + 1), current(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) previous[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    current[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replace = previous[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      current[j] = std::min({previous[j] + 1, current[j - 1] + 1, replace});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) current[j] = std::min(current[j], two_ago[j - 2] + 1);
    }
    std::swap(two_ago, previous);
    std::swap(previous, current);
  }
  return previous[b.size()];
}

}  // namespace

std::string nearest_name(std::string_view name, const std::vector<std::string>& known) {
  constexpr size_t kLongestName = 100;  // longer input is no misspelling, and costs quadratic time
  constexpr size_t kShortestPrefix = 3;
  const std::string wanted = normalised(name.substr(0, kLongestName));
  std::string best;
  size_t best_distance = SIZE_MAX;
  for (const std::string& candidate : known) {
    const std::string other = normalised(candidate);
    size_t distance = edit_distance(wanted, other);
    const size_t limit = std::max<size_t>(1, std::max(wanted.size(), other.size()) / 3);
    const bool prefix = wanted.size() >= kShortestPrefix && other.starts_with(wanted);
    if (distance > limit && !prefix) continue;
    if (distance >= std::max(wanted.size(), other.size())) continue;  // nothing in common
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

std::string with_commas(int64_t value) {
  const std::string digits = std::to_string(value);
  const size_t first_digit = value < 0 ? 1 : 0;
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > first_digit && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

std::string format_duration(double seconds) {
  constexpr double kLongest = 1.0e15;  // above it the whole seconds no longer fit our arithmetic
  if (!(seconds >= 0) || seconds > kLongest) return "unknown";
  const auto total = static_cast<int64_t>(std::floor(seconds));
  const int64_t days = total / 86400, hours = total / 3600 % 24, minutes = total / 60 % 60;
  const auto two_digits = [](int64_t value) { return str(value < 10 ? "0" : "", value); };
  if (days > 0) return str(days, "d", two_digits(hours), "h");
  if (hours > 0) return str(hours, "h", two_digits(minutes), "m");
  if (minutes > 0) return str(minutes, "m", two_digits(total % 60), "s");
  return str(total, "s");
}

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  std::string out;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) out += separator;
    out += parts[i];
  }
  return out;
}

std::string format_double(double value) {
  if (std::isnan(value)) return ".nan";
  if (std::isinf(value)) return value > 0 ? ".inf" : "-.inf";
  char buffer[64];
  const auto result = std::to_chars(buffer, buffer + sizeof buffer, value);
  std::string text(buffer, result.ptr);
  // YAML 1.1 takes a number for a float only with a dot, "1e-05" would be a string.
  if (text.find('.') == std::string::npos) {
    const size_t exponent = text.find('e');
    text.insert(exponent == std::string::npos ? text.size() : exponent, ".0");
  }
  return text;
}

}  // namespace cplm
