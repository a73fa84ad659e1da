// cplm eval ruler: answers RULER's prepared questions, scores them as RULER does, and hands on the
// predictions in its own form.
#include <CLI/App.hpp>
#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "cplm/base.h"
#include "tasks/arguments.h"
#include "tasks/result_table.h"
#include "tasks/ruler_data.h"
#include "tasks/ruler_tasks.h"
#include "tasks/task_list.h"
#include "tasks/text_model.h"

namespace cplm {
namespace {

constexpr int64_t kRowsAPiece = 25;

class Ruler : public Task {
 public:
  void add_arguments(CLI::App& command) override;
  void check(const std::vector<Subject>& subjects) const override {
    find_ruler_files(data_, rows_);
    for (const Subject& subject : subjects) TextModel model(subject);
  }
  TaskResult run(const std::vector<Subject>& subjects, TaskRun& run) override;

 private:
  std::vector<std::string> answer(const RulerFile& file, TextModel& model, TaskRun& run) const;
  Json measure(const Subject& subject, const std::vector<RulerFile>& files,
               const std::string& folder, TaskRun& run, std::vector<TaskFile>& predictions) const;
  TaskFile prediction_file(const std::string& folder, const RulerFile& file,
                           std::vector<std::string> answers) const;

  std::vector<std::string> data_;
  int64_t rows_ = 0, max_new_tokens_ = 0;
  AnswerOptions answers_;
};

void Ruler::add_arguments(CLI::App& command) {
  command
      .add_option("--data", data_,
                  "RULER's prepared files, or folders LENGTH/TASK/validation.jsonl (any number of "
                  "times)")
      ->required()
      ->allow_extra_args(false);
  command.add_option("--samples", rows_, "The first so many questions of each file; 0: all")
      ->check(whole_from(0))
      ->capture_default_str();
  command
      .add_option("--new-tokens", max_new_tokens_,
                  "Tokens of an answer, at most; 0: the task's own (niah 128, vt 30, cwe 120, fwe "
                  "50, qa 32)")
      ->check(whole_from(0))
      ->capture_default_str();
  add_batch_tokens_argument(command, answers_.batch_tokens);
}

std::vector<std::string> Ruler::answer(const RulerFile& file, TextModel& model,
                                       TaskRun& run) const {
  AnswerOptions options = answers_;
  options.max_new_tokens = max_new_tokens_ > 0 ? max_new_tokens_ : *ruler_answer_tokens(file.task);
  std::vector<RulerRow> rows;
  std::vector<std::string> answers;
  for (int64_t begin = 0; begin < file.rows; begin += kRowsAPiece) {
    const int64_t end = std::min(file.rows, begin + kRowsAPiece);
    const std::string name = str(file.task, " ", file.sha256, " ", options.max_new_tokens, " rows ",
                                 begin, " to ", end, " ", model.tokenizer_hash());
    const Json piece = run.piece(model.subject(), name, [&]() -> Json {
      if (rows.empty()) rows = read_ruler_file(file.path, rows_);
      std::vector<std::vector<int64_t>> prompts;
      for (int64_t i = begin; i < end; ++i) {
        prompts.push_back(model.encode(rows.at(static_cast<size_t>(i)).prompt));
      }
      return model.answer(prompts, options);
    });
    for (const Json& each : piece) answers.push_back(each.get<std::string>());
  }
  return answers;
}

// Read anew when it is written: at 128k tokens the prompts of a task take hundreds of megabytes.
TaskFile Ruler::prediction_file(const std::string& folder, const RulerFile& file,
                                std::vector<std::string> answers) const {
  return {str("predictions/", folder, "/", file.length, "/", file.task, ".jsonl"),
          [path = file.path, rows = rows_, answers = std::move(answers)] {
            std::string text;
            size_t i = 0;
            for (const RulerRow& row : read_ruler_file(path, rows)) {
              const Json line = {{"index", row.index},   {"pred", answers.at(i++)},
                                 {"input", row.prompt},  {"outputs", row.outputs},
                                 {"others", row.others}, {"truncation", row.truncation},
                                 {"length", row.length}};
              text += line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
            }
            return text;
          }};
}

// Means over those of RULER's tasks that are there: of its eight needle tasks, and of all thirteen.
Json means_of(const Json& tasks, int64_t length) {
  double needle_sum = 0, sum = 0;
  int64_t needles = 0, all = 0;
  for (const Json& task : tasks) {
    if (task["length"] != length) continue;
    const std::vector<std::string>& names = ruler_tasks();
    const auto found = std::find(names.begin(), names.end(), task["task"].get<std::string>());
    if (found == names.end()) continue;
    const double score = task["score"].get<double>();
    sum += score;
    ++all;
    if (found - names.begin() >= static_cast<int64_t>(kRulerNeedleTasks)) continue;
    needle_sum += score;
    ++needles;
  }
  const auto mean = [](double total, int64_t count) {
    return count > 0 ? Json(total / static_cast<double>(count)) : Json(nullptr);
  };
  return {{"length", length},
          {"niah_mean", mean(needle_sum, needles)},
          {"niah_tasks", needles},
          {"mean", mean(sum, all)},
          {"tasks", all}};
}

std::vector<int64_t> lengths_of(const std::vector<RulerFile>& files) {
  std::vector<int64_t> lengths;
  for (const RulerFile& file : files) {
    if (lengths.empty() || lengths.back() != file.length) lengths.push_back(file.length);
  }
  return lengths;
}

// The models' names as those of folders, no two alike.
std::vector<std::string> folder_names(const std::vector<Subject>& subjects) {
  std::vector<std::string> folders;
  for (const Subject& subject : subjects) {
    std::string folder = subject.name;
    for (char& c : folder) {
      const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
                         (c >= 'A' && c <= 'Z') || c == '-' || c == '_' || c == '.';
      if (!plain) c = '_';
    }
    if (folder.starts_with('.')) folder.insert(0, "_");
    const std::string plain = folder;
    for (int i = 2; std::find(folders.begin(), folders.end(), folder) != folders.end(); ++i) {
      folder = str(plain, "-", i);
    }
    folders.push_back(folder);
  }
  return folders;
}

Json Ruler::measure(const Subject& subject, const std::vector<RulerFile>& files,
                    const std::string& folder, TaskRun& run,
                    std::vector<TaskFile>& predictions) const {
  TextModel model(subject);
  Json found = subject_header(subject);
  found["tasks"] = Json::array();
  for (const RulerFile& file : files) {
    std::vector<std::string> answers = answer(file, model, run);
    double sum = 0;
    int64_t empty = 0;
    const std::vector<RulerRow> rows = read_ruler_file(file.path, rows_);
    for (size_t i = 0; i < rows.size(); ++i) {
      const std::string text = ruler_cleaned(answers.at(i));
      sum += ruler_score(file.task, text, rows[i].outputs);
      if (text.empty()) ++empty;
    }
    found["tasks"].push_back({{"task", file.task},
                              {"length", file.length},
                              {"score", sum / static_cast<double>(rows.size())},
                              {"samples", rows.size()},
                              {"empty_answers", empty}});
    predictions.push_back(prediction_file(folder, file, std::move(answers)));
  }
  found["means"] = Json::array();
  for (const int64_t length : lengths_of(files)) {
    found["means"].push_back(means_of(found["tasks"], length));
  }
  return found;
}

ResultTable::Cell number(const Json& value) {
  if (value.is_null()) return {};
  return value.get<double>();
}

// One row a task, one column a length.
void add_rows(const Json& subject, const Json& lengths, ResultTable& table) {
  const auto name = subject["name"].get<std::string>();
  std::vector<std::string> tasks;
  for (const Json& task : subject["tasks"]) {
    const auto each = task["task"].get<std::string>();
    if (std::find(tasks.begin(), tasks.end(), each) == tasks.end()) tasks.push_back(each);
  }
  for (const std::string& each : tasks) {
    std::vector<ResultTable::Cell> row = {name, each};
    for (const Json& length : lengths) {
      ResultTable::Cell cell;
      for (const Json& task : subject["tasks"]) {
        if (task["task"] == each && task["length"] == length) cell = number(task["score"]);
      }
      row.push_back(cell);
    }
    table.add_row(row);
  }
  const auto add_mean = [&](const char* key, const char* count_key, const std::string& of,
                            size_t whole) {
    int64_t least = std::numeric_limits<int64_t>::max(), most = 0;
    std::vector<ResultTable::Cell> row = {name, ""};
    for (const Json& mean : subject["means"]) {
      row.push_back(number(mean[key]));
      const auto count = mean[count_key].get<int64_t>();
      least = std::min(least, count);
      most = std::max(most, count);
    }
    row[1] = str("mean of ", of, " (", least < most ? str(least, " to ") : "", most, " of ", whole,
                 " tasks)");
    table.add_row(row);
  };
  add_mean("niah_mean", "niah_tasks", "niah", kRulerNeedleTasks);
  add_mean("mean", "tasks", "all", ruler_tasks().size());
}

TaskResult report(const Json& all) {
  std::vector<ResultTable::Column> columns = {{"model", "model"}, {"task", "task"}};
  for (const int64_t length : all["lengths"]) {
    columns.push_back({std::to_string(length), with_commas(length), 1});
  }
  ResultTable shown(columns);
  ResultTable csv({{"model", ""}, {"task", ""}, {"length", ""}, {"score", ""}, {"samples", ""}});
  TaskResult result;
  for (const Json& subject : all["subjects"]) {
    add_rows(subject, all["lengths"], shown);
    for (const Json& task : subject["tasks"]) {
      csv.add_row({subject["name"].get<std::string>(), task["task"].get<std::string>(),
                   task["length"].get<int64_t>(), task["score"].get<double>(),
                   task["samples"].get<int64_t>()});
    }
    double sum = 0;
    for (const Json& task : subject["tasks"]) sum += task["score"].get<double>();
    result.summaries.push_back({{"score", sum / static_cast<double>(subject["tasks"].size())}});
  }
  result.json = json_text(all);
  result.table = shown.text();
  result.csv = csv.csv();
  return result;
}

TaskResult Ruler::run(const std::vector<Subject>& subjects, TaskRun& run) {
  const std::vector<RulerFile> files = find_ruler_files(data_, rows_);
  Json all = {{"format", "cplm-eval-ruler-1"}, {"lengths", lengths_of(files)}};
  int64_t pieces = 0;
  all["data"] = Json::array();
  for (const RulerFile& file : files) {
    pieces += (file.rows + kRowsAPiece - 1) / kRowsAPiece;
    all["data"].push_back({{"task", file.task},
                           {"length", file.length},
                           {"samples", file.rows},
                           {"sha256", file.sha256}});
  }
  run.begin(str(all["format"]), pieces * static_cast<int64_t>(subjects.size()));
  std::vector<TaskFile> predictions;
  all["subjects"] = Json::array();
  const std::vector<std::string> folders = folder_names(subjects);
  for (size_t i = 0; i < subjects.size(); ++i) {
    all["subjects"].push_back(measure(subjects[i], files, folders[i], run, predictions));
  }
  TaskResult result = report(all);
  result.files = std::move(predictions);
  return result;
}

}  // namespace

const TaskKind kRulerTask = {
    "ruler", "RULER's prepared questions, answered and scored",
    R"(Answers the questions of RULER's prepared jsonl (fields input, outputs, and where there are index,
answer_prefix, length, others) by greedy decoding, within each task's tokens. A score is the share of
the references found in the answer, for qa whether one is found, times 100. With --out the answers
are written to DIR/predictions/MODEL/LENGTH/TASK.jsonl, which RULER's evaluate script reads.
`cplm data make ruler` writes such files for the tasks that need no downloads, in our own wording.

Examples:
  cplm eval ruler runs/vanilla runs/cplm --data ruler/synthetic --out results
  cplm eval ruler runs/cplm --data data/ruler/4096/vt/validation.jsonl --samples 50
)",
    make_task<Ruler>};

}  // namespace cplm
