// See ruler_data.h.
#include "tasks/ruler_data.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "cplm/base.h"
#include "tasks/ruler_tasks.h"

namespace cplm {
namespace fs = std::filesystem;
namespace {

constexpr const char* kFileName = "validation.jsonl";

// Of one line of a file; errors tell which.
class RowReader {
 public:
  RowReader(const fs::path& path, int64_t line) : path_(path), line_(line) {}

  RulerRow read(const std::string& text) const {
    const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) fail("a JSON object", json.is_discarded() ? "damaged JSON" : "none");
    RulerRow row;
    row.prompt = text_of(json, "input", /*required=*/true);
    row.prompt += text_of(json, "answer_prefix", /*required=*/false);
    row.outputs = outputs_of(json);
    const auto other = [&](const char* key, const Json& none) {
      return json.contains(key) ? json[key] : none;
    };
    row.index = other("index", line_ - 1);
    row.others = other("others", Json::object());
    row.truncation = other("truncation", -1);
    row.length = other("length", -1);
    return row;
  }

 private:
  [[noreturn]] void fail(const std::string& expected, const std::string& found) const {
    throw Error(str(path_.string(), ", line ", line_, ": expected ", expected, ", found ", found,
                    "; give files as RULER's prepare script writes them"),
                ExitCode::kBadData);
  }

  std::string text_of(const Json& json, const char* key, bool required) const {
    if (!json.contains(key)) {
      if (required) fail(str("a field \"", key, "\""), "none");
      return "";
    }
    if (!json[key].is_string()) fail(str("text as \"", key, "\""), json[key].type_name());
    return json[key].get<std::string>();
  }

  std::vector<std::string> outputs_of(const Json& json) const {
    if (!json.contains("outputs")) fail("a field \"outputs\"", "none");
    const Json& outputs = json["outputs"];
    if (!outputs.is_array() || outputs.empty()) {
      fail("a list of texts as \"outputs\"", outputs.is_array() ? "no text" : outputs.type_name());
    }
    std::vector<std::string> texts;
    for (const Json& each : outputs) {
      if (!each.is_string()) fail("texts in \"outputs\"", each.type_name());
      texts.push_back(each.get<std::string>());
    }
    return texts;
  }

  const fs::path& path_;
  int64_t line_;
};

std::optional<int64_t> number_in(const std::string& name) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), value);
  if (error != std::errc() || end != name.data() + name.size() || value <= 0) return std::nullopt;
  return value;
}

std::string task_of(const fs::path& path) {
  for (const std::string& name : {path.parent_path().filename().string(), path.stem().string()}) {
    if (ruler_answer_tokens(name)) return name;
  }
  throw Error(str(path.string(), ": expected a task of RULER as the name of the file or its ",
                  "folder, beginning with niah, vt, cwe, fwe or qa, found neither"),
              ExitCode::kBadData);
}

int64_t length_of(const fs::path& path, const std::vector<RulerRow>& rows) {
  for (fs::path folder = fs::absolute(path).parent_path(); folder != folder.root_path();
       folder = folder.parent_path()) {
    if (const std::optional<int64_t> number = number_in(folder.filename().string())) return *number;
  }
  int64_t longest = 0;
  for (const RulerRow& row : rows) {
    if (row.length.is_number_integer()) longest = std::max(longest, row.length.get<int64_t>());
  }
  return longest;
}

std::vector<fs::path> files_below(const std::string& name) {
  const fs::path path = expand_tilde(name);
  std::error_code error;
  if (!fs::is_directory(path, error)) return {path};
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(path)) {
    if (entry.path().filename() == kFileName) files.push_back(entry.path());
  }
  if (!files.empty()) return files;
  throw Error(str("--data ", name, ": expected LENGTH/TASK/", kFileName, " below the folder, as ",
                  "RULER's prepare script or cplm data make ruler writes it, found none"),
              ExitCode::kBadData);
}

// RULER's tasks in its order, others by name behind them.
std::pair<size_t, std::string> place_of(const std::string& task) {
  const std::vector<std::string>& tasks = ruler_tasks();
  const auto found = std::find(tasks.begin(), tasks.end(), task);
  return {static_cast<size_t>(found - tasks.begin()), task};
}

}  // namespace

std::vector<RulerRow> read_ruler_file(const fs::path& path, int64_t rows) {
  if (!fs::is_regular_file(path)) {
    throw Error(str(path.string(), ": no such file or folder; --data takes RULER's prepared jsonl"),
                ExitCode::kBadData);
  }
  std::istringstream lines(read_file(path));
  std::vector<RulerRow> read;
  int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    read.push_back(RowReader(path, number).read(line));
    if (static_cast<int64_t>(read.size()) == rows) break;
  }
  if (read.empty()) {
    throw Error(str(path.string(), ": expected a JSON object a line, found an empty file"),
                ExitCode::kBadData);
  }
  return read;
}

std::vector<RulerFile> find_ruler_files(const std::vector<std::string>& paths, int64_t rows) {
  std::vector<RulerFile> files;
  for (const std::string& name : paths) {
    for (const fs::path& path : files_below(name)) {
      const std::vector<RulerRow> read = read_ruler_file(path, rows);
      files.push_back({path, task_of(path), length_of(path, read),
                       static_cast<int64_t>(read.size()), sha256_file(path)});
    }
  }
  std::sort(files.begin(), files.end(), [](const RulerFile& a, const RulerFile& b) {
    return std::pair(a.length, place_of(a.task)) < std::pair(b.length, place_of(b.task));
  });
  for (size_t i = 1; i < files.size(); ++i) {
    const RulerFile &a = files[i - 1], &b = files[i];
    if (a.length != b.length || a.task != b.task) continue;
    throw Error(str(b.path.string(), ": expected each task and length once, found ", b.task, " at ",
                    b.length, " also in ", a.path.string()),
                ExitCode::kBadData);
  }
  return files;
}

}  // namespace cplm
