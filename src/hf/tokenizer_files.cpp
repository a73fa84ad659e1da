// Which tokenizer files go along, and tokenizer_config.json for models trained here.
#include "hf/tokenizer_files.h"

#include "cplm/base.h"
#include "hf/json_object.h"

namespace cplm::hf {

namespace fs = std::filesystem;

namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kTokenizer = "tokenizer.json";
constexpr const char* kTokenizerConfig = "tokenizer_config.json";
constexpr const char* kEndOfText = "<|endoftext|>";

// The template of scripts/cplm_data/chat.py.
constexpr const char* kChatTemplate =
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}"
    "{{ '<|assistant|>\\n' + message['content'] + eos_token }}"
    "{% if not loop.last %}{{ '\\n' }}{% endif %}"
    "{% else %}"
    "{{ '<|' + message['role'] + '|>\\n' + message['content'] + '\\n' }}"
    "{% endif %}"
    "{% if loop.last and add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
    "{% endfor %}";

std::optional<int64_t> id_of(const JsonObject& tokenizer, const std::string& token) {
  const auto& json = tokenizer.json();
  if (const auto added = json.find("added_tokens"); added != json.end() && added->is_array()) {
    for (const auto& each : *added) {
      if (each.is_object() && each.value("content", Json()) == token &&
          each.value("id", Json()).is_number_integer()) {
        return each.at("id").get<int64_t>();
      }
    }
  }
  if (!tokenizer.has("model") || !json.at("model").is_object()) return std::nullopt;
  const auto vocab = json.at("model").find("vocab");
  if (vocab == json.at("model").end() || !vocab->is_object()) return std::nullopt;
  const auto found = vocab->find(token);
  if (found == vocab->end() || !found->is_number_integer()) return std::nullopt;
  return found->get<int64_t>();
}

std::optional<int64_t> checked_id(const TokenizerRequest& request, const std::string& token) {
  const JsonObject tokenizer = JsonObject::read(request.tokenizer, ExitCode::kBadData);
  const std::optional<int64_t> id = id_of(tokenizer, token);
  if (!id && !request.eos.empty()) {
    throw Error(str(request.tokenizer.string(), ": has no token ", token, " (--eos)"),
                ExitCode::kBadData);
  }
  if (id && (*id < 0 || *id >= request.vocab_size)) {
    throw Error(str(request.tokenizer.string(), ": token ", token, " has the id ", *id,
                    ", expected one below the model's vocab_size ", request.vocab_size),
                ExitCode::kBadData);
  }
  return id;
}

std::string made_config(const TokenizerRequest& request, const std::optional<std::string>& eos) {
  Json json;
  json["tokenizer_class"] = "PreTrainedTokenizerFast";
  json["model_max_length"] = request.max_positions;
  json["clean_up_tokenization_spaces"] = false;
  // Every document of training stands behind the eos of the one before.
  for (const char* key : {"bos_token", "eos_token", "pad_token"}) {
    json[key] = eos ? Json(*eos) : Json(nullptr);
  }
  if (request.chat) json["chat_template"] = kChatTemplate;
  return json.dump(2) + "\n";
}

}  // namespace

SpecialIds special_ids_of(const fs::path& json_file) {
  const JsonObject json = JsonObject::read(json_file, ExitCode::kBadData);
  const auto id = [&](const char* key) -> std::optional<int64_t> {
    const auto found = json.json().find(key);
    if (found == json.json().end() || !found->is_number_integer()) return std::nullopt;
    return found->get<int64_t>();
  };
  SpecialIds ids{id("bos_token_id"), id("pad_token_id")};
  if (json.has("eos_token_id")) ids.eos = json.json().at("eos_token_id");
  return ids;
}

std::vector<fs::path> tokenizer_files_of(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const char* name : {kTokenizer, kTokenizerConfig, "special_tokens_map.json",
                           "added_tokens.json", "chat_template.jinja", kGenerationConfig}) {
    if (fs::is_regular_file(folder / name)) files.push_back(folder / name);
  }
  return files;
}

TokenizerFiles exported_tokenizer(const TokenizerRequest& request) {
  TokenizerFiles files;
  if (request.tokenizer.empty()) {
    if (request.chat || !request.eos.empty()) {
      throw Error("--eos and --chat need a tokenizer.json, and this model has none",
                  ExitCode::kBadConfig);
    }
    log::warn("the model has no tokenizer.json: the folder takes ids alone");
    return files;
  }
  const fs::path folder = request.tokenizer.parent_path();
  if (request.eos.empty() && !request.chat && fs::exists(folder / kTokenizerConfig)) {
    files.copied = tokenizer_files_of(folder);
    if (fs::exists(folder / kGenerationConfig))
      files.ids = special_ids_of(folder / kGenerationConfig);
    return files;
  }
  const std::string token = request.eos.empty() ? kEndOfText : request.eos;
  const std::optional<int64_t> id = checked_id(request, token);
  if (!id) {
    if (request.chat) {
      throw Error(str(request.tokenizer.string(), ": has no token ", token,
                      ", which --chat ends an answer with; name another by --eos"),
                  ExitCode::kBadData);
    }
    log::warn(str(request.tokenizer.string(), " has no token ", token,
                  ": generation will not know where a text ends; name it by --eos"));
  }
  files.copied = {request.tokenizer};
  files.written[kTokenizerConfig] = made_config(request, id ? std::optional(token) : std::nullopt);
  files.ids.bos = files.ids.pad = id;
  if (id) files.ids.eos = *id;
  return files;
}

}  // namespace cplm::hf
