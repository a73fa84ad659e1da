// Key-value recall with the pairs in documents.
#include <algorithm>

#include "cplm/base.h"
#include "data/synthetic_sample.h"
#include "tasks/document_questions.h"

namespace cplm {
namespace {

class RecallQuestions : public DocumentQuestions {
 public:
  explicit RecallQuestions(const RecallQuestionOptions& options)
      : options_(options), maker_(options.sample) {
    document_end_ = options.sample.eos_token_id;
    before_ = {options.sample.eos_token_id};  // as in training
    if (options.documents > options.sample.pairs) {
      throw Error(str("--documents: expected at most --pairs ", options.sample.pairs,
                      ", one a document, found ", options.documents),
                  ExitCode::kBadConfig);
    }
  }

  DocumentQuestion make(int64_t index) override {
    SyntheticSample sample;
    maker_.make("documents", index, sample);  // of no set that a model was trained on
    const std::vector<int64_t> tokens(sample.tokens.begin(), sample.tokens.end());
    const auto first_pair = std::find_if(tokens.begin(), tokens.end(), [&](int64_t id) {
      return id >= options_.sample.first_symbol + options_.sample.filler_symbols;
    });
    DocumentQuestion question;
    auto begin = tokens.begin();
    for (int64_t d = 1; d <= options_.documents; ++d) {
      const auto end = first_pair + 2 * (d * options_.sample.pairs / options_.documents);
      question.documents.emplace_back(begin, end);
      begin = end;
    }
    // Behind the key stand its value and an end-of-document token.
    question.prompt.assign(begin, tokens.end() - 2);
    question.answer = {tokens[tokens.size() - 2]};
    return question;
  }

  bool is_answer(const DocumentQuestion& question, const std::vector<int64_t>& ids) override {
    return ids == question.answer;
  }
  int64_t answer_tokens() const override { return 1; }
  double chance() const override { return 1.0 / static_cast<double>(options_.sample.pairs); }

 private:
  RecallQuestionOptions options_;
  SampleMaker maker_;
};

}  // namespace

std::unique_ptr<DocumentQuestions> recall_questions(const RecallQuestionOptions& options) {
  return std::make_unique<RecallQuestions>(options);
}

}  // namespace cplm
