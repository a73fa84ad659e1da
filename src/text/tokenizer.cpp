// Requests to scripts/tokenizer_service.py, and their answers in C++ types.
#include "cplm/tokenizer.h"

#include <nlohmann/json.hpp>

#include "base/python_script.h"
#include "cplm/base.h"
#include "text/json_service.h"

namespace cplm {
namespace {

using nlohmann::json;

constexpr const char* kScript = "tokenizer_service.py";

std::vector<std::string> arguments_for(const std::filesystem::path& tokenizer_json,
                                       const TokenizerOptions& options) {
  std::vector<std::string> arguments;
  if (!options.eos.empty()) arguments = {"--eos=" + options.eos};
  arguments.insert(arguments.end(), {"--", tokenizer_json.string()});
  return arguments;
}

void check_utf8(const std::string& text, const char* what) {
  const std::optional<size_t> offset = find_invalid_utf8(text);
  if (!offset) return;
  throw Error(str(what, ": expected UTF-8, found byte ",
                  static_cast<int>(static_cast<unsigned char>(text[*offset])), " at offset ",
                  *offset, "; convert it to UTF-8"),
              ExitCode::kBadData);
}

bool skips(SpecialTokens special) { return special == SpecialTokens::kSkip; }

}  // namespace

class Tokenizer::Service : public JsonService {
 public:
  using JsonService::JsonService;

  // The member of an answer, which must have its type.
  template <class T>
  T member(const json& answer, const char* name) {
    try {
      return answer.at(name).get<T>();
    } catch (const json::exception&) {
      fail(str("answered without a '", name, "' of the right type"));
    }
  }
  std::optional<int64_t> optional_id(const json& answer, const char* name) {
    const auto found = answer.find(name);
    if (found != answer.end() && found->is_null()) return std::nullopt;
    return member<int64_t>(answer, name);
  }
};

Tokenizer::Tokenizer(const std::filesystem::path& tokenizer_json, const TokenizerOptions& options)
    : service_(std::make_unique<Service>(
          project_root(), kScript, arguments_for(tokenizer_json, options), options.patience_s)) {
  const json description = service_->receive();
  vocab_size_ = service_->member<int64_t>(description, "vocab_size");
  eos_id_ = service_->optional_id(description, "eos_id");
}

Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

std::optional<int64_t> Tokenizer::id_of(const std::string& token) {
  check_utf8(token, "a token");
  return service_->optional_id(service_->ask({{"op", "id_of"}, {"token", token}}), "id");
}

std::vector<int64_t> Tokenizer::encode(const std::string& text, SpecialText special) {
  check_utf8(text, "text");
  const bool as_token = special == SpecialText::kAsToken;
  const json answer = service_->ask({{"op", "encode"}, {"text", text}, {"special", as_token}});
  return service_->member<std::vector<int64_t>>(answer, "ids");
}

std::vector<int64_t> Tokenizer::encode_chat(const std::string& messages_json) {
  check_utf8(messages_json, "chat");
  const json answer = service_->ask({{"op", "encode_chat"}, {"messages", messages_json}});
  return service_->member<std::vector<int64_t>>(answer, "ids");
}

std::string Tokenizer::decode(const std::vector<int64_t>& ids, SpecialTokens special) {
  const json answer =
      service_->ask({{"op", "decode"}, {"ids", ids}, {"skip_special", skips(special)}});
  return service_->member<std::string>(answer, "text");
}

std::vector<std::string> Tokenizer::token_texts(const std::vector<int64_t>& ids) {
  const json answer = service_->ask({{"op", "token_texts"}, {"ids", ids}});
  auto texts = service_->member<std::vector<std::string>>(answer, "texts");
  if (texts.size() != ids.size()) service_->fail("answered with too few or too many texts");
  return texts;
}

void Tokenizer::begin_stream(int64_t stream, const std::vector<int64_t>& preceding,
                             SpecialTokens special) {
  service_->ask({{"op", "begin_stream"},
                 {"stream", stream},
                 {"skip_special", skips(special)},
                 {"preceding", preceding}});
}

std::string Tokenizer::step_stream(int64_t stream, int64_t id) {
  const json answer = service_->ask({{"op", "step_stream"}, {"stream", stream}, {"id", id}});
  return service_->member<std::string>(answer, "text");
}

std::string Tokenizer::end_stream(int64_t stream) {
  const json answer = service_->ask({{"op", "end_stream"}, {"stream", stream}});
  return service_->member<std::string>(answer, "text");
}

}  // namespace cplm
