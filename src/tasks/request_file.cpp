// See request_file.h.
#include "tasks/request_file.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "cplm/base.h"
#include "cplm/tokenizer.h"

namespace cplm {
namespace {

using Json = nlohmann::ordered_json;
constexpr const char* kKeys[] = {"id",           "context", "contexts", "choices",
                                 "continuation", "gold",    "delimiter"};

int64_t characters_in(const std::string& text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

// One line of a file, whose mistakes are told with their place.
class LineReader {
 public:
  LineReader(const std::string& path, int64_t line, const std::string& text)
      : path_(path), line_(line) {
    if (const std::optional<size_t> offset = find_invalid_utf8(text)) {
      fail("expected UTF-8, found something else at byte ", *offset);
    }
    try {
      json_ = Json::parse(text);
    } catch (const Json::parse_error& error) {
      fail("expected a JSON object in one line, which ends or goes wrong at byte ", error.byte);
    }
    if (!json_.is_object()) fail("expected a JSON object, found ", json_.type_name());
    for (const auto& [key, value] : json_.items()) {
      if (std::find(std::begin(kKeys), std::end(kKeys), key) != std::end(kKeys)) continue;
      fail("unknown key \"", key, "\"; expected some of ",
           join({std::begin(kKeys), std::end(kKeys)}, ", "));
    }
  }

  RequestItem item() const {
    RequestItem item{line_, id(), {}, {}};
    if (json_.contains("choices") == json_.contains("continuation")) {
      fail("expected either \"choices\" with \"gold\", or \"continuation\"");
    }
    return json_.contains("choices") ? choices_of(item) : pair_of(item);
  }

 private:
  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    throw Error(str(path_, ":", line_, ": ", parts...), ExitCode::kBadData);
  }

  std::string id() const {
    if (!json_.contains("id")) return std::to_string(line_);
    const Json& id = json_["id"];
    if (id.is_string()) return id.get<std::string>();
    if (id.is_number_integer()) return id.dump();
    fail("\"id\": expected text or a whole number, found ", id.type_name());
  }

  TextOrIds text_or_ids(const Json& value, const std::string& key) const {
    if (value.is_string()) return value.get<std::string>();
    if (!value.is_array()) fail(key, ": expected text or a list of ids, found ", value.type_name());
    std::vector<int64_t> ids;
    for (const Json& id : value) {
      if (!id.is_number_integer() || id < 0 || id > INT32_MAX) {
        fail(key, ": expected token ids from 0, found ", id.dump());
      }
      ids.push_back(id.get<int64_t>());
    }
    return ids;
  }

  std::string delimiter() const {
    if (!json_.contains("delimiter")) return "";
    if (!json_["delimiter"].is_string()) fail("\"delimiter\": expected text");
    return json_["delimiter"].get<std::string>();
  }

  RequestPair pair(const TextOrIds& context, const Json& json, const std::string& key) const {
    RequestPair pair{context, text_or_ids(json, key), 0, 0};
    if (context.index() != pair.continuation.index()) {
      fail(key, ": expected text with a context of text, and ids with a context of ids");
    }
    if (std::visit([](const auto& x) { return x.empty(); }, pair.continuation)) {
      fail(key, ": is empty, and there must be something to score");
    }
    if (auto* text = std::get_if<std::string>(&pair.continuation)) {
      pair.bytes = static_cast<int64_t>(text->size());
      pair.characters = characters_in(*text);
      *text = delimiter() + *text;
    } else if (json_.contains("delimiter")) {
      fail("\"delimiter\": stands before text, and ", key, " is a list of ids");
    }
    return pair;
  }

  RequestItem pair_of(RequestItem item) const {
    if (json_.contains("gold")) fail("\"gold\": goes with \"choices\"");
    if (!json_.contains("context") || json_.contains("contexts")) {
      fail("expected a \"context\" before \"continuation\"; it may be empty");
    }
    item.pairs.push_back(pair(text_or_ids(json_["context"], "\"context\""), json_["continuation"],
                              "\"continuation\""));
    return item;
  }

  std::vector<TextOrIds> contexts(size_t choices) const {
    if (json_.contains("context") == json_.contains("contexts")) {
      fail("expected either \"context\", or \"contexts\" with one for each choice");
    }
    if (json_.contains("context")) {
      return std::vector<TextOrIds>(choices, text_or_ids(json_["context"], "\"context\""));
    }
    const Json& list = json_["contexts"];
    if (!list.is_array() || list.size() != choices) {
      fail("\"contexts\": expected a list of ", choices, ", one for each choice");
    }
    std::vector<TextOrIds> found;
    for (size_t i = 0; i < choices; ++i) {
      found.push_back(text_or_ids(list[i], str("\"contexts\"[", i, "]")));
    }
    return found;
  }

  RequestItem choices_of(RequestItem item) const {
    const Json& choices = json_["choices"];
    if (!choices.is_array() || choices.size() < 2) {
      fail("\"choices\": expected a list of two or more");
    }
    const std::vector<TextOrIds> before = contexts(choices.size());
    for (size_t i = 0; i < choices.size(); ++i) {
      item.pairs.push_back(pair(before[i], choices[i], str("\"choices\"[", i, "]")));
    }
    item.is_gold.assign(choices.size(), 0);
    if (!json_.contains("gold")) fail("expected \"gold\", the number of the right choice, from 0");
    const Json gold = json_["gold"].is_array() ? json_["gold"] : Json::array({json_["gold"]});
    if (gold.empty()) fail("\"gold\": expected a right choice");
    for (const Json& index : gold) {
      if (!index.is_number_integer() || index < 0 || index >= choices.size()) {
        fail("\"gold\": expected a whole number from 0 to ", choices.size() - 1, ", found ",
             index.dump());
      }
      item.is_gold[index.get<size_t>()] = 1;
    }
    return item;
  }

  const std::string& path_;
  int64_t line_;
  Json json_;
};

bool is_blank(const std::string& line) {
  return line.find_first_not_of(" \t\r") == std::string::npos;
}

}  // namespace

RequestFile read_request_file(const std::string& path) {
  const std::filesystem::path file_path = expand_tilde(path);
  std::string text;
  try {
    text = read_file(file_path);
  } catch (const Error& error) {
    throw Error(error.what(), ExitCode::kBadData);
  }
  RequestFile file{path, file_path.stem().string(), sha256_hex(text), {}};
  std::istringstream lines(text);
  int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (!is_blank(line)) file.items.push_back(LineReader(path, number, line).item());
  }
  if (file.items.empty()) {
    throw Error(str(path, ": expected requests, one JSON object a line, and it is empty"),
                ExitCode::kBadData);
  }
  return file;
}

std::vector<RequestFile> read_request_files(const std::vector<std::string>& paths) {
  std::vector<RequestFile> files;
  std::multiset<std::string> names;
  std::set<std::filesystem::path> seen;
  for (const std::string& path : paths) {
    files.push_back(read_request_file(path));
    if (!seen.insert(std::filesystem::canonical(expand_tilde(path))).second) {
      throw Error(str("--requests ", path, ": is given twice"), ExitCode::kBadConfig);
    }
    names.insert(files.back().name);
  }
  for (RequestFile& file : files) {
    if (names.count(file.name) > 1) file.name = file.path;
  }
  return files;
}

}  // namespace cplm
