// Typed access to a JSON object.
#include "hf/json_object.h"

#include <cmath>

namespace cplm::hf {

namespace {

constexpr size_t kShownBytes = 60;
constexpr int kMaxDepth = 64;
constexpr uintmax_t kMaxFileBytes = 256 << 20;  // tokenizers of 256k tokens take some 30 MB

}  // namespace

std::string short_text(const nlohmann::json& value) {
  const std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  return text.size() <= kShownBytes ? text : text.substr(0, kShownBytes) + "...";
}

JsonObject JsonObject::read(const std::filesystem::path& path, ExitCode code) {
  std::error_code error;
  const uintmax_t size = std::filesystem::file_size(path, error);
  if (error) throw Error(str("cannot read ", path.string(), ": ", error.message()), code);
  if (size > kMaxFileBytes) {
    throw Error(str(path.string(), ": expected at most ", kMaxFileBytes, " bytes, found ", size),
                code);
  }
  bool too_deep = false;  // copies and texts of a value recurse
  const auto within_depth = [&](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    too_deep = too_deep || depth > kMaxDepth;
    return !too_deep;
  };
  nlohmann::json json = nlohmann::json::parse(read_file(path), within_depth, false);
  if (too_deep || !json.is_object()) {
    throw Error(str(path.string(), ": expected a JSON object, found ",
                    too_deep              ? "one nested too deeply"
                    : json.is_discarded() ? "no JSON"
                                          : short_text(json)),
                code);
  }
  return JsonObject(path.string() + ": ", std::move(json), code);
}

void JsonObject::fail(const std::string& key, const std::string& expected) const {
  const auto found = json_.find(key);
  throw Error(str(origin_, key, ": expected ", expected, ", found ",
                  found == json_.end() ? "nothing" : short_text(*found)),
              code_);
}

bool JsonObject::has(const std::string& key) const {
  const auto found = json_.find(key);
  return found != json_.end() && !found->is_null();
}

bool JsonObject::has_null(const std::string& key) const {
  const auto found = json_.find(key);
  return found != json_.end() && found->is_null();
}

const nlohmann::json* JsonObject::find(const std::string& key, bool required,
                                       const char* expected) const {
  if (has(key)) return &json_.at(key);
  if (required) fail(key, expected);
  return nullptr;
}

JsonObject JsonObject::member(const std::string& key) const {
  const auto* value = find(key, true, "an object");
  if (!value->is_object()) fail(key, "an object");
  return JsonObject(origin_ + key + ".", *value, code_);
}

int64_t JsonObject::whole(const std::string& key, std::optional<int64_t> otherwise) const {
  constexpr const char* kExpected = "a whole number from 1";
  const auto* value = find(key, !otherwise, kExpected);
  if (value == nullptr) return *otherwise;
  if (!value->is_number_integer() || *value < 1 || *value > int64_t{1} << 40) fail(key, kExpected);
  return value->get<int64_t>();
}

double JsonObject::number(const std::string& key, std::optional<double> otherwise) const {
  const auto* value = find(key, !otherwise, "a number");
  if (value == nullptr) return *otherwise;
  if (!value->is_number() || !std::isfinite(value->get<double>())) fail(key, "a number");
  return value->get<double>();
}

bool JsonObject::boolean(const std::string& key, std::optional<bool> otherwise) const {
  const auto* value = find(key, !otherwise, "true or false");
  if (value == nullptr) return *otherwise;
  if (!value->is_boolean()) fail(key, "true or false");
  return value->get<bool>();
}

std::string JsonObject::text(const std::string& key, std::optional<std::string> otherwise) const {
  const auto* value = find(key, !otherwise, "a text");
  if (value == nullptr) return *otherwise;
  if (!value->is_string()) fail(key, "a text");
  return value->get<std::string>();
}

std::vector<std::string> JsonObject::texts(const std::string& key) const {
  const auto* value = find(key, true, "a list of texts");
  std::vector<std::string> out;
  if (!value->is_array()) fail(key, "a list of texts");
  for (const auto& item : *value) {
    if (!item.is_string()) fail(key, "a list of texts");
    out.push_back(item.get<std::string>());
  }
  return out;
}

}  // namespace cplm::hf
