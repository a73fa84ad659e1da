// What the arguments and reports of several tasks share.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/argument_checks.h"
#include "cplm/tasks.h"

namespace cplm {

// The context asked for, or (0) that of the subjects' training, when they have one. Error(
// kBadConfig) when they differ.
int64_t common_context(int64_t asked, const std::vector<Subject>& subjects);
// Ids mean the same to all of them, as far as sizes tell. Error(kBadConfig) naming the two that
// differ.
void check_one_vocabulary(const std::vector<Subject>& subjects);

// Whole numbers as "64,1k,2k" (k: 1,024), ascending and each once. For CLI11 the text's problem, ""
// where it has none.
ArgumentCheck counts_between(int64_t least, int64_t most);
std::vector<int64_t> parse_counts(const std::string& text);

// name, path, step, head, backbone, window and sizes: how a report's JSON begins a subject.
Json subject_header(const Subject& subject);
// As files hold it: one space a level, text that is no UTF-8 replaced, a newline at the end.
std::string json_text(const Json& json);

}  // namespace cplm
