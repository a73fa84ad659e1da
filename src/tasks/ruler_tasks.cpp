// See ruler_tasks.h.
#include "tasks/ruler_tasks.h"

#include <algorithm>
#include <array>
#include <utility>

namespace cplm {
namespace {

constexpr std::array<std::pair<const char*, int64_t>, 5> kAnswerTokens = {
    {{"niah", 128}, {"vt", 30}, {"cwe", 120}, {"fwe", 50}, {"qa", 32}}};

std::string first_word(const std::string& task) { return task.substr(0, task.find('_')); }

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

std::string stripped(const std::string& text) {
  size_t begin = 0, end = text.size();
  while (begin < end && is_space(text[begin])) ++begin;
  while (end > begin && is_space(text[end - 1])) --end;
  return text.substr(begin, end - begin);
}

// The small letter of one below U+0530.
unsigned small_letter(unsigned c) {
  const auto in = [c](unsigned first, unsigned last) { return c >= first && c <= last; };
  if (in('A', 'Z') || (in(0xC0, 0xDE) && c != 0xD7)) return c + 32;
  // Pairs, the capital first: where it is even, and where it is odd.
  if ((in(0x100, 0x137) && c != 0x130) || in(0x14A, 0x177) || in(0x460, 0x481) ||
      in(0x1DE, 0x1EF) || in(0x1F8, 0x21F) || in(0x222, 0x233) || in(0x48A, 0x4BF) ||
      in(0x4D0, 0x52F)) {
    return c | 1U;
  }
  if (in(0x139, 0x148) || in(0x179, 0x17E) || in(0x4C1, 0x4CE)) return c % 2 == 1 ? c + 1 : c;
  if (c == 0x178) return 0xFF;
  if (c == 0x386) return 0x3AC;
  if (in(0x388, 0x38A)) return c + 37;
  if (c == 0x38C) return 0x3CC;
  if (in(0x38E, 0x38F)) return c + 63;
  if (in(0x391, 0x3AB) && c != 0x3A2) return c + 32;
  if (in(0x400, 0x40F)) return c + 80;
  if (in(0x410, 0x42F)) return c + 32;
  return c;
}

}  // namespace

const std::vector<std::string>& ruler_tasks() {
  static const std::vector<std::string> tasks = {"niah_single_1",
                                                 "niah_single_2",
                                                 "niah_single_3",
                                                 "niah_multikey_1",
                                                 "niah_multikey_2",
                                                 "niah_multikey_3",
                                                 "niah_multivalue",
                                                 "niah_multiquery",
                                                 "vt",
                                                 "cwe",
                                                 "fwe",
                                                 "qa_1",
                                                 "qa_2"};
  return tasks;
}

std::optional<int64_t> ruler_answer_tokens(const std::string& task) {
  const std::string word = first_word(task);
  for (const auto& [name, tokens] : kAnswerTokens) {
    if (word == name) return tokens;
  }
  return std::nullopt;
}

std::string ruler_cleaned(const std::string& answer) {
  std::string text = stripped(answer);
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c >= 0 && c < ' '; }, '\n');
  return stripped(text);
}

double ruler_score(const std::string& task, const std::string& answer,
                   const std::vector<std::string>& references) {
  const std::string text = lower_case(answer);
  const auto found = std::count_if(references.begin(), references.end(), [&](const auto& each) {
    return text.find(lower_case(each)) != std::string::npos;
  });
  if (first_word(task) == "qa") return found > 0 ? 100 : 0;
  return 100 * static_cast<double>(found) / static_cast<double>(references.size());
}

std::string lower_case(const std::string& utf8) {
  std::string text = utf8;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < 0x80) {
      text[i] = static_cast<char>(small_letter(byte));
    } else if (byte >= 0xC3 && byte <= 0xD4 && i + 1 < text.size()) {  // two bytes
      const unsigned small =
          small_letter((byte & 0x1FU) << 6 | (static_cast<unsigned char>(text[i + 1]) & 0x3FU));
      text[i] = static_cast<char>(0xC0U | small >> 6);
      text[++i] = static_cast<char>(0x80U | (small & 0x3FU));
    }
  }
  return text;
}

}  // namespace cplm
