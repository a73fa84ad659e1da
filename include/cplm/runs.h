// A run's folder as files that programs read: metrics.jsonl, per-window validation losses, and the
// comparison of several runs made from them. No LibTorch here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace cplm {

class AppendedFile;  // base/appended_file.h

// One line of metrics.jsonl ("kind":"train"). Fields and units: README, "A run's folder".
struct TrainRecord {
  int64_t step = 0, tokens = 0;
  double loss = 0, lr = 0, grad_norm = 0;
  double tokens_per_s = 0, step_ms = 0, data_wait_ms = 0;
  std::optional<double> mfu;
  double peak_memory_mb = 0;
  // Of several ranks only: the host's wait for gradients (null on a GPU, where the stream waits),
  // and the rank whose own work in a step took longest, with that time.
  std::optional<double> reduce_wait_ms = {};
  std::optional<int64_t> slowest_rank = {};
  std::optional<double> slowest_rank_ms = {};
};
struct CopyMeans {  // CPLM only
  double loss_no_copy = 0, copy_gate = 0, sink_mass = 0, copy_weight = 0;
};
// One line of metrics.jsonl ("kind":"validation").
struct ValidationRecord {
  int64_t step = 0, tokens = 0;
  double loss = 0;
  double perplexity = 0;  // exp(loss); infinite is written as the string "inf"
  int64_t counted_tokens = 0;
  std::optional<CopyMeans> copy;
};
// One line of metrics.jsonl ("kind":"task"): what an evaluation of validation.tasks found.
struct TaskRecord {
  int64_t step = 0, tokens = 0;
  std::string task;  // as validation.tasks names it
  std::vector<std::pair<std::string, double>> numbers;
};
// One line of metrics.jsonl ("kind":"gradients"): norms of one step's gradient before clipping, by
// path; the copy head's two of CPLM only.
struct GradientPaths {
  double lm_head = 0;
  std::optional<double> copy_token, cp_head;
};
struct GradientsRecord {
  int64_t step = 0, tokens = 0;
  GradientPaths weights;        // of the paths' weights ...
  double backbone = 0;          // ... and of all others
  GradientPaths hidden;         // of the hidden states, by the path that it reached them on
  double copyable_targets = 0;  // share of the counted targets that occur in their context
};
// What a source of a mixture has given so far.
struct SourceShare {
  std::string path;
  double weight = 0;  // as a share of all
  double share = 0;   // achieved: of the sequences
  double epochs = 0;
};
// One line of metrics.jsonl ("kind":"data").
struct DataRecord {
  int64_t step = 0, tokens = 0;
  std::vector<SourceShare> sources;
};

// One line of metrics.jsonl ("kind":"settings"): the run went on from `step` with other settings
// than those that trained it so far. Of those that change numbers only; values as flatten_config
// has them, or kNotGiven.
struct SettingChange {
  std::string key, before, now;
  bool operator==(const SettingChange&) const = default;
};
struct SettingsRecord {
  int64_t step = 0, tokens = 0;
  std::vector<SettingChange> changes;  // by key
  bool operator==(const SettingsRecord&) const = default;
};
// Where a run goes on, and with which settings.
struct ResumePoint {
  int64_t step = 0, tokens = 0;
  std::vector<SettingChange> changes = {};           // since its checkpoint
  std::map<std::string, std::string> settings = {};  // all of now: flatten_config
  std::vector<std::string> kinds_to_come = {};  // lines of the step itself that will be made anew
  std::filesystem::path origin = {};  // the run whose checkpoint it goes on from, when not its own
};

// Appends to RUN/metrics.jsonl, each line handed to the system whole, or (full disk) not at all;
// doubles as their shortest exact decimal; a number that is not finite becomes the string "nan",
// "inf" or "-inf".
class MetricsWriter {
 public:
  // Resuming at `resume_step`: lines of later steps, and damaged or torn ones, move to
  // metrics.stale.jsonl (appended); the rest stays byte for byte. A fresh run: -1 keeps nothing.
  MetricsWriter(const std::filesystem::path& run_dir, int64_t resume_step);
  // The same at resume.step, where one line of kind "settings" then tells what changed, none if
  // nothing did: those of earlier attempts to go on from there are merged into it.
  MetricsWriter(const std::filesystem::path& run_dir, const ResumePoint& resume);
  ~MetricsWriter();
  void write(const TrainRecord& record);
  void write(const ValidationRecord& record);
  void write(const TaskRecord& record);
  void write(const GradientsRecord& record);
  void write(const DataRecord& record);
  // {"kind":"nonfinite","step":...,"windows":[...]}
  void write_nonfinite(int64_t step, const std::vector<int64_t>& windows);
  // {"kind":"loss_spike","step":...,"loss":...,"windows":[...]}; windows: of a batch left out
  void write_loss_spike(int64_t step, double loss, const std::vector<int64_t>& windows);
  void sync();  // fsync, before a checkpoint that counts on the lines

 private:
  std::unique_ptr<AppendedFile> file_;
  void append(const std::string& line);
};

struct Metrics {
  std::vector<TrainRecord> train;
  std::vector<ValidationRecord> validation;
  std::vector<TaskRecord> tasks;
  std::vector<GradientsRecord> gradients;
  std::vector<SettingsRecord> settings;
  std::vector<int64_t> nonfinite_steps;  // whose batches were left out
  std::vector<std::string> warnings;     // a torn last line, for instance
};
// Unknown kinds and fields are passed over. Error(kBadData) naming file and line of any other
// damage, Error(kBadConfig) when there is no such file.
Metrics read_metrics(const std::filesystem::path& run_dir);

// RUN/validation/step_N.h5: float64 `loss_sum` and int64 `counted` for each validation window, and
// attributes step, tokens, sequence_length, validation_id (sha256 naming the windows, so that only
// equal validation sets are paired). Written aside and renamed.
struct WindowLosses {
  int64_t step = 0, tokens = 0, sequence_length = 0;
  std::string validation_id;
  std::vector<double> loss_sum;
  std::vector<int64_t> counted;
};
std::filesystem::path window_losses_path(const std::filesystem::path& run_dir, int64_t step);
void write_window_losses(const std::filesystem::path& run_dir, const WindowLosses& losses);
WindowLosses read_window_losses(const std::filesystem::path& file);
// Its validation_id alone. Error(kBadData) when the file is of another step.
std::string read_validation_id(const std::filesystem::path& file, int64_t step);

// The first run is the baseline. Prints the table, and with `out` writes compare.json,
// compare.csv, compare.png and compare.svg there. Error(kBadConfig) for runs that cannot be
// compared, Error(kFailed) when only the pictures could not be drawn.
struct CompareOptions {
  std::vector<std::filesystem::path> runs;
  std::optional<std::filesystem::path> out;
};
void compare_runs(const CompareOptions& options);
// How the figures of a comparison are defined, for --help.
std::string compare_rules();

}  // namespace cplm
