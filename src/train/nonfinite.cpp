// The forensic folder of a batch that was not finite.
#include "train/nonfinite.h"

#include <ATen/ops/from_blob.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "cplm/base.h"
#include "cplm/checkpoint.h"

namespace cplm {
namespace {

// JSON has no NaN or infinity; a NaN's sign means nothing.
std::string text_of(double number) { return std::isnan(number) ? "nan" : str(number); }

nlohmann::ordered_json number(double value) {
  if (std::isfinite(value)) return value;
  return text_of(value);
}

double mean_loss(const StepReport& report) {
  return report.loss_sum / static_cast<double>(report.counted_targets);
}

template <class T>
at::Tensor view(const std::vector<T>& data, at::IntArrayRef shape, at::ScalarType dtype) {
  return at::from_blob(const_cast<T*>(data.data()), shape, at::TensorOptions().dtype(dtype));
}

void write_batch(const std::filesystem::path& path, const TokenBatch& batch) {
  const int64_t rows = batch.rows, positions = batch.sequence_length;
  write_safetensors(path,
                    {{"tokens", view(batch.tokens, {rows, positions + 1}, at::kInt)},
                     {"target_counted", view(batch.target_counted, {rows, positions}, at::kByte)},
                     {"document_start", view(batch.document_start, {rows, positions}, at::kInt)},
                     {"window_index", view(batch.window_index, {rows}, at::kLong)}});
}

std::string report_json(const StepReport& report, const TokenBatch& batch, const WindowSet& windows,
                        LanguageModel& model, const StepOptions& options) {
  nlohmann::ordered_json json;
  json["step"] = report.step;
  json["loss"] = number(mean_loss(report));
  json["grad_norm"] = number(report.grad_norm);
  json["counted_targets"] = report.counted_targets;
  for (const int64_t window : batch.window_index) {
    json["windows"].push_back({{"index", window}, {"is", windows.describe(window)}});
  }
  for (const auto& [name, norm] : gradient_norms(model, batch, options)) {
    json["gradient_norms"][name] = number(norm);
  }
  return json.dump(2) + "\n";
}

}  // namespace

std::string describe_nonfinite(const StepReport& report) {
  return str("step ", report.step, ": loss ", text_of(mean_loss(report)), ", gradient norm ",
             text_of(report.grad_norm), ": not finite");
}

void write_forensics(const std::filesystem::path& run_dir, const Config& config,
                     const StepReport& report, const TokenBatch& batch, const WindowSet& windows,
                     LanguageModel& model, const StepOptions& options) {
  const std::filesystem::path folder = run_dir / "nonfinite" / str("step_", report.step);
  try {
    make_folders(folder);
    write_batch(folder / "batch.safetensors", batch);
    write_file_atomic(folder / "report.json", report_json(report, batch, windows, model, options));
    write_file_atomic(folder / "config.yaml", dump_config(config));
  } catch (const Error& error) {
    log::warn(str("the batch of step ", report.step, " could not be kept: ", error.what()));
  }
}

}  // namespace cplm
