// Questions about documents: a number hidden in one of them, or pairs of keys and values.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cplm/copy_cache.h"
#include "cplm/shard_tools.h"
#include "cplm/tasks.h"
#include "cplm/tokenizer.h"

namespace cplm {

struct DocumentQuestion {
  Documents documents;          // without the token that begins or ends a document
  std::vector<int64_t> prompt;  // what is asked
  std::vector<int64_t> answer;  // ids; empty: a text
  std::string answer_text;
  int64_t document_tokens() const;
};

// Questions as functions of their numbers alone.
class DocumentQuestions {
 public:
  virtual ~DocumentQuestions() = default;
  virtual DocumentQuestion make(int64_t index) = 0;
  virtual bool is_answer(const DocumentQuestion& question, const std::vector<int64_t>& ids) = 0;
  virtual int64_t answer_tokens() const = 0;  // to be written
  virtual double chance() const = 0;          // of a guess that knows the documents' answers
  // The token around documents; nothing points at it.
  std::optional<int64_t> document_end() const { return document_end_; }
  // As it is encoded alone: with the token where training has it.
  std::vector<int64_t> alone(const std::vector<int64_t>& document) const;
  // All documents and the prompt behind them as one text.
  std::vector<int64_t> visible(const DocumentQuestion& question) const;

 protected:
  std::optional<int64_t> document_end_;
  std::vector<int64_t> before_, behind_;  // a document that is alone
};

// 7-digit numbers in repeated neutral sentences, one of them asked for; for text models.
struct NumberQuestionOptions {
  int64_t documents = 4;
  int64_t tokens = 1024;  // of a question with its documents and its answer, at most
  uint64_t seed = 42;
};
std::unique_ptr<DocumentQuestions> number_questions(Tokenizer tokenizer,
                                                    const NumberQuestionOptions& options);

// Samples of `cplm data make recall` cut in two: up to the last pair the documents, which share the
// pairs out among them, behind it filler and a key, the question. Error(kBadConfig) as SampleMaker.
struct RecallQuestionOptions {
  int64_t documents = 4;
  SyntheticOptions sample = synthetic_defaults(SyntheticKind::kRecall);
};
std::unique_ptr<DocumentQuestions> recall_questions(const RecallQuestionOptions& options);

}  // namespace cplm
