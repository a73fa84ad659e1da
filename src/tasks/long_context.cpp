// cplm eval long-context: loss, gates and copy distance by position over long documents, one
// forward each (PROTOCOLS.md 5.3).
#include <CLI/App.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "cplm/base.h"
#include "model/head.h"
#include "tasks/arguments.h"
#include "tasks/long_context_report.h"
#include "tasks/scored_units.h"
#include "tasks/task_data.h"
#include "tasks/task_list.h"

namespace cplm {
namespace {

// A piece holds sums of every run of positions: few pieces, so that their file stays small.
constexpr int64_t kMostPieces = 64;

class LongContext : public Task {
 public:
  void add_arguments(CLI::App& command) override;
  void check(const std::vector<Subject>& subjects) const override { open_units(subjects); }
  TaskResult run(const std::vector<Subject>& subjects, TaskRun& run) override;

 private:
  std::unique_ptr<ScoredUnits> open_units(const std::vector<Subject>& subjects) const;
  PositionSums measure(const Subject& subject, const ScoredUnits& units, const PositionPlan& plan,
                       TaskRun& run) const;

  DataArgument data_;
  int64_t length_ = 16384, documents_ = 0, smooth_ = 256, batch_ = 1;
  bool packed_ = false;
};

void LongContext::add_arguments(CLI::App& command) {
  add_data_argument(command, data_);
  command.add_option("--length", length_, "Tokens predicted of each document, in one forward")
      ->check(whole_from(1))
      ->capture_default_str();
  command
      .add_option(
          "--documents", documents_,
          "The first so many documents that are long enough (windows with --packed); 0: all")
      ->check(whole_from(0))
      ->capture_default_str();
  command.add_flag("--packed", packed_,
                   "Windows of the length over documents one behind the other, as in training");
  command.add_option("--smooth", smooth_, "Positions of the curves' centred window")
      ->check(whole_from(1))
      ->capture_default_str();
  command.add_option("--batch", batch_, "Documents or windows at once")
      ->check(whole_from(1))
      ->capture_default_str();
}

int64_t units_a_piece(const ScoredUnits& units, int64_t batch) {
  const int64_t least = (units.size() + kMostPieces - 1) / kMostPieces;
  return (least + batch - 1) / batch * batch;
}

PositionSums LongContext::measure(const Subject& subject, const ScoredUnits& units,
                                  const PositionPlan& plan, TaskRun& run) const {
  PositionSums sums(plan);
  std::shared_ptr<LanguageModel> model;
  const int64_t step = units_a_piece(units, batch_);
  for (int64_t first = 0; first < units.size(); first += step) {
    const int64_t last = std::min(units.size(), first + step);
    const Json piece = run.piece(subject, str("units ", first, "-", last), [&] {
      if (!model) model = subject.open();
      PositionSums part(plan);
      for (int64_t begin = first; begin < last; begin += batch_) {
        const ModelInput input = units.input(begin, std::min(last, begin + batch_), subject,
                                             model->options().tensor.device());
        const at::Tensor hidden = model->hidden(input);
        part.add(model->head().score(hidden, input), model->head().copy_distance(hidden, input),
                 input.targets);
      }
      return part.to_json();
    });
    sums.add(PositionSums::from_json(piece, plan));
  }
  return sums;
}

std::unique_ptr<ScoredUnits> LongContext::open_units(const std::vector<Subject>& subjects) const {
  const std::vector<std::string> patterns = data_patterns(data_, subjects);
  std::unique_ptr<ScoredUnits> units = packed_ ? full_windows(patterns, length_, documents_)
                                               : long_documents(patterns, length_, documents_);
  check_same_tokens(units->shards(), subjects);
  return units;
}

TaskResult LongContext::run(const std::vector<Subject>& subjects, TaskRun& run) {
  const std::unique_ptr<ScoredUnits> units = open_units(subjects);
  const PositionPlan plan(length_, smooth_);
  Json all = {{"format", "cplm-eval-long-context-1"},
              {"data",
               {{"unit", packed_ ? "window" : "document"},
                {"sequences", units->size()},
                {"length", length_},
                {"smooth", smooth_},
                {"stride", plan.stride},
                {"data_sha256", contents_of(units->shards())}}}};
  const int64_t step = units_a_piece(*units, batch_);
  run.begin(all.dump(), (units->size() + step - 1) / step * static_cast<int64_t>(subjects.size()));
  std::vector<PositionSums> sums;
  for (const Subject& subject : subjects) sums.push_back(measure(subject, *units, plan, run));
  const double counted = sums.front().total()[kNumCounted];
  if (counted == 0) {
    throw Error("[eval.long-context] no target is counted; check loss_mask of the shards",
                ExitCode::kBadData);
  }
  all["data"]["counted_tokens"] = static_cast<int64_t>(counted);
  all["subjects"] = Json::array();
  for (size_t i = 0; i < subjects.size(); ++i) {
    all["subjects"].push_back(long_context_json(subjects[i], sums[i], sums.front(), plan));
  }
  return long_context_result(all);
}

}  // namespace

const TaskKind kLongContextTask = {
    "long-context", "Loss, gates and copy distance by position in long documents",
    R"(Documents of at least length + 1 tokens; the first `length` predicted in one forward, without a
stride. By position, averaged over documents: loss, and of a CPLM the copy gate c, the sink s, the
copied weight c (1 - s) and the mean copy distance, sum over i of alpha_i (t - i) / (1 - s). Buckets
double from 1,024 on; the last 1,024 positions (less where the length is under 16,384) stand apart:
"perplexity at 16k". Full layers read beyond their training by --yarn; sliding ones need nothing.

Examples:
  cplm eval long-context runs/sliding-cplm --data "data/long/*.h5" --documents 100 --out results
  cplm eval long-context runs/vanilla runs/cplm --length 4096 --packed --documents 32
)",
    make_task<LongContext>};

}  // namespace cplm
