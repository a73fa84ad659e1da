// See counting_text.h.
#include "tasks/counting_text.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "cplm/base.h"
#include "tasks/word_lists.h"

namespace cplm {
namespace {

constexpr int64_t kChain = 5;  // variables: one value and four hops
constexpr int64_t kCommonWords = 10, kCommonTimes = 30, kOtherTimes = 3;
constexpr int64_t kExampleSentences = 10, kExampleOthers = 10, kExampleTimes = 5;

std::string random_letters(SampleRandom& random, int64_t count, char first) {
  std::string text;
  for (int64_t i = 0; i < count; ++i) text += static_cast<char>(first + random.below(26));
  return text;
}

// All different.
std::vector<std::string> letter_words(SampleRandom& random, int64_t count, int64_t letters,
                                      char first) {
  std::vector<std::string> words;
  while (static_cast<int64_t>(words.size()) < count) {
    std::string word = random_letters(random, letters, first);
    if (std::find(words.begin(), words.end(), word) == words.end()) words.push_back(word);
  }
  return words;
}

// The question's text with its answer, as an example for what follows.
std::string solved(const RetrievalSample& sample) {
  return str(sample.input, sample.answer_prefix, " ", enumeration(sample.answers), ".\n\n");
}

RetrievalSample chain_of_variables(SampleRandom& random, int64_t units) {
  const std::vector<std::string> names = letter_words(random, kChain, 5, 'A');
  const std::string value = std::to_string(10'000 + random.below(90'000));
  std::vector<int64_t> places;
  for (int64_t i = 0; i < kChain; ++i) places.push_back(random.below(units + 1));
  std::sort(places.begin(), places.end());
  std::string text = "Variables are set in the text below. Remember what each of them is.\n";
  size_t next = 0;
  for (int64_t i = 0; i <= units; ++i) {
    for (; next < names.size() && places[next] == i; ++next) {
      text += str("SET ", names[next], " = ", next == 0 ? value : names[next - 1], ". ");
    }
    if (i < units) text += filler_sentence(i) + (i + 1 < units ? " " : "");
  }
  return {str(text, "\nWhich variables have the value ", value, " in the text above?\n"),
          str("The ", kChain, " variables with the value ", value, " are"), names};
}

RetrievalSample list_of_words(const std::vector<std::string>& words, int64_t common_times,
                              int64_t other_times, SampleRandom& random) {
  std::vector<std::string> list;
  for (size_t i = 0; i < words.size(); ++i) {
    const bool common = i < kCommonWords;
    list.insert(list.end(), static_cast<size_t>(common ? common_times : other_times), words[i]);
  }
  random.shuffle(list);
  std::string text =
      "Below is a list of words. Some come more often than others. Remember the most frequent "
      "ones.\n";
  for (size_t i = 0; i < list.size(); ++i) text += str(i == 0 ? "" : " ", i + 1, ". ", list[i]);
  return {str(text, "\nWhich ", kCommonWords, " words are the most frequent in the list above?\n"),
          str("The ", kCommonWords, " most frequent words are"),
          {words.begin(), words.begin() + kCommonWords}};
}

std::vector<std::string> made_up_words(SampleRandom& random, int64_t count) {
  std::vector<std::string> words;
  for (const int64_t i : random.distinct(count, num_made_up_words())) {
    words.push_back(made_up_word(i));
  }
  return words;
}

}  // namespace

RetrievalSample variable_sample(SampleRandom random, int64_t units) {
  const std::string example = solved(chain_of_variables(random, kExampleSentences));
  RetrievalSample sample = chain_of_variables(random, units);
  sample.input = example + sample.input;
  return sample;
}

RetrievalSample common_words_sample(SampleRandom random, int64_t units) {
  const std::vector<std::string> few = made_up_words(random, kCommonWords + kExampleOthers);
  const std::string example = solved(list_of_words(few, kExampleTimes, 1, random));
  RetrievalSample sample =
      list_of_words(made_up_words(random, kCommonWords + units), kCommonTimes, kOtherTimes, random);
  sample.input = example + sample.input;
  return sample;
}

RetrievalSample frequent_words_sample(SampleRandom random, int64_t units) {
  const double zeta = std::numbers::pi * std::numbers::pi / 6;
  std::vector<int64_t> counts;
  for (double k = 1;; ++k) {
    const auto count = static_cast<int64_t>(static_cast<double>(units) / (zeta * k * k));
    if (count == 0) break;
    counts.push_back(count);
  }
  const std::vector<std::string> words =
      letter_words(random, static_cast<int64_t>(counts.size()) - 1, 6, 'a');
  std::vector<std::string> text;
  for (size_t k = 0; k < counts.size(); ++k) {
    text.insert(text.end(), static_cast<size_t>(counts[k]), k == 0 ? "..." : words[k - 1]);
  }
  random.shuffle(text);
  return {
      str("Below is a text in a code. Remember which coded words come most often; the dots are "
          "noise.\n",
          join(text, " "), "\nWhich three coded words are the most frequent in the text above?\n"),
      "The three most frequent coded words are",
      {words.begin(), words.begin() + 3}};
}

}  // namespace cplm
