// See needle_text.h.
#include "tasks/needle_text.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "tasks/word_lists.h"

namespace cplm {
namespace {

constexpr int64_t kFirstNumber = 1'000'000, kNumbers = 9'000'000;  // seven digits
constexpr std::array<const char*, 5> kFiller = {
    "Morning light moves slowly over the hills.", "A small boat waits beside the old pier.",
    "The kettle hums while the bread cools.", "Someone has left a coat on the bench.",
    "Later the rain stops and the street dries."};

std::string random_code(SampleRandom& random) {
  std::array<unsigned, 4> words;
  for (unsigned& word : words) word = static_cast<unsigned>(random.below(int64_t{1} << 32));
  const unsigned version = (words[1] & 0x0FFFU) | 0x4000U,  // 4: random
      variant = (words[2] >> 16 & 0x3FFFU) | 0x8000U;
  char text[40];
  std::snprintf(text, sizeof text, "%08x-%04x-%04x-%04x-%04x%08x", words[0], words[1] >> 16,
                version, variant, words[2] & 0xFFFFU, words[3]);
  return text;
}

// All different.
std::vector<std::string> random_parts(NeedlePart part, int64_t count, SampleRandom& random) {
  std::vector<std::string> parts;
  if (part == NeedlePart::kCode) {
    for (int64_t i = 0; i < count; ++i) parts.push_back(random_code(random));
    return parts;
  }
  const bool words = part == NeedlePart::kWords;
  for (const int64_t drawn : random.distinct(count, words ? num_word_pairs() : kNumbers)) {
    parts.push_back(words ? word_pair(drawn) : std::to_string(kFirstNumber + drawn));
  }
  return parts;
}

// How a text speaks of its values.
struct Wording {
  explicit Wording(const NeedleTask& task)
      : one(task.value == NeedlePart::kCode ? "magic code" : "magic number"),
        many_hidden(task.among_needles || task.keys * task.values > 1),
        many_asked(task.values * task.asked > 1) {}

  std::string header() const {
    return many_hidden ? str("Some ", one,
                             "s are hidden in the text below. Remember them, since they are asked "
                             "for afterwards.\n")
                       : str("One ", one,
                             " is hidden in the text below. Remember it, since it is asked for "
                             "afterwards.\n");
  }
  std::string question(const std::string& keys) const {
    return many_asked ? str("\nWhat are all the ", one, "s of ", keys, " in the text above?\n")
                      : str("\nWhat is the ", one, " of ", keys, " in the text above?\n");
  }
  std::string answer_prefix(const std::string& keys) const {
    return many_asked ? str("The ", one, "s of ", keys, " in the text above are")
                      : str("The ", one, " of ", keys, " is");
  }
  std::string needle(const std::string& key, const std::string& value, int64_t values) const {
    return str(values > 1 ? "A " : "The ", one, " of ", key, " is ", value, ".");
  }

  std::string one;
  bool many_hidden, many_asked;
};

// Filler with a needle behind sentence places[i]; places ascend.
std::string filler_with(const std::vector<std::string>& needles, const std::vector<int64_t>& places,
                        int64_t units) {
  std::string text;
  size_t next = 0;
  const auto add = [&text](const std::string& sentence) {
    if (!text.empty()) text += ' ';
    text += sentence;
  };
  for (int64_t i = 0; i <= units; ++i) {
    for (; next < needles.size() && places[next] == i; ++next) add(needles[next]);
    if (i < units) add(filler_sentence(i));
  }
  return text;
}

}  // namespace

const std::string& filler_sentence(int64_t i) {
  static const std::vector<std::string> sentences(kFiller.begin(), kFiller.end());
  return sentences[static_cast<size_t>(i) % sentences.size()];
}

Needle random_needle(SampleRandom& random) {
  const NeedleTask task;
  const Wording wording(task);
  const std::string key = random_parts(task.key, 1, random).front();
  const std::string value = random_parts(task.value, 1, random).front();
  return {wording.needle(key, value, task.values), wording.question(key),
          wording.answer_prefix(key), value};
}

std::string filler_text(int64_t units, const std::string& needle, int64_t place) {
  if (needle.empty()) return filler_with({}, {}, units);
  return filler_with({needle}, {place}, units);
}

std::string enumeration(const std::vector<std::string>& words) {
  std::string text = words.front();
  for (size_t i = 1; i < words.size(); ++i) {
    text += (i + 1 == words.size() ? " and " : ", ") + words[i];
  }
  return text;
}

int64_t most_needle_units(const NeedleTask& task) {
  constexpr int64_t kMostSentences = int64_t{1} << 24;
  if (!task.among_needles) return kMostSentences;
  const bool words = task.key == NeedlePart::kWords;
  return (words ? num_word_pairs() : kMostSentences) - 1;
}

RetrievalSample needle_sample(const NeedleTask& task, SampleRandom random, int64_t units,
                              std::optional<int64_t> depth_percent) {
  const Wording wording(task);
  const int64_t num_keys = task.among_needles ? units + 1 : task.keys;
  const std::vector<std::string> keys = random_parts(task.key, num_keys, random);
  const std::vector<std::string> values = random_parts(task.value, num_keys * task.values, random);
  std::vector<std::string> needles;
  RetrievalSample sample;
  for (int64_t i = 0; i < num_keys * task.values; ++i) {
    const std::string& value = values[static_cast<size_t>(i)];
    needles.push_back(
        wording.needle(keys[static_cast<size_t>(i / task.values)], value, task.values));
    if (i / task.values < task.asked) sample.answers.push_back(value);
  }
  const std::string asked = enumeration({keys.begin(), keys.begin() + task.asked});
  std::string context;
  if (task.among_needles) {
    std::swap(needles.front(), needles[static_cast<size_t>(random.below(num_keys))]);
    context = join(needles, "\n");
  } else {
    std::vector<int64_t> places;
    for (size_t i = 0; i < needles.size(); ++i) {
      places.push_back(depth_percent ? *depth_percent * units / 100 : random.below(units + 1));
    }
    std::sort(places.begin(), places.end());
    random.shuffle(needles);  // the keys asked for may stand anywhere among the others
    context = filler_with(needles, places, units);
  }
  sample.input = wording.header() + context + wording.question(asked);
  sample.answer_prefix = wording.answer_prefix(asked);
  return sample;
}

std::optional<int64_t> most_fitting_units(int64_t least, int64_t most, int64_t limit,
                                          double& per_unit,
                                          const std::function<int64_t(int64_t)>& tokens_of) {
  constexpr int kGuesses = 8;  // then halves
  const int64_t least_tokens = tokens_of(least);
  if (least_tokens > limit) return std::nullopt;
  int64_t fits = least, tokens = least_tokens, too_many = most + 1;
  for (int step = 0; too_many - fits > 1; ++step) {
    const auto room = static_cast<double>(limit - tokens);
    if (per_unit > 0 && room < per_unit) break;
    const double guess = static_cast<double>(fits) + (per_unit > 0 ? room / per_unit : 16);
    const int64_t units = step < kGuesses ? std::clamp(static_cast<int64_t>(std::min(guess, 1e9)),
                                                       fits + 1, too_many - 1)
                                          : fits + (too_many - fits) / 2;
    const int64_t taken = tokens_of(units);
    per_unit = std::max(
        1e-3, static_cast<double>(taken - least_tokens) / static_cast<double>(units - least));
    if (taken <= limit) {
      fits = units;
      tokens = taken;
    } else {
      too_many = units;
    }
  }
  return fits;
}

}  // namespace cplm
