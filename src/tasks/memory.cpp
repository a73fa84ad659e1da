// cplm eval memory: sizes of decoding caches by arithmetic, against full attention and against the
// first model, and with shards the loss that each size buys.
#include <CLI/App.hpp>
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "cplm/base.h"
#include "cplm/decode.h"
#include "runs/json_number.h"
#include "tasks/arguments.h"
#include "tasks/result_table.h"
#include "tasks/task_list.h"
#include "tasks/unit_scores.h"

namespace cplm {
namespace {

constexpr int64_t kShortest = 1024, kLongest = 65536;  // lengths when none are asked for

void sort_once(std::vector<int64_t>& values) {
  std::ranges::sort(values);
  values.erase(std::unique(values.begin(), values.end()), values.end());
}

bool slides(const ModelConfig& model) {
  const auto& kinds = model.layer_types;
  return std::find(kinds.begin(), kinds.end(), LayerKind::kSliding) != kinds.end();
}

// The same sizes with attention over everything and without a copy head.
ModelConfig full_vanilla(const ModelConfig& model) {
  ModelConfig full = model;
  full.layer_types.assign(model.layer_types.size(), LayerKind::kFull);
  full.head = HeadKind::kVanilla;
  return full;
}

ModelConfig with_window(const ModelConfig& model, int64_t window) {
  ModelConfig changed = model;
  changed.sliding_window = window;
  return changed;
}

class Memory : public Task {
 public:
  void add_arguments(CLI::App& command) override;
  bool needs_weights() const override { return false; }
  void check(const std::vector<Subject>& subjects) const override;
  TaskResult run(const std::vector<Subject>& subjects, TaskRun& run) override;

 private:
  bool measures_loss() const { return !units_.data().patterns.empty(); }
  std::vector<int64_t> default_lengths(const std::vector<Subject>& subjects) const;
  // Without the ids, which are counted apart.
  double cache(const ModelConfig& model, int64_t length) const {
    const CacheBytes bytes = cache_bytes(model, length, bytes_per_number_);
    return static_cast<double>(bytes.total() - bytes.copy_ids);
  }
  Json row(const ModelConfig& model, const ModelConfig& first, int64_t length) const;
  Json rows(const ModelConfig& model, const ModelConfig& first) const;
  void add_losses(const std::vector<Subject>& subjects, TaskRun& run, Json& all) const;

  std::vector<int64_t> lengths_, windows_;
  int64_t bytes_per_number_ = 2;
  UnitArguments units_;
};

void Memory::add_arguments(CLI::App& command) {
  command
      .add_option("--lengths", lengths_,
                  "Tokens of one sequence, as 1024,4096; else 1,024 to 65,536, and with --data the "
                  "context")
      ->delimiter(',')
      ->check(whole_from(1));
  command
      .add_option("--windows", windows_,
                  "Other windows of sliding layers, as 32,64,128, by arithmetic")
      ->delimiter(',')
      ->check(whole_from(1));
  command
      .add_option("--bytes-per-number", bytes_per_number_,
                  "2: bfloat16, 4: float32; of keys, values and states")
      ->check(whole_from(1))
      ->capture_default_str();
  units_.add(command);
  for (const char* name : {"--context", "--per-document", "--sequences", "--batch"}) {
    command.get_option(name)->needs(command.get_option("--data"));
  }
}

void Memory::check(const std::vector<Subject>& subjects) const {
  if (!windows_.empty() && std::ranges::none_of(subjects, [](const Subject& subject) {
        return slides(subject.config.model);
      })) {
    throw Error("--windows: are of sliding layers, and no model has one", ExitCode::kBadConfig);
  }
  if (!measures_loss()) return;
  if (!windows_.empty()) {
    throw Error(
        "--windows: is arithmetic alone, and --data measures models as they were trained; "
        "give checkpoints of other windows, or leave one of both out",
        ExitCode::kBadConfig);
  }
  for (const Subject& subject : subjects) {
    if (subject.open) continue;
    throw Error(str("--data: expected checkpoints, found ", subject.path, ", a config without ",
                    "weights; leave --data out, or give the run's folder"),
                ExitCode::kBadConfig);
  }
  units_.open(subjects);
}

std::vector<int64_t> Memory::default_lengths(const std::vector<Subject>& subjects) const {
  if (measures_loss()) return {units_.context(subjects)};
  std::vector<int64_t> lengths;
  for (int64_t length = kShortest; length <= kLongest; length *= 2) lengths.push_back(length);
  return lengths;
}

Json Memory::row(const ModelConfig& model, const ModelConfig& first, int64_t length) const {
  const CacheBytes bytes = cache_bytes(model, length, bytes_per_number_);
  const double all = cache(model, length);
  Json found = {{"window", slides(model) ? Json(model.sliding_window) : Json(nullptr)},
                {"length", length},
                {"keys_and_values", bytes.keys_and_values},
                {"states", bytes.states},
                {"copy_keys", bytes.copy_keys},
                {"copy_ids", bytes.copy_ids},
                {"cache", bytes.total() - bytes.copy_ids},
                {"of_full_vanilla", all / cache(full_vanilla(model), length)},
                {"of_first", all / cache(first, length)}};
  if (model.head == HeadKind::kCplm) {
    const auto copy = static_cast<double>(bytes.copy_keys);
    found["documents_of_cache"] = copy / all;
    found["documents_of_keys_and_values"] = copy / (all - copy);
  }
  return found;
}

Json Memory::rows(const ModelConfig& model, const ModelConfig& first) const {
  Json found = Json::array();
  const std::vector<int64_t> windows =
      slides(model) && !windows_.empty() ? windows_ : std::vector<int64_t>{model.sliding_window};
  for (const int64_t window : windows) {
    for (const int64_t length : lengths_) {
      found.push_back(row(with_window(model, window), first, length));
    }
  }
  return found;
}

void Memory::add_losses(const std::vector<Subject>& subjects, TaskRun& run, Json& all) const {
  const std::unique_ptr<ScoredUnits> units = units_.open(subjects);
  all["data"] = units_.description(*units, subjects);
  const Json measurement = {all["format"], all["data"]};
  run.begin(measurement.dump(),
            UnitArguments::num_pieces(*units) * static_cast<int64_t>(subjects.size()));
  for (size_t i = 0; i < subjects.size(); ++i) {
    const UnitSums sums = units_.measure(subjects[i], *units, run);
    check_counted(sums);
    const Sums total = sums.total();
    const double loss = total[kLoss] / total[kCounted];
    all["data"]["counted_tokens"] = static_cast<int64_t>(total[kCounted]);
    all["subjects"][i]["loss"] = json_number(loss);
    all["subjects"][i]["perplexity"] = json_number(std::exp(loss));
  }
}

std::string share_text(const Json& row, const char* key) {
  return row.contains(key) ? shown_share(row[key].get<double>()) : "-";
}

double mib(const Json& bytes) { return bytes.get<double>() / (1 << 20); }

void add_row(const Json& subject, const Json& row, ResultTable& shown, ResultTable& csv) {
  using Cell = ResultTable::Cell;
  const auto number = [](const Json& object, const char* key) -> Cell {
    if (!object.contains(key)) return {};
    return read_json_number(object[key]);
  };
  const Cell name = subject["name"].get<std::string>(), length = row["length"].get<int64_t>();
  const Cell window = row["window"].is_null() ? Cell() : Cell(row["window"].get<int64_t>());
  const Cell loss = number(subject, "loss"), perplexity = number(subject, "perplexity");
  std::vector<Cell> seen = {name,
                            window,
                            length,
                            mib(row["keys_and_values"]),
                            mib(row["states"]),
                            mib(row["copy_keys"]),
                            mib(row["cache"]),
                            mib(row["copy_ids"]),
                            share_text(row, "of_full_vanilla"),
                            share_text(row, "of_first"),
                            share_text(row, "documents_of_cache")};
  if (subject.contains("loss")) seen.insert(seen.end(), {loss, perplexity});
  shown.add_row(seen);
  std::vector<Cell> cells = {name, subject["head"].get<std::string>(), window, length};
  for (const char* key : {"keys_and_values", "states", "copy_keys", "copy_ids", "cache"}) {
    cells.push_back(row[key].get<int64_t>());
  }
  for (const char* key :
       {"of_full_vanilla", "of_first", "documents_of_cache", "documents_of_keys_and_values"}) {
    cells.push_back(number(row, key));
  }
  cells.push_back(loss);
  cells.push_back(perplexity);
  csv.add_row(cells);
}

ResultTable shown_table(bool with_losses) {
  std::vector<ResultTable::Column> columns = {{"model", "model"},
                                              {"window", "window"},
                                              {"length", "tokens"},
                                              {"keys_and_values", "KV MiB", 2},
                                              {"states", "states MiB", 2},
                                              {"copy_keys", "copy keys MiB", 2},
                                              {"cache", "all MiB", 2},
                                              {"copy_ids", "ids MiB", 2},
                                              {"of_full_vanilla", "of full LM's"},
                                              {"of_first", "of first's"},
                                              {"documents_of_cache", "copy keys alone"}};
  if (with_losses) {
    columns.push_back({"loss", "loss", 4});
    columns.push_back({"perplexity", "perplexity", 2});
  }
  return ResultTable(columns);
}

ResultTable csv_table() {
  std::vector<ResultTable::Column> columns;
  for (const char* name :
       {"model", "head", "window", "length", "keys_and_values", "states", "copy_keys", "copy_ids",
        "cache", "of_full_vanilla", "of_first", "documents_of_cache",
        "documents_of_keys_and_values", "loss", "perplexity"}) {
    columns.push_back({name, ""});
  }
  return ResultTable(columns);
}

TaskResult report(const Json& all) {
  ResultTable shown = shown_table(all.contains("data")), csv = csv_table();
  TaskResult result;
  for (const Json& subject : all["subjects"]) {
    for (const Json& row : subject["rows"]) add_row(subject, row, shown, csv);
    TaskSummary summary = {{"cache_mib", mib(subject["rows"].back()["cache"])}};
    if (subject.contains("loss")) summary.emplace_back("loss", read_json_number(subject["loss"]));
    result.summaries.push_back(summary);
  }
  result.json = json_text(all);
  result.table = shown.text();
  result.csv = csv.csv();
  return result;
}

TaskResult Memory::run(const std::vector<Subject>& subjects, TaskRun& run) {
  check(subjects);
  sort_once(windows_);
  sort_once(lengths_);
  if (lengths_.empty()) lengths_ = default_lengths(subjects);
  Json all = {{"format", "cplm-eval-memory-1"},
              {"bytes_per_number", bytes_per_number_},
              {"subjects", Json::array()}};
  for (const Subject& subject : subjects) {
    Json found = subject_header(subject);
    found["rows"] = rows(subject.config.model, subjects.front().config.model);
    all["subjects"].push_back(found);
  }
  if (measures_loss()) {
    add_losses(subjects, run, all);
  } else {
    run.begin(all.dump(), 0);
  }
  return report(all);
}

}  // namespace

const TaskKind kMemoryTask = {
    "memory", "Sizes of decoding caches, and the loss they buy",
    R"(Sizes of one sequence's decoding caches, by arithmetic: keys and values of full layers for every
token, of sliding layers for the window's last, states of linear layers, and one copy key a token.
"all" is their sum, and what the shares are of: of full attention without a copy head at the same
size, and of the first model. Token ids (4 bytes each) stand in a column of their own. "copy keys alone" is a document's
copy cache against the whole of this model's. Configs without weights will do; with --data the
picture is loss against memory, one mark a checkpoint.

Examples:
  cplm eval memory configs/1.7b-full-vanilla.yaml configs/1.7b-sliding-cplm.yaml --lengths 4096
  cplm eval memory configs/135m-sliding-cplm.yaml --windows 32,64,128,256,512,1024 --out results
  cplm eval memory runs/w32 runs/w256 runs/full --data "data/validation/*.h5" --out results
)",
    make_task<Memory>};

}  // namespace cplm
