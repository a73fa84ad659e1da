// Reads RUN/metrics.jsonl. Kinds and fields that this version does not know are passed over, so
// that files of later versions still read; damage is named by file and line.
#include <nlohmann/json.hpp>

#include "cplm/base.h"
#include "cplm/runs.h"
#include "runs/metric_fields.h"
#include "runs/settings_line.h"

namespace cplm {
namespace {

using nlohmann::json;

// As JSON in ASCII, so that damaged bytes cannot harm a terminal, and short enough for a message.
std::string shown(const json& value) {
  constexpr size_t kMaxCharacters = 60;
  const std::string text =
      value.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
  return text.size() <= kMaxCharacters ? text : text.substr(0, kMaxCharacters) + "...";
}

// One line of the file, with its place for messages.
struct Line {
  const std::filesystem::path& path;
  int64_t number;
  json fields;

  [[noreturn]] void fail(const std::string& problem) const {
    throw Error(str(path.string(), ":", number, ": ", problem), ExitCode::kBadData);
  }

  const json& field(const char* name) const {
    const auto found = fields.find(name);
    if (found == fields.end()) fail(str("field '", name, "' is missing"));
    return *found;
  }

  [[noreturn]] void fail_type(const char* name, const char* expected) const {
    fail(str("field '", name, "': expected ", expected, ", found ", shown(field(name))));
  }

  void read(const char* name, int64_t& value) const {
    const json& found = field(name);
    constexpr auto kLargest = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    const bool fits = !found.is_number_unsigned() || found.get<uint64_t>() <= kLargest;
    if (!found.is_number_integer() || !fits) fail_type(name, "a whole number");
    value = found.get<int64_t>();
  }

  void read(const char* name, double& value) const {
    const json& found = field(name);
    if (found.is_number()) {
      value = found.get<double>();
    } else if (found == "nan") {
      value = std::numeric_limits<double>::quiet_NaN();
    } else if (found == "inf" || found == "-inf") {
      value = (found == "inf" ? 1 : -1) * std::numeric_limits<double>::infinity();
    } else {
      fail_type(name, R"(a number, "nan", "inf" or "-inf")");
    }
  }

  void read(const char* name, std::optional<double>& value) const {
    if (field(name).is_null()) {
      value.reset();
    } else {
      read(name, value.emplace());
    }
  }

  template <class Record>
  Record record() const {
    Record result;
    visit_fields(result, [&](const char* name, auto& value) { read(name, value); });
    return result;
  }
};

// An object within the line.
Line inner(const Line& line, const char* name) {
  if (!line.field(name).is_object()) line.fail_type(name, "an object");
  return {line.path, line.number, line.field(name)};
}

TaskRecord task_record(const Line& line) {
  TaskRecord record;
  line.read("step", record.step);
  line.read("tokens", record.tokens);
  if (!line.field("task").is_string()) line.fail_type("task", "a string");
  const Line numbers = inner(line, "numbers");
  record.task = line.field("task").get<std::string>();
  for (const auto& [name, value] : numbers.fields.items()) {
    numbers.read(name.c_str(), record.numbers.emplace_back(name, 0.0).second);
  }
  return record;
}

GradientPaths gradient_paths(const Line& line) {
  GradientPaths paths;
  line.read("lm_head", paths.lm_head);
  if (line.fields.contains("copy_token")) line.read("copy_token", paths.copy_token);
  if (line.fields.contains("cp_head")) line.read("cp_head", paths.cp_head);
  return paths;
}

GradientsRecord gradients_record(const Line& line) {
  GradientsRecord record;
  line.read("step", record.step);
  line.read("tokens", record.tokens);
  const Line weights = inner(line, "weights");
  record.weights = gradient_paths(weights);
  weights.read("backbone", record.backbone);
  record.hidden = gradient_paths(inner(line, "hidden"));
  line.read("copyable_targets", record.copyable_targets);
  return record;
}

SettingsRecord settings_record(const Line& line) {
  try {
    return read_settings_line(line.fields);
  } catch (const json::exception&) {
    line.fail(str(R"(expected "step", "tokens" and "changes" of "key", "before" and "now", found )",
                  shown(line.fields)));
  }
}

void read_line(const Line& line, Metrics& metrics) {
  const json& kind = line.field("kind");
  if (kind == "train") {
    metrics.train.push_back(line.record<TrainRecord>());
  } else if (kind == "validation") {
    metrics.validation.push_back(line.record<ValidationRecord>());
    if (line.fields.contains("loss_no_copy")) {
      metrics.validation.back().copy = line.record<CopyMeans>();
    }
  } else if (kind == "task") {
    metrics.tasks.push_back(task_record(line));
  } else if (kind == "gradients") {
    metrics.gradients.push_back(gradients_record(line));
  } else if (kind == "settings") {
    metrics.settings.push_back(settings_record(line));
  } else if (kind == "nonfinite") {
    line.read("step", metrics.nonfinite_steps.emplace_back());
  } else if (!kind.is_string()) {
    line.fail_type("kind", "a string");
  }
}

}  // namespace

Metrics read_metrics(const std::filesystem::path& run_dir) {
  const std::filesystem::path path = run_dir / "metrics.jsonl";
  if (!std::filesystem::exists(path)) {
    throw Error(
        str(path.string(), " does not exist: expected the folder of a run that `cplm train` ",
            "has started"),
        ExitCode::kBadConfig);
  }
  const std::string text = read_file(path);
  Metrics metrics;
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string content = text.substr(begin, end - begin);
    const bool is_terminated = end < text.size();
    begin = end + 1;
    ++number;
    if (content.find_first_not_of(" \t\r") == std::string::npos) continue;
    Line line{path, number, json::parse(content, nullptr, /*allow_exceptions=*/false)};
    if (line.fields.is_object()) {
      read_line(line, metrics);
    } else if (is_terminated) {
      line.fail(str("expected one JSON object, found ", shown(content)));
    } else {
      metrics.warnings.push_back(
          str(path.string(), ":", number, ": the last line is torn and was left out"));
    }
  }
  return metrics;
}

}  // namespace cplm
