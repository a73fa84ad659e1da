// A 7-digit number in one of several documents of neutral sentences, and the question for it.
#include <algorithm>

#include "cplm/base.h"
#include "data/synthetic_sample.h"
#include "tasks/document_questions.h"
#include "tasks/needle_text.h"

namespace cplm {
namespace {

constexpr int64_t kAnswerTokens = 16;  // to be written: seven digits, and a space or a word before

class NumberQuestions : public DocumentQuestions {
 public:
  NumberQuestions(Tokenizer tokenizer, const NumberQuestionOptions& options)
      : options_(options), tokenizer_(std::move(tokenizer)) {
    document_end_ = tokenizer_.eos_id();
    if (document_end_) behind_ = {*document_end_};
    // Questions differ in length by little: as many sentences as fit by the mean of some, and by
    // the longest of some questions.
    constexpr int64_t kSome = 50, kQuestions = 8;
    const auto tokens = static_cast<int64_t>(tokenizer_.encode(filler_text(kSome, "", 0)).size());
    sentences_ = std::max<int64_t>(1, kSome * options.tokens / options.documents / tokens);
    while (sentences_ > 1 && longest_of(kQuestions) > options.tokens) --sentences_;
  }

  DocumentQuestion make(int64_t index) override {
    SampleRandom random(options_.seed, "documents with numbers", index);
    const Needle needle = random_needle(random);
    const int64_t where = random.below(options_.documents), place = random.below(sentences_ + 1);
    DocumentQuestion question;
    question.answer_text = needle.answer;
    for (int64_t d = 0; d < options_.documents; ++d) {
      question.documents.push_back(tokenizer_.encode(
          filler_text(sentences_, d == where ? needle.sentence : "", place) + "\n"));
    }
    question.prompt = tokenizer_.encode(needle.question + needle.answer_prefix);
    return question;
  }

  bool is_answer(const DocumentQuestion& question, const std::vector<int64_t>& ids) override {
    return tokenizer_.decode(ids).find(question.answer_text) != std::string::npos;
  }
  int64_t answer_tokens() const override { return kAnswerTokens; }
  double chance() const override { return 1e-7; }

 private:
  // With their documents and answers.
  int64_t longest_of(int64_t questions) {
    size_t longest = 0;
    for (int64_t i = 0; i < questions; ++i) longest = std::max(longest, visible(make(i)).size());
    return static_cast<int64_t>(longest) + kAnswerTokens;
  }

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
