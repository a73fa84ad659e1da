// Text to token ids and back by a tokenizer.json, with the Python library that defines what such a
// file means, in a child process that answers in a fraction of a millisecond. No LibTorch here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cplm {

struct TokenizerOptions {
  std::string eos = {};     // token that ends a document; empty: <|endoftext|> where there is one
  double patience_s = 120;  // without an answer for so long, more for long texts, it is an Error
};

// What is done with text that spells a special token, as <|endoftext|>.
enum class SpecialText { kAsText, kAsToken };
// Whether special tokens are shown in the text of ids.
enum class SpecialTokens { kSkip, kShow };

// One child process, which ends with the object. Errors are one line; after one that says that the
// child ended, hung or answered nonsense, every later call repeats it. Not for two threads at once.
class Tokenizer {
 public:
  // Error(kBadData) naming the file when it is no tokenizer.json or has no token as options.eos;
  // Error with what to do when Python or its `tokenizers` package is missing.
  explicit Tokenizer(const std::filesystem::path& tokenizer_json,
                     const TokenizerOptions& options = {});
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  // One above the largest id. A model's vocabulary may be larger: ids from there on are U+FFFD in
  // every text below.
  int64_t vocab_size() const { return vocab_size_; }
  std::optional<int64_t> eos_id() const { return eos_id_; }
  std::optional<int64_t> id_of(const std::string& token);

  // As scripts/prepare_data.py encodes, so nothing is added at the beginning or end, and kAsText
  // never yields a special token. Error(kBadData) with the offset when the text is not UTF-8.
  std::vector<int64_t> encode(const std::string& text, SpecialText special = SpecialText::kAsText);

  // A conversation for an assistant to answer: a JSON list of {"role", "content"}, or an object
  // with that list as "messages"; roles system, user and assistant, the last not the assistant.
  // By the template of fine-tuning (docs/preparing-data.md), up to and with "<|assistant|>\n".
  std::vector<int64_t> encode_chat(const std::string& messages_json);

  // Bytes that are no whole character are U+FFFD.
  std::string decode(const std::vector<int64_t>& ids, SpecialTokens special = SpecialTokens::kSkip);

  // The text of each token by itself, special tokens too, with its leading space.
  std::vector<std::string> token_texts(const std::vector<int64_t>& ids);

  // Texts that grow token by token, each under a number of the caller's choice. begin starts one,
  // anew if it exists; `preceding` are the last tokens before it (eight are plenty), since some
  // decoders strip the first space of a text. step returns what is certain by then: it holds back
  // unfinished characters. end returns what was held back and forgets the stream.
  void begin_stream(int64_t stream, const std::vector<int64_t>& preceding = {},
                    SpecialTokens special = SpecialTokens::kSkip);
  std::string step_stream(int64_t stream, int64_t id);
  std::string end_stream(int64_t stream);

 private:
  class Service;
  std::unique_ptr<Service> service_;
  int64_t vocab_size_ = 0;
  std::optional<int64_t> eos_id_;
};

// Where the first byte stands that is no part of a UTF-8 character; nothing when all are.
std::optional<size_t> find_invalid_utf8(std::string_view text);

}  // namespace cplm
