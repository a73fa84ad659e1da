// Writes RUN/metrics.jsonl: every line reaches the file whole or not at all.
#include <nlohmann/json.hpp>

#include "base/appended_file.h"
#include "cplm/base.h"
#include "cplm/runs.h"
#include "runs/json_number.h"
#include "runs/metric_fields.h"
#include "runs/metrics_resume.h"

namespace cplm {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

template <class Record>
Json to_json(const char* kind, const Record& record) {
  Json line = {{"kind", kind}};
  visit_fields(record,
               [&](const char* name, const auto& value) { line[name] = json_number(value); });
  return line;
}

}  // namespace

MetricsWriter::MetricsWriter(const fs::path& run_dir, int64_t resume_step)
    : MetricsWriter(run_dir, ResumePoint{.step = resume_step}) {}

MetricsWriter::MetricsWriter(const fs::path& run_dir, const ResumePoint& resume) {
  make_folders(run_dir);
  const fs::path path = run_dir / "metrics.jsonl";
  trim_metrics(path, resume);
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
