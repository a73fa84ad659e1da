// cplm eval perplexity: mean loss over shards in the three modes, bits per byte, and the paired
// difference to the first model.
#include <CLI/App.hpp>
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "cplm/base.h"
#include "cplm/copy_modes.h"
#include "runs/json_number.h"
#include "runs/paired_difference.h"
#include "tasks/arguments.h"
#include "tasks/result_table.h"
#include "tasks/task_data.h"
#include "tasks/task_list.h"
#include "tasks/unit_scores.h"

namespace cplm {
namespace {

class Perplexity : public Task {
 public:
  void add_arguments(CLI::App& command) override { arguments_.add(command); }
  void check(const std::vector<Subject>& subjects) const override { arguments_.open(subjects); }
  TaskResult run(const std::vector<Subject>& subjects, TaskRun& run) override;

 private:
  UnitArguments arguments_;
};

// In the order of CopyMode.
constexpr Sum kLosses[] = {kLoss, kLossNoCopy, kLossForceCopy};

Json mode_json(double loss_sum, double counted, const std::optional<int64_t>& bytes) {
  const double loss = loss_sum / counted;
  Json mode = {{"loss", json_number(loss)}, {"perplexity", json_number(std::exp(loss))}};
  if (bytes && *bytes > 0) {
    mode["bits_per_byte"] = json_number(loss_sum / std::log(2.0) / static_cast<double>(*bytes));
  }
  return mode;
}

Json subject_json(const Subject& subject, const UnitSums& sums, const UnitSums& baseline,
                  const std::optional<int64_t>& bytes) {
  const Sums total = sums.total();
  const double counted = total[kCounted];
  Json found = subject_header(subject);
  const bool copies = subject.config.model.head == HeadKind::kCplm;
  for (const auto& [name, mode] : copy_modes_of(subject.config.model.head)) {
    found["modes"][name] = mode_json(total[kLosses[static_cast<size_t>(mode)]], counted, bytes);
  }
  if (copies) {
    found["copy_gate"] = json_number(total[kCopyGate] / counted);
    found["sink_mass"] = json_number(total[kSinkMass] / counted);
    found["copy_weight"] = json_number(total[kCopyWeight] / counted);
  }
  if (&sums == &baseline) return found;
  const auto difference = paired_difference(baseline.windows(), sums.windows());
  if (!difference) return found;
  found["difference"] = {{"mean", json_number(difference->mean)},
                         {"units", difference->num_windows}};
  if (difference->interval) {
    found["difference"]["low"] = json_number(difference->interval->low);
    found["difference"]["high"] = json_number(difference->interval->high);
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

TaskResult Perplexity::run(const std::vector<Subject>& subjects, TaskRun& run) {
  const std::unique_ptr<ScoredUnits> units = arguments_.open(subjects);
  Json all = {{"format", "cplm-eval-perplexity-1"},
              {"data", arguments_.description(*units, subjects)}};
  run.begin(all.dump(), UnitArguments::num_pieces(*units) * static_cast<int64_t>(subjects.size()));
  std::vector<UnitSums> sums;
  for (const Subject& subject : subjects) sums.push_back(arguments_.measure(subject, *units, run));
  check_counted(sums.front());
  std::optional<int64_t> bytes;
  if (const std::unique_ptr<TextBytes> text = TextBytes::find(units->shards(), subjects)) {
    bytes = 0;
    for (int64_t unit = 0; unit < units->size(); ++unit) *bytes += units->target_bytes(unit, *text);
  }
  all["data"]["counted_tokens"] = static_cast<int64_t>(sums.front().total()[kCounted]);
  all["data"]["bytes"] = bytes ? Json(*bytes) : Json(nullptr);
  all["subjects"] = Json::array();
  for (size_t i = 0; i < subjects.size(); ++i) {
    all["subjects"].push_back(subject_json(subjects[i], sums[i], sums.front(), bytes));
  }
  return report(all);
}

}  // namespace

const TaskKind kPerplexityTask = {
    "perplexity", "Loss, perplexity and bits per byte in the three modes",
    R"(Loss is the mean of -log P(target), in nats a token, over the counted targets; perplexity its exp.
Modes: natural is the model's P, no_copy the LM head alone, force_copy the Copy-Paste head alone,
which is infinite as soon as one target is nowhere in its context. Bits per byte count the bytes of
the text, end-of-document tokens having none. The difference to the first model is paired by window
or document, each as one cluster.

Examples:
  cplm eval perplexity runs/vanilla runs/cplm --out results
  cplm eval perplexity runs/cplm --data "data/books/*.h5" --context 4096 --per-document
)",
    make_task<Perplexity>};

}  // namespace cplm
