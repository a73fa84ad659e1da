// Requests as token ids, divided as the field's evaluation harness (lm-eval) divides them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tasks/request_file.h"

namespace cplm {

struct TokenRequest {
  std::vector<int64_t> ids;  // of context and continuation, cut from the left
  int64_t continuation = 0;  // the last so many are scored; at least one id stands before them
  bool is_cut = false;
};

struct RequestLimits {
  int64_t context = 0;     // tokens that the model reads at most
  int64_t vocab_size = 0;  // of the model
};

// One for each pair of all items of all files, in order. Whitespace at a context's end goes to the
// continuation; its ids are those of both texts together behind the first n, n of the context's
// text alone; an empty context is the end-of-document token (or the continuation's own first token
// where it is that one); of too many tokens the first go. Text that spells a special token is that
// token. tokenizer: empty where the model has none. Error(kBadData) with path and line: text
// without a tokenizer, a continuation that has no token of its own or fills the context, ids that
// the model does not know, nothing to stand for an empty context.
std::vector<TokenRequest> tokenize(const std::vector<RequestFile>& files,
                                   const std::filesystem::path& tokenizer,
                                   const RequestLimits& limits);

// Bytes at the end of UTF-8 text that are whitespace as Python's str.isspace() has it.
size_t trailing_whitespace(const std::string& text);

}  // namespace cplm
