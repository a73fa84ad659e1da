// Generated texts: needles where they were asked for, nothing twice, answers that the text gives.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <regex>
#include <set>

#include "cplm/base.h"
#include "tasks/arguments.h"
#include "tasks/counting_text.h"
#include "tasks/needle_text.h"
#include "tasks/word_lists.h"

namespace cplm::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

SampleRandom random_of(int64_t index, uint64_t seed = 7) { return {seed, "test", index}; }

int64_t occurrences(const std::string& text, const std::string& part) {
  int64_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

std::vector<std::string> matches(const std::string& text, const std::string& pattern, int group) {
  const std::regex regex(pattern);
  std::vector<std::string> found;
  for (std::sregex_iterator it(text.begin(), text.end(), regex), end; it != end; ++it) {
    found.push_back((*it)[static_cast<size_t>(group)]);
  }
  return found;
}

int64_t sentences_in(const std::string& text) {
  int64_t count = 0;
  for (int64_t i = 0; i < 5; ++i) count += occurrences(text, filler_sentence(i));
  return count;
}

TEST(Needle, StandsAtTheDepthAskedFor) {
  for (const int64_t units : {0, 1, 7, 10, 103}) {
    for (const int64_t depth : {0, 10, 33, 50, 99, 100}) {
      const RetrievalSample sample = needle_sample({}, random_of(units), units, depth);
      ASSERT_THAT(sample.answers, SizeIs(1));
      EXPECT_TRUE(std::regex_match(sample.answers[0], std::regex("[1-9][0-9]{6}")));
      EXPECT_EQ(occurrences(sample.input, sample.answers[0]), 1);
      const size_t needle = sample.input.find(" is " + sample.answers[0] + ".");
      ASSERT_NE(needle, std::string::npos);
      EXPECT_EQ(sentences_in(sample.input), units);
      EXPECT_EQ(sentences_in(sample.input.substr(0, needle)), depth * units / 100);
    }
  }
}

TEST(Needle, ThePromptAsksForTheKeyOfTheNeedle) {
  const RetrievalSample sample = needle_sample({}, random_of(3), 5, 40);
  const std::string key = matches(sample.input, "The magic number of ([a-z-]+) is [0-9]", 1).at(0);
  EXPECT_EQ(sample.answer_prefix, "The magic number of " + key + " is");
  EXPECT_THAT(sample.input, HasSubstr("\nWhat is the magic number of " + key + " in the text"));
  EXPECT_TRUE(sample.input.ends_with("?\n"));
}

TEST(Needle, SamplesDependOnTheirNumberAndSeedAlone) {
  std::set<std::string> answers;
  for (int64_t i = 0; i < 100; ++i) {
    const std::string answer = needle_sample({}, random_of(i), 3, 0).answers[0];
    EXPECT_EQ(needle_sample({}, random_of(i), 90, 70).answers[0], answer) << "also when longer";
    answers.insert(answer);
  }
  EXPECT_THAT(answers, SizeIs(100));
  EXPECT_NE(needle_sample({}, random_of(0, 8), 3, 0).input,
            needle_sample({}, random_of(0), 3, 0).input);
}

TEST(Needle, NoTwoKeysOrValuesAreEqual) {
  for (const NeedlePart part : {NeedlePart::kWords, NeedlePart::kCode}) {
    const NeedleTask task{part, part == NeedlePart::kCode ? part : NeedlePart::kNumber, true};
    const RetrievalSample sample = needle_sample(task, random_of(1), 5000);
    const auto keys = matches(sample.input, "The magic \\w+ of ([0-9a-z-]+) is ([0-9a-f-]+)\\.", 1);
    const auto values =
        matches(sample.input, "The magic \\w+ of ([0-9a-z-]+) is ([0-9a-f-]+)\\.", 2);
    EXPECT_THAT(keys, SizeIs(5001));
    EXPECT_THAT(std::set<std::string>(keys.begin(), keys.end()), SizeIs(5001));
    EXPECT_THAT(std::set<std::string>(values.begin(), values.end()), SizeIs(5001));
    const size_t at = static_cast<size_t>(
        std::find(values.begin(), values.end(), sample.answers.at(0)) - values.begin());
    ASSERT_LT(at, values.size());
    EXPECT_THAT(sample.answer_prefix, HasSubstr(" of " + keys[at] + " is"));
  }
  EXPECT_EQ(most_needle_units({NeedlePart::kWords, NeedlePart::kNumber, true}),
            num_word_pairs() - 1);
}

TEST(Needle, CodesAreRandomUuids) {
  const std::regex uuid("[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}");
  for (int64_t i = 0; i < 50; ++i) {
    const NeedleTask task{NeedlePart::kWords, NeedlePart::kCode};
    const std::string code = needle_sample(task, random_of(i), 2).answers[0];
    EXPECT_TRUE(std::regex_match(code, uuid)) << code;
  }
}

TEST(Needle, SeveralValuesAndSeveralKeysAreAskedFor) {
  const RetrievalSample values = needle_sample({.values = 4}, random_of(2), 30);
  EXPECT_THAT(values.answers, SizeIs(4));
  const std::string key = matches(values.input, "A magic number of ([a-z-]+) is", 1).at(0);
  for (const std::string& value : values.answers) {
    EXPECT_THAT(values.input, HasSubstr("A magic number of " + key + " is " + value + "."));
  }
  EXPECT_EQ(values.answer_prefix, "The magic numbers of " + key + " in the text above are");
  const RetrievalSample keys = needle_sample({.keys = 4, .asked = 4}, random_of(2), 30);
  EXPECT_THAT(keys.answers, SizeIs(4));
  const RetrievalSample one = needle_sample({.keys = 4}, random_of(2), 30);
  EXPECT_THAT(one.answers, SizeIs(1));
  EXPECT_THAT(matches(one.input, "The magic number of ([a-z-]+) is", 1), SizeIs(4));
}

TEST(FittingUnits, AreTheMostThatFit) {
  for (const int64_t per_unit : {1, 3, 8}) {
    for (const int64_t limit : {20, 21, 100, 5001}) {
      double guess = 0;
      int64_t counted = 0;
      const auto tokens_of = [&](int64_t units) {
        ++counted;
        return 20 + per_unit * units + (units % 3 == 1 ? 1 : 0);
      };
      const auto units = most_fitting_units(0, 1 << 20, limit, guess, tokens_of);
      ASSERT_TRUE(units);
      EXPECT_LE(tokens_of(*units), limit);
      EXPECT_GT(tokens_of(*units + 2), limit);
      EXPECT_LT(counted, 16);
    }
  }
  double guess = 0;
  EXPECT_FALSE(most_fitting_units(2, 9, 21, guess, [](int64_t n) { return 20 + n; }));
  EXPECT_EQ(most_fitting_units(2, 9, 1000, guess, [](int64_t n) { return 20 + n; }), 9);
}

TEST(VariableTask, TheAnswersHaveTheValueAskedFor) {
  for (int64_t i = 0; i < 30; ++i) {
    const RetrievalSample sample = variable_sample(random_of(i), 3 * i);
    const std::string value = matches(sample.answer_prefix, "value ([0-9]{5}) are", 1).at(0);
    // Behind the solved example.
    const std::string text = sample.input.substr(sample.input.find("\n\n"));
    std::map<std::string, std::string> values;
    const auto names = matches(text, "SET ([A-Z]{5}) = (\\w+)\\.", 1);
    const auto sources = matches(text, "SET ([A-Z]{5}) = (\\w+)\\.", 2);
    for (size_t n = 0; n < names.size(); ++n) {
      values[names[n]] = values.contains(sources[n]) ? values.at(sources[n]) : sources[n];
    }
    EXPECT_THAT(sample.answers, SizeIs(5));
    EXPECT_THAT(values, SizeIs(5));
    for (const std::string& name : sample.answers) EXPECT_EQ(values.at(name), value);
    EXPECT_EQ(sentences_in(text), 3 * i);
  }
}

std::map<std::string, int64_t> counts_of(const std::vector<std::string>& words) {
  std::map<std::string, int64_t> counts;
  for (const std::string& word : words) ++counts[word];
  return counts;
}

TEST(CommonWordsTask, TheAnswersAreTheTenMostFrequent) {
  const RetrievalSample sample = common_words_sample(random_of(4), 40);
  const std::string text = sample.input.substr(sample.input.find("\n\n"));
  const auto counts = counts_of(matches(text, "[0-9]+\\. ([a-z]+)", 1));
  EXPECT_THAT(counts, SizeIs(50));
  EXPECT_THAT(sample.answers, SizeIs(10));
  for (const auto& [word, count] : counts) {
    const bool asked =
        std::find(sample.answers.begin(), sample.answers.end(), word) != sample.answers.end();
    EXPECT_EQ(count, asked ? 30 : 3) << word;
  }
}

TEST(FrequentWordsTask, TheAnswersAreTheThreeMostFrequent) {
  for (const int64_t units : {kLeastFrequentWords, int64_t{100}, int64_t{125}, int64_t{3000}}) {
    const RetrievalSample sample = frequent_words_sample(random_of(units), units);
    const std::string text = matches(sample.input, "noise\\.\n(.*)\nWhich", 1).at(0);
    auto counts = counts_of(matches(text, "[^ ]+", 0));
    EXPECT_GT(counts["..."], counts.at(sample.answers.at(0)));
    int64_t fewest = counts.at(sample.answers.at(2));
    EXPECT_GT(counts.at(sample.answers[0]), counts.at(sample.answers[1]));
    EXPECT_GT(counts.at(sample.answers[1]), fewest);
    counts.erase("...");
    for (const std::string& word : sample.answers) counts.erase(word);
    for (const auto& [word, count] : counts) EXPECT_LT(count, fewest) << units << " " << word;
  }
}

TEST(WordLists, AllWordsDiffer) {
  std::set<std::string> pairs, words;
  for (int64_t i = 0; i < num_word_pairs(); ++i) pairs.insert(word_pair(i));
  EXPECT_EQ(static_cast<int64_t>(pairs.size()), num_word_pairs());
  for (int64_t i = 0; i < num_made_up_words(); i += 3) words.insert(made_up_word(i));
  EXPECT_EQ(static_cast<int64_t>(words.size()), (num_made_up_words() + 2) / 3);
  EXPECT_THAT(*words.begin(), SizeIs(6));
}

TEST(Counts, AreReadWithThousands) {
  EXPECT_THAT(parse_counts("2k,512,1k,512"), ElementsAre(512, 1024, 2048));
  EXPECT_THAT(counts_between(1, 4096)("1k,4096"), IsEmpty());
  for (const char* text :
       {"", "1,,2", "k", "-1", "1.5", "1 k", "5k", "0", "99999999999999999999"}) {
    EXPECT_THAT(counts_between(1, 4096)(text), Not(IsEmpty())) << text;
  }
}

}  // namespace
}  // namespace cplm::test
