// Mutated configs: each loads to values that stand in its text, or ends in one line with file and
// line number; no crash, no hang, no value other than what is written. --trials N and --first-seed
// N for more than scripts/test runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <regex>

#include "fuzz/forked_trials.h"
#include "support/config_text.h"

namespace cplm::test {
namespace {

using Flat = std::map<std::string, std::string>;

// Cuts, swaps, doubles and replaces pieces of a good config.
class YamlMutator {
 public:
  explicit YamlMutator(uint64_t seed) : random_(seed) {}

  size_t below(size_t bound) { return random_() % bound; }

  template <size_t size>
  const char* any_of(const char* const (&texts)[size]) {
    return texts[below(size)];
  }

  std::string mutate(std::string text) {
    for (size_t times = 1 + below(2); times > 0; --times) mutate_once(text);
    return text;
  }

 private:
  void mutate_once(std::string& text) {
    static constexpr const char* kPieces[] = {"\t",
                                              "\n",
                                              "  ",
                                              "- ",
                                              ": ",
                                              "? ",
                                              "{",
                                              "}",
                                              "[",
                                              "]",
                                              ",",
                                              "*a",
                                              "&a ",
                                              "!",
                                              "!!int ",
                                              "|",
                                              ">",
                                              "'",
                                              "\"",
                                              "#",
                                              "%",
                                              "@",
                                              "`",
                                              "~",
                                              "null",
                                              "yes",
                                              "010",
                                              "0x1F",
                                              "1_0",
                                              "1e400",
                                              ".nan",
                                              "-.inf",
                                              "<<: ",
                                              "---\n",
                                              "...\n",
                                              "\xff",
                                              "\xc3",
                                              "\x01",
                                              "\\",
                                              "-1",
                                              "0",
                                              "1e15",
                                              "\xe2\x80\xa8",
                                              "1e-3",
                                              "true",
                                              "full",
                                              "\r",
                                              "model:\n",
                                              "99999999999999999999"};
    if (text.empty()) text = "a";
    const size_t at = below(text.size());
    const size_t length = std::min(text.size() - at, 1 + below(20));
    switch (below(6)) {
      case 0:
        text[at] = static_cast<char>(below(256));
        break;
      case 1:
        text.insert(at, any_of(kPieces));
        break;
      case 2:
        text.erase(at, length);
        break;
      case 3:
        text.insert(below(text.size()), text.substr(at, length));
        break;
      case 4:
        replace_value(text, at, any_of(kPieces));
        break;
      default:
        text.resize(at);
    }
  }

  // The value after the next ": " becomes another one.
  static void replace_value(std::string& text, size_t at, const std::string& value) {
    const size_t colon = text.find(": ", at);
    if (colon == std::string::npos) return;
    const size_t end = std::min(text.find('\n', colon), text.size());
    text.replace(colon + 2, end - colon - 2, value);
  }

  std::mt19937_64 random_;
};

// What a scalar means by docs alone: decimal digits, no sign of octal, hexadecimal or grouping.
std::optional<long double> number_of(const std::string& text) {
  static const std::regex decimal(R"([-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?)");
  if (!std::regex_match(text, decimal)) return std::nullopt;
  return std::strtold(text.c_str(), nullptr);
}

// As the number was read: doubles are rounded once.
bool same_number(long double written, long double read) {
  return written == read || static_cast<double>(written) == static_cast<double>(read);
}

bool means_the_same(const std::string& written, const std::string& read) {
  const auto a = number_of(written), b = number_of(read);
  if (a && b) return same_number(*a, *b);
  return !a && !b && written == read;
}

// The scalars of a text, without quotes and brackets.
std::vector<std::string> scalars_of(const std::string& text) {
  std::vector<std::string> scalars(1);
  for (const char c : text) {
    if (std::string(" \t\r\n,:{}[]\"'").find(c) == std::string::npos) {
      scalars.back() += c;
    } else if (!scalars.back().empty()) {
      scalars.emplace_back();
    }
  }
  if (scalars.back().empty()) scalars.pop_back();
  return scalars;
}

// Every value that differs from `before` is a default (its key went) or stands in the text.
std::string unexplained_value(const std::string& text, const Flat& before, const Flat& after) {
  static const Flat defaults = flatten_config(Config());
  const std::vector<std::string> written = scalars_of(text);
  const auto value_in = [](const Flat& flat, const std::string& key) {
    const auto found = flat.find(key);
    return found == flat.end() ? std::string() : found->second;
  };
  for (const auto& [key, value] : after) {
    if (value == value_in(before, key) || value == value_in(defaults, key)) continue;
    for (const std::string& scalar : scalars_of(value)) {
      const bool stands = std::any_of(written.begin(), written.end(), [&](const auto& each) {
        return means_the_same(each, scalar);
      });
      const bool escaped =
          text.find('\\') != std::string::npos || value.find('\\') != std::string::npos;
      if (!stands && !escaped) return str(key, " became ", value, ", which is not written");
    }
  }
  return "";
}

// Loads; when it does, `check` says what is wrong with the values.
template <class Check>
TrialResult try_to_load(const std::string& text, const std::vector<std::string>& overrides,
                        const std::string& where, const Check& check) {
  try {
    const Config config = parse_config(text, "fuzz.yaml", overrides);
    if (parse_config(dump_config(config), "dump.yaml") != config) {
      return {true, "the dump reads as another config"};
    }
    return {true, check(flatten_config(config))};
  } catch (const Error& error) {
    const std::string message = error.what();
    const bool clear = error.code() == ExitCode::kBadConfig &&
                       std::regex_search(message, std::regex("^(" + where + ")")) &&
                       message.find('\n') == std::string::npos;
    return {false, clear ? "" : str("an unclear error: ", message)};
  }
}

TEST(ConfigFuzz, MutatedTextsLoadAsWrittenOrEndInOneLine) {
  const std::string sources[] = {kSmallConfig, dump_config(small_config())};
  const Flat before = flatten_config(small_config());
  const auto text_of = [&](uint64_t seed) { return YamlMutator(seed).mutate(sources[seed % 2]); };
  const auto trial = [&](uint64_t seed) {
    const std::string text = text_of(seed);
    return try_to_load(text, {}, "fuzz\\.yaml:[0-9]+: ", [&](const Flat& after) {
      return unexplained_value(text, before, after);
    });
  };
  const TrialSummary summary = run_forked_trials({trial, text_of, num_trials()});
  EXPECT_THAT(summary.failures, testing::IsEmpty());
  EXPECT_GT(summary.accepted, num_trials() / 50);
  EXPECT_GT(summary.refused, num_trials() / 5);
}

// One key gets a made-up scalar: it is refused, or this key alone changes, to what is written.
std::string made_up_scalar(YamlMutator& random) {
  static constexpr const char* kWhole[] = {
      "0",          "1",          "7",          "64",
      "128",        "2147483648", "4294967296", "9007199254740993",
      "007",        "+5",         "-3",         "0x10",
      "0o17",       "1_000",      "1,000",      "9223372036854775808",
      "1e3",        "1E3",        "2e18",       "1e19",
      "1e-2",       "0.5e1",      ".5",         "5.",
      "5.0",        "64.5",       "1e",         "e5",
      "--4",        "1e400",      "-1e400",     "1e-400",
      ".nan",       ".inf",       "inf",        "nan",
      "0.1",        "1.0e-8",     "3.0e-3",     "16777217",
      "true",       "false",      "yes",        "no",
      "on",         "off",        "True",       "TRUE",
      "null",       "~",          "Null",       "full",
      "FULL",       "adamw",      "sliding",    "none",
      "cpu",        "wsd",        "12 # c",     "12#c",
      "'12'",       "\"12\"",     "[12]",       "{a: 12}",
      "",           " 12 ",       "12:",        "1:30",
      "2001-01-01", "a b",        "é",          "\"\\x41\""};
  std::string scalar = random.any_of(kWhole);
  if (random.below(3) == 0) {  // digits of any length, with a point or an exponent at times
    scalar.clear();
    for (size_t n = 1 + random.below(22); n > 0; --n) {
      scalar += static_cast<char>('0' + random.below(10));
    }
    if (random.below(3) == 0) scalar.insert(random.below(scalar.size() + 1), ".");
    if (random.below(3) == 0) scalar += str("e", random.below(2) == 0 ? "-" : "", random.below(20));
  }
  return scalar;
}

// The scalar as YAML means it: without a comment and spaces around it; booleans in one spelling.
std::string plain(std::string scalar) {
  scalar = scalar.substr(0, scalar.find(" #"));
  while (!scalar.empty() && scalar.back() == ' ') scalar.pop_back();
  scalar.erase(0, std::min(scalar.find_first_not_of(' '), scalar.size()));
  if (scalar == "True" || scalar == "TRUE") return "true";
  if (scalar == "Null" || scalar == "NULL") return "null";
  return scalar;
}

TEST(ConfigFuzz, AScalarChangesItsOwnKeyToWhatItSays) {
  const Flat before = flatten_config(small_config());
  std::vector<std::string> keys;
  for (const auto& [key, value] : before) keys.push_back(key);
  const auto override_of = [&](uint64_t seed) {
    YamlMutator random(seed);
    const std::string key = keys[random.below(keys.size())];
    return std::pair(key, made_up_scalar(random));
  };
  const auto trial = [&](uint64_t seed) {
    const auto [key, scalar] = override_of(seed);
    const auto check = [&, key = key, scalar = scalar](const Flat& after) -> std::string {
      for (const auto& [other, value] : after) {
        const auto found = before.find(other);
        if (other != key && (found == before.end() || found->second != value)) {
          return str("changed ", other, " to ", value);
        }
      }
      const auto found = after.find(key);
      const std::string value = found == after.end() ? "null" : found->second;
      const std::vector<std::string> read = scalars_of(value), written = scalars_of(plain(scalar));
      if (scalar.find('\\') != std::string::npos) return "";
      const bool is_null = plain(scalar) == "~" || plain(scalar).empty();
      const bool same =
          std::equal(read.begin(), read.end(), written.begin(), written.end(),
                     [](const auto& a, const auto& b) { return means_the_same(a, b); });
      return same || (is_null && value == "null") ? "" : str("read as ", value);
    };
    return try_to_load(kSmallConfig, {str(key, "=", scalar)},
                       "--set |small\\.yaml:|fuzz\\.yaml:", check);
  };
  const auto describe = [&](uint64_t seed) {
    const auto [key, scalar] = override_of(seed);
    return str(key, "=", scalar);
  };
  const TrialSummary summary = run_forked_trials({trial, describe, num_trials()});
  EXPECT_THAT(summary.failures, testing::IsEmpty());
  EXPECT_GT(summary.accepted, num_trials() / 50);
  EXPECT_GT(summary.refused, num_trials() / 5);
}

}  // namespace
}  // namespace cplm::test
