// RULER's prepared files: one a task and length, a JSON object a line.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cplm/tasks.h"

namespace cplm {

struct RulerFile {
  std::filesystem::path path;
  std::string task;
  int64_t length = 0;
  int64_t rows = 0;  // as read
  std::string sha256;
};
struct RulerRow {
  Json index;                        // as the file has it
  std::string prompt;                // input and answer_prefix
  std::vector<std::string> outputs;  // the references
  Json others, truncation, length;   // handed on to the predictions
};

// Files, and folders as RULER writes them: LENGTH/TASK/validation.jsonl, or LENGTH/data/TASK/...;
// ordered by length and RULER's order of tasks. A file's task is the folder it is in, or its own
// name; its length the folder above that is a number, else the largest `length` of its rows. At
// most `rows` of each, 0: all. Error(kBadData) for what cannot be read, is of no known task, or is
// there twice.
std::vector<RulerFile> find_ruler_files(const std::vector<std::string>& paths, int64_t rows);
// Error(kBadData) with the line.
std::vector<RulerRow> read_ruler_file(const std::filesystem::path& path, int64_t rows);

}  // namespace cplm
