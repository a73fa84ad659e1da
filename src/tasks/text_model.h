// A subject with its tokenizer: texts in, greedy answers out.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cplm/tasks.h"
#include "cplm/tokenizer.h"

namespace cplm {

struct AnswerOptions {
  int64_t max_new_tokens = 16;
  int64_t batch_tokens = 65'536;  // of the prompts that are answered together; one at least
};
void add_batch_tokens_argument(CLI::App& command, int64_t& batch_tokens);

class TextModel {
 public:
  // Error(kBadConfig) where the subject has no tokenizer.json.
  explicit TextModel(const Subject& subject);
  const Subject& subject() const { return subject_; }
  Tokenizer& tokenizer() { return tokenizer_; }
  // Changes where the tokenizer does; for names of pieces.
  const std::string& tokenizer_hash() const { return tokenizer_hash_; }
  // Error(kBadData) for an id that the model does not have.
  std::vector<int64_t> encode(const std::string& text);
  // What each prompt is followed by, up to an end of document and without it. Loads the model when
  // first asked.
  std::vector<std::string> answer(const std::vector<std::vector<int64_t>>& prompts,
                                  const AnswerOptions& options);

 private:
  const Subject& subject_;
  Tokenizer tokenizer_;
  std::string tokenizer_hash_;
  std::shared_ptr<LanguageModel> model_;
};

}  // namespace cplm
