// RULER's thirteen tasks: which there are, how long an answer may be, and how it is scored.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cplm {

// In the order of RULER's tables; the needle tasks, which its means of eight take, come first.
const std::vector<std::string>& ruler_tasks();
inline constexpr size_t kRulerNeedleTasks = 8;

// By the name's first word (niah, vt, cwe, fwe, qa); nothing for other names.
std::optional<int64_t> ruler_answer_tokens(const std::string& task);
// Control characters to newlines, no white space around.
std::string ruler_cleaned(const std::string& answer);
// 0 to 100, of a cleaned answer: the share of the references that stand in it, whatever their case;
// of qa whether one does.
double ruler_score(const std::string& task, const std::string& answer,
                   const std::vector<std::string>& references);
// In Latin, Greek and Cyrillic script.
std::string lower_case(const std::string& utf8);

}  // namespace cplm
