// cplm eval perplexity: mean loss over shards in the three modes, bits per byte, and the paired
// difference to the first model.
#include <ATen/ops/stack.h>

#include <CLI/App.hpp>
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "cplm/base.h"
#include "cplm/eval.h"
#include "runs/json_number.h"
#include "runs/paired_difference.h"
#include "tasks/arguments.h"
#include "tasks/result_table.h"
#include "tasks/scored_units.h"
#include "tasks/task_data.h"
#include "tasks/task_list.h"

namespace cplm {
namespace {

// Sums over the counted targets of one window or document.
enum Sum {
  kLoss,
  kLossNoCopy,
  kLossForceCopy,
  kCopyGate,
  kSinkMass,
  kCopyWeight,
  kCounted,
  kNumSums
};
using Sums = std::array<double, kNumSums>;

// By unit of a batch.
std::vector<Sums> score_units(LanguageModel& model, const ModelInput& input) {
  const PositionScores scores = model.score(input);
  const at::Tensor counted = input.targets.ge(0).to(at::kDouble);
  const auto loss = [&](const at::Tensor& log_prob) {
    const at::Tensor& x = log_prob.defined() ? log_prob : scores.log_prob;
    return x.to(at::kDouble).sum(-1).neg();  // 0 where not counted
  };
  const auto gate = [&](const at::Tensor& x) {
    return x.defined() ? x.to(at::kDouble).mul(counted).sum(-1)
                       : counted.new_zeros(counted.size(0));
  };
  const at::Tensor sums =
      at::stack({loss(scores.log_prob), loss(scores.log_prob_no_copy),
                 loss(scores.log_prob_force_copy), gate(scores.copy_gate), gate(scores.sink_mass),
                 gate(scores.copy_weight), counted.sum(-1)},
                1)
          .cpu()
          .contiguous();
  std::vector<Sums> units(static_cast<size_t>(sums.size(0)));
  std::copy_n(sums.const_data_ptr<double>(), sums.numel(), units.front().data());
  return units;
}

struct SubjectSums {
  std::vector<Sums> units;
  Sums total() const {
    Sums total{};
    for (const Sums& unit : units) {
      for (size_t i = 0; i < kNumSums; ++i) total[i] += unit[i];
    }
    return total;
  }
  WindowSums windows() const {
    WindowSums sums;
    for (const Sums& unit : units) {
      sums.loss.push_back(unit[kLoss]);
      sums.counted.push_back(static_cast<int64_t>(unit[kCounted]));
    }
    return sums;
  }
};

class Perplexity : public Task {
 public:
  void add_arguments(CLI::App& command) override;
  void check(const std::vector<Subject>& subjects) const override { open_units(subjects); }
  TaskResult run(const std::vector<Subject>& subjects, TaskRun& run) override;

 private:
  std::unique_ptr<ScoredUnits> open_units(const std::vector<Subject>& subjects) const;
  SubjectSums measure(const Subject& subject, const ScoredUnits& units, TaskRun& run) const;
  Json description(const ScoredUnits& units) const;

  DataArgument data_;
  int64_t context_ = 0, sequences_ = 0, batch_ = 8;
  bool per_document_ = false;
};

constexpr int64_t kUnitsAPiece = 64;

void Perplexity::add_arguments(CLI::App& command) {
  add_data_argument(command, data_);
  command.add_option("--context", context_, "Tokens predicted in one go; 0: as in training")
      ->check(whole_from(0))
      ->capture_default_str();
  command.add_flag("--per-document", per_document_,
                   "Each document by itself, its first tokens up to the context");
  command.add_option("--sequences", sequences_, "The first so many windows or documents; 0: all")
      ->check(whole_from(0))
      ->capture_default_str();
  command.add_option("--batch", batch_, "Windows or documents at once")
      ->check(whole_from(1))
      ->capture_default_str();
}

std::unique_ptr<ScoredUnits> Perplexity::open_units(const std::vector<Subject>& subjects) const {
  const std::vector<std::string> patterns = data_patterns(data_, subjects);
  const int64_t context = common_context(context_, subjects);
  std::unique_ptr<ScoredUnits> units = per_document_
                                           ? single_documents(patterns, context, sequences_)
                                           : packed_windows(patterns, context, sequences_);
  check_same_tokens(units->shards(), subjects);
  if (sequences_ > units->size()) {
    log::warn(str("--sequences ", sequences_, ": there are only ", units->size()));
  }
  return units;
}

SubjectSums Perplexity::measure(const Subject& subject, const ScoredUnits& units,
                                TaskRun& run) const {
  SubjectSums sums;
  std::shared_ptr<LanguageModel> model;
  for (int64_t first = 0; first < units.size(); first += kUnitsAPiece) {
    const int64_t last = std::min(units.size(), first + kUnitsAPiece);
    const Json piece = run.piece(subject, str("units ", first), [&] {
      if (!model) model = subject.open();
      Json found = Json::array();
      for (int64_t begin = first; begin < last; begin += batch_) {
        const int64_t end = std::min(last, begin + batch_);
        const ModelInput input = units.input(begin, end, subject, model->options().tensor.device());
        for (const Sums& unit : score_units(*model, input)) {
          for (const double sum : unit) found.push_back(json_number(sum));
        }
      }
      return found;
    });
    for (int64_t unit = 0; unit < last - first; ++unit) {
      Sums& each = sums.units.emplace_back();
      for (size_t i = 0; i < kNumSums; ++i) {
        each[i] = read_json_number(piece.at(static_cast<size_t>(unit) * kNumSums + i));
      }
    }
  }
  return sums;
}

struct ModeColumn {
  const char* name;
  Sum sum;
};
constexpr ModeColumn kModes[] = {
    {"natural", kLoss}, {"no_copy", kLossNoCopy}, {"force_copy", kLossForceCopy}};

Json mode_json(double loss_sum, double counted, const std::optional<int64_t>& bytes) {
  const double loss = loss_sum / counted;
  Json mode = {{"loss", json_number(loss)}, {"perplexity", json_number(std::exp(loss))}};
  if (bytes && *bytes > 0) {
    mode["bits_per_byte"] = json_number(loss_sum / std::log(2.0) / static_cast<double>(*bytes));
  }
  return mode;
}

Json subject_json(const Subject& subject, const SubjectSums& sums, const SubjectSums& baseline,
                  const std::optional<int64_t>& bytes) {
  const Sums total = sums.total();
  const double counted = total[kCounted];
  Json found = subject_header(subject);
  const bool copies = subject.config.model.head == HeadKind::kCplm;
  for (const ModeColumn& mode : kModes) {
    if (copies || mode.sum == kLoss) {
      found["modes"][mode.name] = mode_json(total[mode.sum], counted, bytes);
    }
  }
  if (copies) {
    found["copy_gate"] = total[kCopyGate] / counted;
    found["sink_mass"] = total[kSinkMass] / counted;
    found["copy_weight"] = total[kCopyWeight] / counted;
  }
  if (&sums == &baseline) return found;
  const auto difference = paired_difference(baseline.windows(), sums.windows());
  if (!difference) return found;
  found["difference"] = {{"mean", difference->mean}, {"units", difference->num_windows}};
  if (difference->interval) {
    found["difference"]["low"] = difference->interval->low;
    found["difference"]["high"] = difference->interval->high;
  }
  return found;
}

ResultTable::Cell cell(const Json& object, const char* key) {
  if (!object.contains(key)) return {};
  return read_json_number(object[key]);
}

std::string difference_text(const Json& subject) {
  if (!subject.contains("difference")) return "-";
  const auto signed_number = [](const Json& x) {
    const double value = read_json_number(x);
    return (value < 0 ? "" : "+") + shown_number(value, 4);
  };
  const Json& difference = subject["difference"];
  if (!difference.contains("low")) return signed_number(difference["mean"]);
  return str(signed_number(difference["mean"]), " [", signed_number(difference["low"]), ", ",
             signed_number(difference["high"]), "]");
}

TaskResult report(const Json& all) {
  ResultTable shown({{"model", "model"},
                     {"mode", "mode"},
                     {"loss", "loss", 4},
                     {"perplexity", "perplexity", 2},
                     {"bits_per_byte", "bits/byte", 4},
                     {"copy_gate", "copy gate", 3},
                     {"sink_mass", "sink", 3},
                     {"copy_weight", "copied", 3},
                     {"difference", "loss - first's (95 %)"}});
  ResultTable csv({{"model", ""},
                   {"mode", ""},
                   {"loss", ""},
                   {"perplexity", ""},
                   {"bits_per_byte", ""},
                   {"copy_gate", ""},
                   {"sink_mass", ""},
                   {"copy_weight", ""},
                   {"difference", ""},
                   {"difference_low", ""},
                   {"difference_high", ""}});
  TaskResult result;
  for (const Json& subject : all["subjects"]) {
    for (const auto& [name, mode] : subject["modes"].items()) {
      std::vector<ResultTable::Cell> row = {subject["name"].get<std::string>(), name,
                                            cell(mode, "loss"), cell(mode, "perplexity"),
                                            cell(mode, "bits_per_byte")};
      const bool natural = name == "natural";
      const Json none = Json::object();
      for (const char* key : {"copy_gate", "sink_mass", "copy_weight"}) {
        row.push_back(cell(natural ? subject : none, key));
      }
      std::vector<ResultTable::Cell> csv_row = row;
      row.push_back(natural ? difference_text(subject) : "-");
      const Json& difference =
          natural && subject.contains("difference") ? subject["difference"] : none;
      for (const char* key : {"mean", "low", "high"}) csv_row.push_back(cell(difference, key));
      shown.add_row(row);
      csv.add_row(csv_row);
    }
    const Json& natural = subject["modes"]["natural"];
    TaskSummary summary = {{"loss", read_json_number(natural["loss"])}};
    if (natural.contains("bits_per_byte")) {
      summary.emplace_back("bits_per_byte", read_json_number(natural["bits_per_byte"]));
    }
    result.summaries.push_back(summary);
  }
  result.json = json_text(all);
  result.table = shown.text();
  result.csv = csv.csv();
  return result;
}

Json Perplexity::description(const ScoredUnits& units) const {
  return {{"unit", per_document_ ? "document" : "window"},
          {"sequences", units.size()},
          {"data_sha256", contents_of(units.shards())}};
}

TaskResult Perplexity::run(const std::vector<Subject>& subjects, TaskRun& run) {
  const std::unique_ptr<ScoredUnits> units = open_units(subjects);
  Json all = {{"format", "cplm-eval-perplexity-1"}, {"data", description(*units)}};
  all["data"]["context"] = common_context(context_, subjects);
  const int64_t pieces = (units->size() + kUnitsAPiece - 1) / kUnitsAPiece;
  run.begin(all.dump(), pieces * static_cast<int64_t>(subjects.size()));
  std::vector<SubjectSums> sums;
  for (const Subject& subject : subjects) sums.push_back(measure(subject, *units, run));
  const double counted = sums.front().total()[kCounted];
  if (counted == 0) {
    throw Error("[eval.perplexity] no target is counted; check loss_mask of the shards",
                ExitCode::kBadData);
  }
  std::optional<int64_t> bytes;
  if (const std::unique_ptr<TextBytes> text = TextBytes::find(units->shards(), subjects)) {
    bytes = 0;
    for (int64_t unit = 0; unit < units->size(); ++unit) *bytes += units->target_bytes(unit, *text);
  }
  all["data"]["counted_tokens"] = static_cast<int64_t>(counted);
  all["data"]["bytes"] = bytes ? Json(*bytes) : Json(nullptr);
  all["subjects"] = Json::array();
  for (size_t i = 0; i < subjects.size(); ++i) {
    all["subjects"].push_back(subject_json(subjects[i], sums[i], sums.front(), bytes));
  }
  return report(all);
}

}  // namespace

std::unique_ptr<Task> make_perplexity() { return std::make_unique<Perplexity>(); }

}  // namespace cplm
