// Prompts through tokenizer and model to stdout.
#pragma once

#include <string>
#include <vector>

#include "cli/prompts.h"
#include "cplm/generate.h"
#include "cplm/saved_model.h"

namespace cplm {

struct TextOptions {
  std::vector<Prompt> prompts;
  std::vector<std::string> stops;
  bool chat = false, json = false, special = false;
  int64_t batch = 8;
  std::string explain;  // a file's path; empty: none
  std::string eos;      // token that ends a text; empty: <|endoftext|> where there is one
};
// Writes every text to stdout: streamed when it is the only one, else whole, in order.
void write_texts(LanguageModel& model, const SavedModel& saved, const TextOptions& text,
                 const GenerateOptions& options);

}  // namespace cplm
