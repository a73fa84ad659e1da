// cplm eval needle: a seven-digit number at every depth of filler of every length, and how often
// the greedy answer holds it.
#include <CLI/App.hpp>
#include <nlohmann/json.hpp>

#include "cplm/base.h"
#include "tasks/arguments.h"
#include "tasks/needle_text.h"
#include "tasks/result_table.h"
#include "tasks/task_list.h"
#include "tasks/text_model.h"

namespace cplm {
namespace {

struct Cell {
  int64_t length, depth;  // tokens, percent
};

class NeedleEvaluation : public Task {
 public:
  void add_arguments(CLI::App& command) override;
  void check(const std::vector<Subject>& subjects) const override;
  TaskResult run(const std::vector<Subject>& subjects, TaskRun& run) override;

 private:
  std::vector<Cell> cells() const;
  std::vector<int64_t> longest_prompt(const Cell& cell, const SampleRandom& random,
                                      TextModel& model, double& tokens_per_sentence) const;
  Json measure(const Cell& cell, TextModel& model) const;

  std::string lengths_ = "1k,2k,4k,8k,16k,32k,64k", depths_ = "0,10,20,30,40,50,60,70,80,90,100";
  int64_t samples_ = 20;
  uint64_t seed_ = 42;
  AnswerOptions answers_;
};

constexpr int64_t kMostTokens = int64_t{1} << 24;

void NeedleEvaluation::add_arguments(CLI::App& command) {
  command.add_option("--lengths", lengths_, "Tokens of prompt and answer, at most; k: 1,024")
      ->check(counts_between(1, kMostTokens))
      ->capture_default_str();
  command.add_option("--depths", depths_, "Where the needle stands, in percent of the sentences")
      ->check(counts_between(0, 100))
      ->capture_default_str();
  command.add_option("--samples", samples_, "Prompts a length and depth")
      ->check(whole_from(1))
      ->capture_default_str();
  command.add_option("--new-tokens", answers_.max_new_tokens, "Tokens of an answer, at most")
      ->check(whole_from(1))
      ->capture_default_str();
  command.add_option("--seed", seed_, "Other keys and numbers")
      ->check(seed_problem)
      ->capture_default_str();
  add_batch_tokens_argument(command, answers_.batch_tokens);
}

std::vector<Cell> NeedleEvaluation::cells() const {
  std::vector<Cell> cells;
  for (const int64_t length : parse_counts(lengths_)) {
    for (const int64_t depth : parse_counts(depths_)) cells.push_back({length, depth});
  }
  return cells;
}

// As long as it may be. Error(kBadConfig) where not even the needle fits.
std::vector<int64_t> NeedleEvaluation::longest_prompt(const Cell& cell, const SampleRandom& random,
                                                      TextModel& model,
                                                      double& tokens_per_sentence) const {
  const NeedleTask task;
  std::vector<int64_t> longest;
  int64_t least = 0;
  const auto tokens_of = [&](int64_t sentences) {
    const RetrievalSample sample = needle_sample(task, random, sentences, cell.depth);
    std::vector<int64_t> ids = model.encode(sample.input + sample.answer_prefix);
    const int64_t tokens = static_cast<int64_t>(ids.size()) + answers_.max_new_tokens;
    if (sentences == 0) least = tokens;
    if (tokens <= cell.length)
      longest = std::move(ids);  // what fits is asked for in ascending order
    return tokens;
  };
  if (most_fitting_units(0, most_needle_units(task), cell.length, tokens_per_sentence, tokens_of)) {
    return longest;
  }
  throw Error(str("--lengths: expected at least ", least,
                  ", the tokens of needle, question and answer with the tokenizer of ",
                  model.subject().path, ", found ", cell.length),
              ExitCode::kBadConfig);
}

Json NeedleEvaluation::measure(const Cell& cell, TextModel& model) const {
  std::vector<std::vector<int64_t>> prompts;
  std::vector<std::string> numbers;
  double tokens_per_sentence = 0;
  int64_t tokens = 0, correct = 0;
  for (int64_t i = 0; i < samples_; ++i) {
    const SampleRandom random(seed_, str("needle ", cell.length, " ", cell.depth), i);
    prompts.push_back(longest_prompt(cell, random, model, tokens_per_sentence));
    numbers.push_back(needle_sample({}, random, 0).answers.front());
    tokens += static_cast<int64_t>(prompts.back().size());
  }
  Json answers = Json::array();
  const std::vector<std::string> outputs = model.answer(prompts, answers_);
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].find(numbers[i]) != std::string::npos) ++correct;
    answers.push_back({{"number", numbers[i]}, {"output", outputs[i]}});
  }
  return {{"length", cell.length},
          {"depth", cell.depth},
          {"samples", samples_},
          {"correct", correct},
          {"accuracy", static_cast<double>(correct) / static_cast<double>(samples_)},
          {"mean_prompt_tokens", static_cast<double>(tokens) / static_cast<double>(samples_)},
          {"answers", answers}};
}

// Of all cells, or of those of one length.
double mean_accuracy(const Json& cells, int64_t length = 0) {
  double sum = 0, count = 0;
  for (const Json& cell : cells) {
    if (length != 0 && cell["length"] != length) continue;
    sum += cell["accuracy"].get<double>();
    ++count;
  }
  return sum / count;
}

TaskResult report(const Json& all) {
  std::vector<ResultTable::Column> columns = {{"model", "model"}, {"mean", "all, %", 1}};
  for (const int64_t length : all["lengths"]) {
    columns.push_back({std::to_string(length), with_commas(length), 1});
  }
  ResultTable shown(columns);
  ResultTable csv({{"model", ""},
                   {"length", ""},
                   {"depth_percent", ""},
                   {"accuracy", ""},
                   {"correct", ""},
                   {"samples", ""},
                   {"mean_prompt_tokens", ""}});
  TaskResult result;
  for (const Json& subject : all["subjects"]) {
    const auto name = subject["name"].get<std::string>();
    const double mean = subject["mean_accuracy"].get<double>();
    std::vector<ResultTable::Cell> row = {name, 100 * mean};
    for (const int64_t length : all["lengths"]) {
      row.emplace_back(100 * mean_accuracy(subject["cells"], length));
    }
    shown.add_row(row);
    for (const Json& cell : subject["cells"]) {
      csv.add_row({name, cell["length"].get<int64_t>(), cell["depth"].get<int64_t>(),
                   cell["accuracy"].get<double>(), cell["correct"].get<int64_t>(),
                   cell["samples"].get<int64_t>(), cell["mean_prompt_tokens"].get<double>()});
    }
    result.summaries.push_back({{"accuracy", mean}});
  }
  result.json = json_text(all);
  result.table = shown.text();
  result.csv = csv.csv();
  return result;
}

void NeedleEvaluation::check(const std::vector<Subject>& subjects) const {
  for (const Subject& subject : subjects) {
    TextModel model(subject);
    double tokens_per_sentence = 0;
    for (const Cell& cell : cells()) {
      longest_prompt(cell, SampleRandom(seed_, "needle", 0), model, tokens_per_sentence);
    }
  }
}

TaskResult NeedleEvaluation::run(const std::vector<Subject>& subjects, TaskRun& run) {
  Json all = {{"format", "cplm-eval-needle-1"},        {"lengths", parse_counts(lengths_)},
              {"depths", parse_counts(depths_)},       {"samples", samples_},
              {"new_tokens", answers_.max_new_tokens}, {"seed", seed_}};
  const std::vector<Cell> cells = this->cells();
  // A cell does not depend on the others.
  run.begin(str(all["format"], samples_, " ", answers_.max_new_tokens, " ", seed_),
            static_cast<int64_t>(subjects.size() * cells.size()));
  all["subjects"] = Json::array();
  for (const Subject& subject : subjects) {
    TextModel model(subject);
    Json found = subject_header(subject);
    found["mean_accuracy"] = 0;
    found["cells"] = Json::array();
    for (const Cell& cell : cells) {
      const std::string name =
          str("length ", cell.length, " depth ", cell.depth, " ", model.tokenizer_hash());
      found["cells"].push_back(run.piece(subject, name, [&] { return measure(cell, model); }));
    }
    found["mean_accuracy"] = mean_accuracy(found["cells"]);
    all["subjects"].push_back(found);
  }
  return report(all);
}

}  // namespace

const TaskKind kNeedleTask = {
    "needle", "A number hidden in text: accuracy by length and depth",
    R"(A sentence that gives a seven-digit number stands somewhere in neutral filler, and the prompt ends by
asking for it. An answer is right when the number is in the greedy continuation. Depth 0 is before
the first sentence, 100 behind the last. Samples depend on seed, length, depth and number alone.

Examples:
  cplm eval needle runs/vanilla runs/cplm --out results
  cplm eval needle runs/cplm --lengths 1k,4k,16k --samples 50
)",
    make_task<NeedleEvaluation>};

}  // namespace cplm
