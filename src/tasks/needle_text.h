// Needles in haystacks: sentences that give a key's number or code, in filler or among others like
// them, and the question for some.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/synthetic_sample.h"

namespace cplm {

// input + answer_prefix is what a model is given; its answer should hold `answers`.
struct RetrievalSample {
  std::string input, answer_prefix;
  std::vector<std::string> answers;
};

enum class NeedlePart {
  kWords,   // adjective-noun
  kNumber,  // seven digits
  kCode,    // 8-4-4-4-12 hexadecimal digits, a random UUID
};

// RULER's needle tasks by their parts (PROTOCOLS.md 5.2).
struct NeedleTask {
  NeedlePart key = NeedlePart::kWords;
  NeedlePart value = NeedlePart::kNumber;
  bool among_needles = false;  // the haystack is needles too, else filler
  int64_t keys = 1;            // in the filler
  int64_t values = 1;          // of each key
  int64_t asked = 1;           // keys
};

// The most units of a haystack: different keys are used up behind it.
int64_t most_needle_units(const NeedleTask& task);
// units: sentences of filler, or other needles. depth_percent: where a single needle stands, behind
// sentence floor(depth * units / 100); else needles stand anywhere. No two keys or values are
// equal.
RetrievalSample needle_sample(const NeedleTask& task, SampleRandom random, int64_t units,
                              std::optional<int64_t> depth_percent = std::nullopt);

// A needle by itself, as those of needle_sample({}, ...).
struct Needle {
  std::string sentence, question, answer_prefix, answer;
};
Needle random_needle(SampleRandom& random);
// `units` sentences of filler with a needle's behind sentence `place`; an empty one: filler alone.
std::string filler_text(int64_t units, const std::string& needle, int64_t place);

// Sentence i of the filler: five neutral sentences, again and again.
const std::string& filler_sentence(int64_t i);
// "a", "a and b", "a, b and c".
std::string enumeration(const std::vector<std::string>& words);

// The most units, from `least` to `most`, whose text takes at most `limit` tokens, found with few
// counts: less than a unit's tokens are left. Nothing where `least` takes more. per_unit: tokens
// that a unit takes about, kept from sample to sample; 0: not known.
std::optional<int64_t> most_fitting_units(int64_t least, int64_t most, int64_t limit,
                                          double& per_unit,
                                          const std::function<int64_t(int64_t)>& tokens_of);

}  // namespace cplm
