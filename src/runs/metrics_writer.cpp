// Writes RUN/metrics.jsonl: every line reaches the file whole or not at all, and a resume leaves
// only the lines up to its step (the others go to RUN/metrics.stale.jsonl).
#include <nlohmann/json.hpp>

#include "base/appended_file.h"
#include "cplm/base.h"
#include "cplm/runs.h"
#include "runs/json_number.h"
#include "runs/metric_fields.h"

namespace cplm {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

// A file's lines divided at a step.
struct Trimmed {
  std::string kept, stale;
  int64_t num_stale_lines = 0, num_damaged_lines = 0;
};

bool is_evaluation(const Json& record) {
  const auto kind = record.find("kind");
  return kind != record.end() && (*kind == "validation" || *kind == "task");
}

// Lines without a step (kinds this version does not know) belong to the line before them. A line
// that is no JSON object cannot be kept: readers would stop at it.
Trimmed divide_at_step(std::string_view text, int64_t resume_step, bool owes_validation) {
  Trimmed result;
  int64_t step = 0;
  while (!text.empty()) {
    const size_t length = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, length);
    text.remove_prefix(std::min(length + 1, text.size()));
    const Json record = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (record.is_object()) {
      const auto found = record.find("step");
      if (found != record.end() && found->is_number_integer()) step = found->get<int64_t>();
    }
    const bool to_come = owes_validation && step == resume_step && is_evaluation(record);
    const bool keep = record.is_object() && step <= resume_step && !to_come;
    (keep ? result.kept : result.stale).append(line).append("\n");
    if (!record.is_object()) {
      ++result.num_damaged_lines;
    } else if (!keep) {
      ++result.num_stale_lines;
    }
  }
  return result;
}

void append_stale(const fs::path& path, std::string_view lines) {
  AppendedFile file(path);
  file.append(lines);
  file.sync();
}

// The stale lines are safe on disk before metrics.jsonl loses them; a crash in between makes the
// next resume append them a second time, which loses nothing.
void trim_to_step(const fs::path& path, int64_t resume_step, bool owes_validation) {
  if (!fs::exists(path)) return;
  const std::string text = read_file(path);
  const Trimmed trimmed = divide_at_step(text, resume_step, owes_validation);
  if (trimmed.kept == text) return;
  if (!trimmed.stale.empty()) {
    const fs::path stale_path = path.parent_path() / "metrics.stale.jsonl";
    append_stale(stale_path, trimmed.stale);
    fsync_path(path.parent_path());
  }
  write_file_atomic(path, trimmed.kept);
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

template <class Record>
Json to_json(const char* kind, const Record& record) {
  Json line = {{"kind", kind}};
  visit_fields(record,
               [&](const char* name, const auto& value) { line[name] = json_number(value); });
  return line;
}

}  // namespace

MetricsWriter::MetricsWriter(const fs::path& run_dir, int64_t resume_step, bool owes_validation) {
  make_folders(run_dir);
  const fs::path path = run_dir / "metrics.jsonl";
  trim_to_step(path, resume_step, owes_validation);
  file_ = std::make_unique<AppendedFile>(path);
  fsync_path(run_dir);
}

MetricsWriter::~MetricsWriter() = default;

void MetricsWriter::append(const std::string& line) { file_->append(line + "\n"); }

void MetricsWriter::write(const TrainRecord& record) {
  Json line = to_json("train", record);
  if (record.slowest_rank) {
    line["reduce_wait_ms"] = json_number(record.reduce_wait_ms);
    line["slowest_rank"] = *record.slowest_rank;
    line["slowest_rank_ms"] = json_number(record.slowest_rank_ms);
  }
  append(line.dump());
}

void MetricsWriter::write(const ValidationRecord& record) {
  Json line = to_json("validation", record);
  if (record.copy) {
    visit_fields(*record.copy,
                 [&](const char* name, double value) { line[name] = json_number(value); });
  }
  append(line.dump());
}

void MetricsWriter::write(const TaskRecord& record) {
  Json numbers = Json::object();
  for (const auto& [name, value] : record.numbers) numbers[name] = json_number(value);
  append(Json{{"kind", "task"},
              {"step", record.step},
              {"tokens", record.tokens},
              {"task", record.task},
              {"numbers", std::move(numbers)}}
             .dump());
}

void MetricsWriter::write(const GradientsRecord& record) {
  const auto paths = [](const GradientPaths& norms) {
    Json json = {{"lm_head", json_number(norms.lm_head)}};
    if (norms.copy_token) json["copy_token"] = json_number(*norms.copy_token);
    if (norms.cp_head) json["cp_head"] = json_number(*norms.cp_head);
    return json;
  };
  Json weights = paths(record.weights);
  weights["backbone"] = json_number(record.backbone);
  append(Json{{"kind", "gradients"},
              {"step", record.step},
              {"tokens", record.tokens},
              {"weights", std::move(weights)},
              {"hidden", paths(record.hidden)},
              {"copyable_targets", json_number(record.copyable_targets)}}
             .dump());
}

void MetricsWriter::write(const DataRecord& record) {
  Json line = {{"kind", "data"}, {"step", record.step}, {"tokens", record.tokens}};
  for (const SourceShare& source : record.sources) {
    line["sources"].push_back({{"path", source.path},
                               {"weight", source.weight},
                               {"share", source.share},
                               {"epochs", source.epochs}});
  }
  append(line.dump());
}

void MetricsWriter::write_nonfinite(int64_t step, const std::vector<int64_t>& windows) {
  append(Json{{"kind", "nonfinite"}, {"step", step}, {"windows", windows}}.dump());
}

void MetricsWriter::write_loss_spike(int64_t step, double loss,
                                     const std::vector<int64_t>& windows) {
  append(Json{
      {"kind", "loss_spike"}, {"step", step}, {"loss", json_number(loss)}, {"windows", windows}}
             .dump());
}

void MetricsWriter::sync() { file_->sync(); }

}  // namespace cplm
