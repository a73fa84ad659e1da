// See request_tokens.h.
#include "tasks/request_tokens.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "cplm/base.h"
#include "cplm/tokenizer.h"

namespace cplm {
namespace {

bool is_whitespace(uint32_t code) {
  return (code >= 0x09 && code <= 0x0D) || (code >= 0x1C && code <= 0x20) || code == 0x85 ||
         code == 0xA0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 ||
         code == 0x2029 || code == 0x202F || code == 0x205F || code == 0x3000;
}

// The last character of text[0, end) as its code, and its bytes; of whitespace none has over three.
std::pair<uint32_t, size_t> last_character(const std::string& text, size_t end) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  size_t begin = end - 1;
  while (begin > 0 && (byte(begin) & 0xC0) == 0x80) --begin;
  const size_t length = end - begin;
  uint32_t code = length == 1 ? byte(begin) : byte(begin) & (0x7Fu >> length);
  for (size_t i = begin + 1; i < end; ++i) code = code << 6 | (byte(i) & 0x3F);
  return {code, length};
}

class RequestTokenizer {
 public:
  RequestTokenizer(const std::filesystem::path& path, const RequestLimits& limits)
      : path_(path), limits_(limits) {}

  TokenRequest request(const RequestPair& pair, const std::string& place) {
    std::vector<int64_t> context, whole;
    if (const auto* text = std::get_if<std::string>(&pair.context)) {
      encode(*text, std::get<std::string>(pair.continuation), place, context, whole);
    } else {
      context = std::get<std::vector<int64_t>>(pair.context);
      whole = context;
      const auto& continuation = std::get<std::vector<int64_t>>(pair.continuation);
      whole.insert(whole.end(), continuation.begin(), continuation.end());
      check_ids(whole, place);
    }
    size_t scored_from = context.size();
    if (context.empty()) {
      const int64_t first = document_start(place);
      if (whole.front() != first) whole.insert(whole.begin(), first);
      scored_from = 1;
    }
    if (whole.size() <= scored_from) {
      fail(place, "the continuation has no token of its own: with the context it makes ",
           whole.size(), " token(s), and the context alone ", context.size());
    }
    return cut({std::move(whole), 0, false}, scored_from, place);
  }

 private:
  template <class... Parts>
  [[noreturn]] static void fail(const std::string& place, const Parts&... parts) {
    throw Error(str(place, ": ", parts...), ExitCode::kBadData);
  }

  Tokenizer& tokenizer(const std::string& place) {
    if (path_.empty()) {
      fail(place, "is text, and the model has no tokenizer.json; give contexts and continuations ",
           "as lists of ids");
    }
    if (!tokenizer_) tokenizer_.emplace(path_);
    return *tokenizer_;
  }

  // Choices share their context.
  const std::vector<int64_t>& context_ids(const std::string& text, const std::string& place) {
    if (text != last_context_) {
      last_ids_ = text.empty() ? std::vector<int64_t>()
                               : tokenizer(place).encode(text, SpecialText::kAsToken);
      last_context_ = text;
    }
    return last_ids_;
  }

  void encode(const std::string& given, const std::string& continuation, const std::string& place,
              std::vector<int64_t>& context, std::vector<int64_t>& whole) {
    const std::string text = given.substr(0, given.size() - trailing_whitespace(given));
    whole = tokenizer(place).encode(given + continuation, SpecialText::kAsToken);
    context = context_ids(text, place);
    check_ids(whole, place);
  }

  void check_ids(const std::vector<int64_t>& ids, const std::string& place) const {
    for (const int64_t id : ids) {
      if (id < limits_.vocab_size) continue;
      fail(place, "expected token ids below ", limits_.vocab_size, ", the model's vocab_size, ",
           "found ", id);
    }
  }

  int64_t document_start(const std::string& place) {
    const std::optional<int64_t> eos = path_.empty() ? std::nullopt : tokenizer(place).eos_id();
    if (!eos) {
      fail(place, "the context is empty, and the model has no tokenizer.json with an ",
           "end-of-document token to stand for it; give a context of at least one id");
    }
    return *eos;
  }

  TokenRequest cut(TokenRequest request, size_t scored_from, const std::string& place) const {
    const auto size = static_cast<int64_t>(request.ids.size());
    request.continuation = size - static_cast<int64_t>(scored_from);
    if (request.continuation > limits_.context) {
      fail(place, "the continuation has ", request.continuation, " tokens, and the context is ",
           limits_.context, "; give a longer --context");
    }
    const int64_t excess = size - (limits_.context + 1);
    if (excess > 0) {
      request.ids.erase(request.ids.begin(), request.ids.begin() + excess);
      request.is_cut = true;
    }
    return request;
  }

  std::filesystem::path path_;
  RequestLimits limits_;
  std::optional<Tokenizer> tokenizer_;
  std::string last_context_;
  std::vector<int64_t> last_ids_;
};

}  // namespace

size_t trailing_whitespace(const std::string& text) {
  size_t end = text.size();
  while (end > 0) {
    const auto [code, length] = last_character(text, end);
    if (!is_whitespace(code)) break;
    end -= length;
  }
  return text.size() - end;
}

std::vector<TokenRequest> tokenize(const std::vector<RequestFile>& files,
                                   const std::filesystem::path& tokenizer,
                                   const RequestLimits& limits) {
  RequestTokenizer requests(tokenizer, limits);
  std::vector<TokenRequest> tokens;
  for (const RequestFile& file : files) {
    for (const RequestItem& item : file.items) {
      for (size_t i = 0; i < item.pairs.size(); ++i) {
        const std::string place = item.has_choices()
                                      ? str(file.path, ":", item.line, ": choice ", i)
                                      : str(file.path, ":", item.line);
        tokens.push_back(requests.request(item.pairs[i], place));
      }
    }
  }
  return tokens;
}

}  // namespace cplm
