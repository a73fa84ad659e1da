// What a model is given to read: texts, files and token ids from the command line, and their ids.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cplm/base.h"

namespace cplm {

struct Prompt {
  std::string text;
  std::vector<int64_t> ids;  // in place of the text
  std::string origin;        // for messages
};
// In the order text, files ("-": stdin), ids ("17,3,92"). Error naming what cannot be read.
std::vector<Prompt> read_prompts(const std::vector<std::string>& texts,
                                 const std::vector<std::string>& files,
                                 const std::vector<std::string>& ids);
std::vector<std::string> split_list(const std::string& text, char separator);
// A whole number from 0. Error(kBadConfig) naming the option.
int64_t parse_whole_number(const char* option, const std::string& text);

// encode(tokenizer text) with errors that name the prompt's origin.
template <class Encode>
std::vector<int64_t> encode_prompt(const Prompt& prompt, const Encode& encode) {
  try {
    return encode(prompt.text);
  } catch (const Error& error) {
    throw Error(str(prompt.origin, ": ", error.what()), error.code());
  }
}
// Error(kBadData) naming origin and place of the first id that is not below vocab_size.
void check_prompt_ids(const std::vector<int64_t>& ids, const std::string& origin,
                      int64_t vocab_size);

}  // namespace cplm
