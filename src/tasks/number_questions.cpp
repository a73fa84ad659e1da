// A 7-digit number in one of several documents of neutral sentences, and the question for it.
#include <algorithm>
#include <array>

#include "cplm/base.h"
#include "data/synthetic_sample.h"
#include "tasks/document_questions.h"

namespace cplm {
namespace {

constexpr std::array kSentences = {"The river runs along the road.", "Boats lie at the bank.",
                                   "A light wind comes from the west.",
                                   "In the evening the lamps are lit.", "Then all is quiet again."};
constexpr std::array kAdjectives = {"amber",  "brave",   "copper", "distant", "early",  "frozen",
                                    "gentle", "hidden",  "ivory",  "lonely",  "modest", "northern",
                                    "olive",  "patient", "quiet",  "silver"};
constexpr std::array kNouns = {"anchor", "bridge", "castle", "desert", "engine", "falcon",
                               "garden", "harbor", "island", "ladder", "meadow", "orchard",
                               "planet", "rocket", "tunnel", "valley"};
constexpr int64_t kAnswerTokens = 16;  // to be written: seven digits, and a space or a word before

class NumberQuestions : public DocumentQuestions {
 public:
  NumberQuestions(Tokenizer tokenizer, const NumberQuestionOptions& options)
      : options_(options), tokenizer_(std::move(tokenizer)) {
    document_end_ = tokenizer_.eos_id();
    if (document_end_) behind_ = {*document_end_};
    std::string once;
    for (const char* sentence : kSentences) once += std::string(sentence) + " ";
    const auto tokens = static_cast<int64_t>(tokenizer_.encode(once).size());
    const int64_t rounds = options.tokens / options.documents / std::max<int64_t>(1, tokens);
    sentences_ = std::max<int64_t>(1, rounds) * static_cast<int64_t>(kSentences.size());
  }

  DocumentQuestion make(int64_t index) override {
    SampleRandom random(options_.seed, "documents with numbers", index);
    const auto word = [&](const auto& words) {
      return std::string(words[static_cast<size_t>(random.below(std::ssize(words)))]);
    };
    const std::string name = word(kAdjectives) + " " + word(kNouns);
    DocumentQuestion question;
    question.answer_text = std::to_string(1'000'000 + random.below(9'000'000));
    const int64_t where = random.below(options_.documents), depth = random.below(sentences_ + 1);
    const std::string hidden = str("The number of the ", name, " is ", question.answer_text, ". ");
    for (int64_t d = 0; d < options_.documents; ++d) {
      std::string text;
      for (int64_t s = 0; s <= sentences_; ++s) {
        if (d == where && s == depth) text += hidden;
        if (s < sentences_) {
          text += std::string(kSentences[static_cast<size_t>(s) % kSentences.size()]) + " ";
        }
      }
      text.back() = '\n';
      question.documents.push_back(tokenizer_.encode(text));
    }
    question.prompt = tokenizer_.encode(
        str("What is the number of the ", name, "? The number of the ", name, " is"));
    return question;
  }

  bool is_answer(const DocumentQuestion& question, const std::vector<int64_t>& ids) override {
    return tokenizer_.decode(ids).find(question.answer_text) != std::string::npos;
  }
  int64_t answer_tokens() const override { return kAnswerTokens; }
  double chance() const override { return 1e-7; }

 private:
  NumberQuestionOptions options_;
  Tokenizer tokenizer_;
  int64_t sentences_ = 0;  // of neutral ones a document
};

}  // namespace

std::unique_ptr<DocumentQuestions> number_questions(Tokenizer tokenizer,
                                                    const NumberQuestionOptions& options) {
  return std::make_unique<NumberQuestions>(std::move(tokenizer), options);
}

}  // namespace cplm
