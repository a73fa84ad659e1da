// cplm eval gradient: how much of the gradient at the logits the LM head passes on to the hidden
// states, and how much of that at the copy scores the Copy-Paste head does, by position.
#include <ATen/ops/linalg_vector_norm.h>

#include <CLI/App.hpp>
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "cplm/base.h"
#include "cplm/eval.h"
#include "tasks/arguments.h"
#include "tasks/gradient_paths.h"
#include "tasks/gradient_projection.h"
#include "tasks/gradient_readings.h"
#include "tasks/task_data.h"
#include "tasks/task_list.h"

namespace cplm {
namespace {

constexpr int64_t kNumbersAtOnce = int64_t{1} << 22;  // of gradients at the logits
constexpr int64_t kDensePositions = 64;               // up to here powers of two

double norm_of(const at::Tensor& x) { return at::linalg_vector_norm(x).item<double>(); }

PathReading read_path(const PathGradient& path, int64_t rows, bool has_sink) {
  PathReading reading;
  if (!path.defined()) return reading;
  const double norm = norm_of(path.gradient);
  if (norm == 0) return reading;
  const auto width = static_cast<double>(path.map.size(1));
  reading.random = std::sqrt(std::min(1.0, width / static_cast<double>(rows)));
  const ColumnSpace space(path.map);
  reading.transferred = space.transferred(path.gradient);
  for (size_t i = 0; i < kTolerances.size(); ++i) {
    const ColumnSpace::Shares shares = space.shares(path.gradient, kTolerances[i].rtol);
    reading.kept[i] = shares.kept;
    reading.lost[i] = shares.lost;
  }
  if (!has_sink) return reading;
  const PathGradient context = path.without_last_row();
  const ColumnSpace of_context(context.map);
  const double share = norm_of(context.gradient) / norm;
  for (size_t i = 0; i < kTolerances.size(); ++i) {
    reading.kept_without_sink[i] =
        share * of_context.shares(context.gradient, kTolerances[i].rtol).kept;
  }
  return reading;
}

void read_lm_head(const SequenceGradients& gradients, const TallColumnSpace& space,
                  int64_t positions, int64_t vocab_size, SequenceReadings& readings) {
  const int64_t rows = std::max<int64_t>(1, kNumbersAtOnce / vocab_size);
  const auto append = [](const at::Tensor& x, std::vector<double>& numbers) {
    const at::Tensor host = x.cpu();
    numbers.insert(numbers.end(), host.const_data_ptr<double>(),
                   host.const_data_ptr<double>() + host.numel());
  };
  for (int64_t begin = 0; begin < positions; begin += rows) {
    const TallColumnSpace::Shares shares =
        space.shares(gradients.at_logits(begin, std::min(begin + rows, positions)));
    append(shares.kept, readings.lm_kept);
    append(shares.lost, readings.lm_lost);
  }
}

class Gradient : public Task {
 public:
  void add_arguments(CLI::App& command) override;
  void check(const std::vector<Subject>& subjects) const override { open_windows(subjects); }
  TaskResult run(const std::vector<Subject>& subjects, TaskRun& run) override;

 private:
  std::unique_ptr<WindowSet> open_windows(const std::vector<Subject>& subjects) const;
  std::vector<int64_t> positions_of(int64_t context) const;
  SequenceReadings measure(LanguageModel& model, const ModelInput& input,
                           const TallColumnSpace& space) const;
  GradientSummary measure(const Subject& subject, const WindowSet& windows, TaskRun& run) const;
  int64_t num_sequences(const WindowSet& windows) const {
    return std::min(sequences_, windows.size());
  }

  DataArgument data_;
  int64_t context_ = 0, sequences_ = 16, stride_ = 32;
};

void Gradient::add_arguments(CLI::App& command) {
  add_data_argument(command, data_);
  command.add_option("--context", context_, "Tokens a sequence; 0: as in training")
      ->check(whole_from(0))
      ->capture_default_str();
  command.add_option("--sequences", sequences_, "The first so many whole windows")
      ->check(whole_from(1))
      ->capture_default_str();
  command
      .add_option("--stride", stride_,
                  "Positions of the copy head's paths: 1, 2, 4 ... 64, from there on every so "
                  "many, and the last")
      ->check(whole_from(1))
      ->capture_default_str();
}

std::unique_ptr<WindowSet> Gradient::open_windows(const std::vector<Subject>& subjects) const {
  auto windows = std::make_unique<WindowSet>(data_patterns(data_, subjects),
                                             common_context(context_, subjects),
                                             WindowSet::ShortWindows::kDrop);
  check_same_tokens(windows->shards(), subjects);
  return windows;
}

std::vector<int64_t> Gradient::positions_of(int64_t context) const {
  std::vector<int64_t> positions;
  for (int64_t t = 1; t <= std::min(kDensePositions, context); t *= 2) positions.push_back(t);
  for (int64_t t = kDensePositions + stride_; t <= context; t += stride_) positions.push_back(t);
  if (positions.back() != context) positions.push_back(context);
  return positions;
}

SequenceReadings Gradient::measure(LanguageModel& model, const ModelInput& input,
                                   const TallColumnSpace& space) const {
  const int64_t context = input.ids.size(1);
  const SequenceGradients gradients(model, input);
  SequenceReadings readings;
  read_lm_head(gradients, space, context, model.config().vocab_size, readings);
  if (model.config().head != HeadKind::kCplm) return readings;
  for (const int64_t position : positions_of(context)) {
    PathGradient query;
    if (gradients.is_counted(position - 1)) query = gradients.of_query(position - 1);
    const PathGradient key = gradients.of_key(position - 1);
    // The protocol's curve takes t rows at position t, without the sink's.
    const int64_t query_rows = query.defined() ? std::max<int64_t>(1, query.map.size(0) - 1) : 1;
    readings.query.push_back(read_path(query, query_rows, /*has_sink=*/true));
    readings.key.push_back(read_path(key, key.defined() ? key.map.size(0) : 1, /*has_sink=*/false));
  }
  return readings;
}

GradientSummary Gradient::measure(const Subject& subject, const WindowSet& windows,
                                  TaskRun& run) const {
  std::shared_ptr<LanguageModel> model;
  std::unique_ptr<TallColumnSpace> space;
  const auto open = [&] {
    if (model) return;
    model = subject.open();
    space = std::make_unique<TallColumnSpace>(lm_head_matrix(*model));
  };
  GradientSummary summary;
  const ModelConfig& config = subject.config.model;
  summary.positions = positions_of(windows.sequence_length());
  summary.head_rows = config.vocab_size + (config.head == HeadKind::kCplm ? 1 : 0);
  summary.rank = run.piece(subject, "rank",
                           [&] {
                             open();
                             return Json(space->rank());
                           })
                     .get<int64_t>();
  for (int64_t i = 0; i < num_sequences(windows); ++i) {
    const Json piece = run.piece(subject, str("sequence ", i), [&] {
      open();
      const TokenBatch batch = windows.read_batch({i});
      const ModelInput input = model_input(batch, 0, 1, subject.config.data.intra_document_mask,
                                           model->options().tensor.device());
      return measure(*model, input, *space).json();
    });
    summary.sequences.push_back(SequenceReadings::read(piece));
  }
  return summary;
}

TaskResult Gradient::run(const std::vector<Subject>& subjects, TaskRun& run) {
  const std::unique_ptr<WindowSet> opened = open_windows(subjects);
  const WindowSet& windows = *opened;
  if (sequences_ > windows.size()) {
    log::warn(str("--sequences ", sequences_, ": there are only ", windows.size()));
  }
  Json all = {{"format", "cplm-eval-gradient-1"},
              {"data",
               {{"data_sha256", contents_of(windows.shards())},
                {"context", windows.sequence_length()},
                {"sequences", num_sequences(windows)},
                {"stride", stride_}}}};
  run.begin(all.dump(), (num_sequences(windows) + 1) * static_cast<int64_t>(subjects.size()));
  all["subjects"] = Json::array();
  for (const Subject& subject : subjects) {
    Json found = subject_header(subject);
    describe_gradients(measure(subject, windows, run), found);
    all["subjects"].push_back(std::move(found));
  }
  return gradient_report(all);
}

}  // namespace

const TaskKind kGradientTask = {
    "gradient", "How much of its gradient each head passes on",
    R"(The gradient of -log P at the logits reaches the hidden state only as far as it lies in the column
space of the LM head's matrix: kept is the norm of its projection there over its own, lost that of
the rest, energy lost the square. The same for the gradient at the copy scores of a query, and of a
key, by position, with singular values up to 1e-12, 1e-3 or 1e-2 of the largest counted as none; the
reading "sink lost" counts the sink's entry as lost, transfer is ||M^T g|| / (sigma_max ||g||).

Examples:
  cplm eval gradient runs/vanilla runs/cplm --out results
  cplm eval gradient runs/cplm --sequences 64 --context 512 --stride 64
)",
    make_task<Gradient>};

}  // namespace cplm
