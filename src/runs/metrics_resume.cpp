// See metrics_resume.h.
#include "runs/metrics_resume.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/appended_file.h"
#include "cplm/base.h"
#include "cplm/config_changes.h"
#include "runs/settings_line.h"

namespace cplm {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// A file's lines divided at a step.
struct Trimmed {
  std::string kept, stale;
  std::string settings;  // those of kind "settings" at the very step
  int64_t num_stale_lines = 0, num_damaged_lines = 0;
};

std::string kind_of(const json& record) {
  const auto found = record.find("kind");
  return found != record.end() && found->is_string() ? found->get<std::string>() : "";
}

enum class SettingsLines { kStay, kMove };  // at the very step

// Lines without a step (kinds this version does not know) belong to the line before them. A line
// that is no JSON object cannot be kept: readers would stop at it.
Trimmed divide_at(const ResumePoint& resume, std::string_view text, SettingsLines settings) {
  Trimmed result;
  int64_t step = 0;
  while (!text.empty()) {
    const size_t length = std::min(text.find('\n'), text.size());
    const std::string line = str(text.substr(0, length), "\n");
    text.remove_prefix(std::min(length + 1, text.size()));
    const json record = json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!record.is_object()) {
      result.stale += line;
      ++result.num_damaged_lines;
      continue;
    }
    const auto found = record.find("step");
    if (found != record.end() && found->is_number_integer()) step = found->get<int64_t>();
    const std::string kind = kind_of(record);
    const bool is_settings = step == resume.step && kind == "settings";
    const bool is_to_come =
        step == resume.step && std::ranges::count(resume.kinds_to_come, kind) > 0;
    if (is_settings) result.settings += line;
    const bool keep =
        step <= resume.step && !is_to_come && !(is_settings && settings == SettingsLines::kMove);
    (keep ? result.kept : result.stale) += line;
    if (step > resume.step) ++result.num_stale_lines;
  }
  return result;
}

// Of each key what was in force before the first of these lines.
std::map<std::string, std::string> values_before(const std::string& lines) {
  std::map<std::string, std::string> before;
  std::istringstream in(lines);
  for (std::string line; std::getline(in, line);) {
    try {
      for (const SettingChange& change : read_settings_line(json::parse(line)).changes) {
        before.emplace(change.key, change.before);
      }
    } catch (const json::exception&) {  // damaged: it tells nothing, and is set aside
    }
  }
  return before;
}

// A run that was killed behind a change goes on from the same step once more, perhaps with other
// settings: what counts is what trained it up to there and what trains it now.
std::string merged_settings(const std::string& lines, const ResumePoint& resume) {
  std::map<std::string, std::string> before = values_before(lines);
  for (const SettingChange& change : resume.changes) before.emplace(change.key, change.before);
  SettingsRecord record{resume.step, resume.tokens, {}};
  for (const auto& [key, value] : before) {
    const auto found = resume.settings.find(key);
    const std::string now = found == resume.settings.end() ? kNotGiven : found->second;
    if (value != now) record.changes.push_back({key, value, now});
  }
  return record.changes.empty() ? "" : settings_line(record).dump() + "\n";
}

// Of the run whose checkpoint begins this one: what it was trained with up to there.
std::string earlier_settings(const ResumePoint& resume) {
  const fs::path path = resume.origin / "metrics.jsonl";
  if (resume.origin.empty() || !fs::exists(path)) return "";
  std::istringstream in(read_file(path));
  std::string lines;
  for (std::string line; std::getline(in, line);) {
    const json record = json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!record.is_object() || kind_of(record) != "settings") continue;
    const json step = record.value("step", json());
    if (step.is_number_integer() && step < resume.step) lines += line + "\n";
  }
  return lines;
}

void append_stale(const fs::path& path, std::string_view lines) {
  AppendedFile file(path);
  file.append(lines);
  file.sync();
}

void tell(const fs::path& path, const Trimmed& trimmed, int64_t resume_step) {
  if (trimmed.num_stale_lines > 0) {
    const std::string what = resume_step < 0 ? "an earlier run" : str("steps past ", resume_step);
    log::info(str("metrics.jsonl: lines of ", what,
                  " moved to metrics.stale.jsonl: ", trimmed.num_stale_lines));
  }
  if (trimmed.num_damaged_lines > 0) {
    log::warn(str(path.string(), ": torn or damaged lines moved to metrics.stale.jsonl: ",
                  trimmed.num_damaged_lines));
  }
}

}  // namespace

// The stale lines are safe on disk before metrics.jsonl loses them; a crash in between makes the
// next resume append them a second time, which loses nothing.
void trim_metrics(const fs::path& path, const ResumePoint& resume) {
  const bool is_new = !fs::exists(path);
  const std::string text = is_new ? earlier_settings(resume) : read_file(path);
  Trimmed trimmed = divide_at(resume, text, SettingsLines::kStay);
  if (!resume.settings.empty()) {
    const std::string line = merged_settings(trimmed.settings, resume);
    if (line != trimmed.settings) {
      trimmed = divide_at(resume, text, SettingsLines::kMove);
      trimmed.kept += line;
    }
  }
  if (trimmed.kept == (is_new ? "" : text)) return;
  if (!trimmed.stale.empty()) {
    append_stale(path.parent_path() / "metrics.stale.jsonl", trimmed.stale);
    fsync_path(path.parent_path());
  }
  write_file_atomic(path, trimmed.kept);
  tell(path, trimmed, resume.step);
}

}  // namespace cplm
