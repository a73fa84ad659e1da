// See text_model.h.
#include "tasks/text_model.h"

#include <CLI/App.hpp>

#include "cplm/base.h"
#include "cplm/generate.h"
#include "tasks/arguments.h"

namespace cplm {
namespace {

const std::filesystem::path& tokenizer_of(const Subject& subject) {
  if (!subject.tokenizer.empty()) return subject.tokenizer;
  throw Error(str(subject.path,
                  ": expected a tokenizer.json beside the model, since the task is "
                  "made of text, found none; copy it there, or measure by cplm eval "
                  "recall, which needs none"),
              ExitCode::kBadConfig);
}

}  // namespace

void add_batch_tokens_argument(CLI::App& command, int64_t& batch_tokens) {
  command
      .add_option("--batch-tokens", batch_tokens,
                  "Prompt tokens at once, one prompt at least: more takes more memory")
      ->check(whole_from(1))
      ->capture_default_str();
}

TextModel::TextModel(const Subject& subject)
    : subject_(subject),
      tokenizer_(tokenizer_of(subject)),
      tokenizer_hash_(sha256_file(subject.tokenizer)) {}

std::vector<int64_t> TextModel::encode(const std::string& text) {
  std::vector<int64_t> ids = tokenizer_.encode(text);
  for (const int64_t id : ids) {
    if (id < subject_.config.model.vocab_size) continue;
    throw Error(
        str(subject_.tokenizer.string(), ": expected ids below the vocabulary of ", subject_.path,
            ", ", subject_.config.model.vocab_size, ", found ", id, "; it is another model's"),
        ExitCode::kBadData);
  }
  return ids;
}

std::vector<std::string> TextModel::answer(const std::vector<std::vector<int64_t>>& prompts,
                                           const AnswerOptions& options) {
  if (!model_) model_ = subject_.open();
  GenerateOptions generation;
  generation.max_new_tokens = options.max_new_tokens;
  if (const std::optional<int64_t> eos = tokenizer_.eos_id()) {
    generation.stop_ids = {*eos};
    if (subject_.config.data.intra_document_mask) generation.decoder.document_end = eos;
  }
  std::vector<std::string> answers;
  for (size_t begin = 0; begin < prompts.size();) {
    size_t end = begin;
    int64_t tokens = 0;
    while (end < prompts.size()) {
      tokens += static_cast<int64_t>(prompts[end].size());
      if (end > begin && tokens > options.batch_tokens) break;
      ++end;
    }
    const std::vector<std::vector<int64_t>> batch(prompts.begin() + static_cast<int64_t>(begin),
                                                  prompts.begin() + static_cast<int64_t>(end));
    for (GeneratedText& text : generate(*model_, batch, generation).texts) {
      if (text.reason == StopReason::kStopId) text.ids.pop_back();
      answers.push_back(tokenizer_.decode(text.ids));
    }
    begin = end;
  }
  return answers;
}

}  // namespace cplm
