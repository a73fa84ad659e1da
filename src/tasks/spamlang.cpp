// cplm eval spamlang: how often a model repeats the one symbol of a SpamLang sample (PROTOCOLS.md
// section 3.4), seen in training or not: by its likeliest token at every place, and going on by
// itself.
#include <ATen/ops/argmax.h>

#include <CLI/App.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "cplm/base.h"
#include "cplm/copy_modes.h"
#include "cplm/eval.h"
#include "cplm/generate.h"
#include "runs/json_number.h"
#include "tasks/arguments.h"
#include "tasks/result_table.h"
#include "tasks/task_data.h"
#include "tasks/task_list.h"

namespace cplm {
namespace {

namespace fs = std::filesystem;

// Samples as `cplm data make spamlang` makes them: window j is [eos] v v ... v [eos].
struct Split {
  std::string name;
  std::unique_ptr<WindowSet> windows;
};

class Spamlang : public Task {
 public:
  void add_arguments(CLI::App& command) override;
  void check(const std::vector<Subject>& subjects) const override { open_splits(subjects); }
  TaskResult run(const std::vector<Subject>& subjects, TaskRun& run) override;

 private:
  std::vector<Split> open_splits(const std::vector<Subject>& subjects) const;
  std::vector<std::string> held_out_patterns(const WindowSet& validation) const;
  int64_t num_samples(const Split& split) const {
    return std::min(sequences_, split.windows->size());
  }
  TokenBatch read(const Split& split, int64_t begin, int64_t end) const;
  Json accuracy(LanguageModel& model, const Split& split, bool document_mask) const;
  double greedy(LanguageModel& model, const Split& split, bool document_mask) const;
  Json measure(const Subject& subject, const std::vector<Split>& splits, TaskRun& run) const;

  DataArgument data_;
  std::vector<std::string> held_out_;
  int64_t sequences_ = 256, batch_ = 16, prompt_ = 4;
};

void Spamlang::add_arguments(CLI::App& command) {
  add_data_argument(command, data_);
  command.add_option("--held-out", held_out_,
                     "Shards of symbols that training never showed; else held_out/*.h5 beside the "
                     "folder of --data, where it is");
  command.add_option("--sequences", sequences_, "The first so many samples of each")
      ->check(whole_from(1))
      ->capture_default_str();
  command.add_option("--batch", batch_, "Samples at once")
      ->check(whole_from(1))
      ->capture_default_str();
  command.add_option("--prompt", prompt_, "Symbols given before the model goes on by itself")
      ->check(whole_from(1))
      ->capture_default_str();
}

std::vector<std::string> Spamlang::held_out_patterns(const WindowSet& validation) const {
  if (!held_out_.empty()) return held_out_;
  const fs::path beside =
      fs::absolute(validation.shards().front().path).parent_path().parent_path() / "held_out";
  std::vector<std::string> files;
  if (!fs::is_directory(beside)) return files;
  for (const fs::directory_entry& file : fs::directory_iterator(beside)) {
    if (file.path().extension() == ".h5") files.push_back(file.path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<Split> Spamlang::open_splits(const std::vector<Subject>& subjects) const {
  const int64_t context = common_context(0, subjects);
  if (prompt_ + 2 > context) {
    throw Error(str("--prompt: expected at most ", context - 2, ", since samples have ",
                    context - 1, " symbols, found ", prompt_),
                ExitCode::kBadConfig);
  }
  std::vector<Split> splits;
  const auto open = [&](const char* name, const std::vector<std::string>& patterns) {
    splits.push_back(
        {name, std::make_unique<WindowSet>(patterns, context, WindowSet::ShortWindows::kDrop)});
    check_same_tokens(splits.back().windows->shards(), subjects);
    read(splits.back(), 0, 1);
  };
  open("validation", data_patterns(data_, subjects));
  if (const auto patterns = held_out_patterns(*splits.front().windows); !patterns.empty()) {
    open("held_out", patterns);
  }
  return splits;
}

TokenBatch Spamlang::read(const Split& split, int64_t begin, int64_t end) const {
  std::vector<int64_t> indices(static_cast<size_t>(end - begin));
  std::iota(indices.begin(), indices.end(), begin);
  TokenBatch batch = split.windows->read_batch(indices);
  const int64_t context = batch.sequence_length;
  for (int64_t row = 0; row < batch.rows; ++row) {
    const auto first = batch.tokens.begin() + row * (context + 1) + 1;
    if (std::all_of(first, first + context - 1, [&](int32_t id) { return id == *first; })) continue;
    throw Error(str(split.windows->describe(begin + row), ": expected one symbol ", context - 1,
                    " times, as `cplm data make spamlang --sequence-length ", context,
                    "` makes samples; give such shards by --data"),
                ExitCode::kBadData);
  }
  return batch;
}

// Share of the places from 2 on whose symbol is the likeliest token, by mode.
Json Spamlang::accuracy(LanguageModel& model, const Split& split, bool document_mask) const {
  const int64_t samples = num_samples(split), context = split.windows->sequence_length();
  const auto modes = copy_modes_of(model.config().head);
  std::vector<int64_t> right(modes.size());
  for (int64_t begin = 0; begin < samples; begin += batch_) {
    const TokenBatch batch = read(split, begin, std::min(samples, begin + batch_));
    const ModelInput input =
        model_input(batch, 0, batch.rows, document_mask, model.options().tensor.device());
    const at::Tensor h = model.hidden(input);
    for (int64_t row = 0; row < batch.rows; ++row) {
      for (size_t i = 0; i < modes.size(); ++i) {
        const at::Tensor p = model.distribution(h, input, row, 1, context - 1, modes[i].mode);
        const at::Tensor symbols = input.ids.select(0, row).slice(0, 2, context);
        right[i] += at::argmax(p, 1).eq(symbols).sum().item<int64_t>();
      }
    }
  }
  Json found;
  const auto places = static_cast<double>(samples * (context - 2));
  for (size_t i = 0; i < modes.size(); ++i) {
    found[modes[i].name] = static_cast<double>(right[i]) / places;
  }
  return found;
}

// Share of right symbols that the model writes behind the prompt, up to the sample's length.
double Spamlang::greedy(LanguageModel& model, const Split& split, bool document_mask) const {
  const int64_t samples = num_samples(split), context = split.windows->sequence_length();
  GenerateOptions options;
  options.max_new_tokens = context - 1 - prompt_;
  if (document_mask) options.decoder.document_end = split.windows->shards().front().eos_token_id;
  int64_t right = 0;
  for (int64_t begin = 0; begin < samples; begin += batch_) {
    const TokenBatch batch = read(split, begin, std::min(samples, begin + batch_));
    std::vector<std::vector<int64_t>> prompts;
    for (int64_t row = 0; row < batch.rows; ++row) {
      const auto first = batch.tokens.begin() + row * (context + 1);
      prompts.emplace_back(first, first + 1 + prompt_);
    }
    const Generated generated = generate(model, prompts, options);
    for (size_t row = 0; row < prompts.size(); ++row) {
      const std::vector<int64_t>& ids = generated.texts[row].ids;
      right += std::count(ids.begin(), ids.end(), prompts[row].back());
    }
  }
  return static_cast<double>(right) / static_cast<double>(samples * options.max_new_tokens);
}

Json Spamlang::measure(const Subject& subject, const std::vector<Split>& splits,
                       TaskRun& run) const {
  std::shared_ptr<LanguageModel> model;
  const bool document_mask = subject.config.data.intra_document_mask;
  Json found = subject_header(subject);
  found["vocab_size"] = subject.config.model.vocab_size;
  found["hidden_size"] = subject.config.model.hidden_size;
  for (const Split& split : splits) {
    found["splits"][split.name] = run.piece(subject, split.name, [&] {
      if (!model) model = subject.open();
      return Json{{"samples", num_samples(split)},
                  {"accuracy", accuracy(*model, split, document_mask)},
                  {"greedy", greedy(*model, split, document_mask)}};
    });
  }
  return found;
}

TaskResult report(const Json& all) {
  const std::vector<ResultTable::Column> columns = {{"model", "model"},
                                                    {"symbols", "symbols"},
                                                    {"samples", "samples"},
                                                    {"natural", "accuracy", 4},
                                                    {"no_copy", "LM head alone", 4},
                                                    {"force_copy", "CP head alone", 4},
                                                    {"greedy", "going on by itself", 4}};
  ResultTable table(columns);
  TaskResult result;
  for (const Json& subject : all["subjects"]) {
    TaskSummary summary;
    for (const auto& [name, split] : subject["splits"].items()) {
      std::vector<ResultTable::Cell> row = {subject["name"].get<std::string>(), name,
                                            split["samples"].get<int64_t>()};
      for (const NamedCopyMode& mode : kCopyModes) {
        row.push_back(split["accuracy"].contains(mode.name)
                          ? ResultTable::Cell(split["accuracy"][mode.name].get<double>())
                          : ResultTable::Cell());
      }
      row.emplace_back(split["greedy"].get<double>());
      table.add_row(row);
      summary.emplace_back(name + "_accuracy", split["accuracy"]["natural"].get<double>());
      summary.emplace_back(name + "_greedy", split["greedy"].get<double>());
    }
    result.summaries.push_back(std::move(summary));
  }
  result.table = table.text();
  result.csv = table.csv();
  result.json = json_text(all);
  return result;
}

TaskResult Spamlang::run(const std::vector<Subject>& subjects, TaskRun& run) {
  const std::vector<Split> splits = open_splits(subjects);
  Json all = {{"format", "cplm-eval-spamlang-1"}, {"prompt", prompt_}};
  for (const Split& split : splits) {
    all["data"][split.name] = {{"data_sha256", contents_of(split.windows->shards())},
                               {"samples", num_samples(split)}};
  }
  all["context"] = splits.front().windows->sequence_length();
  run.begin(all.dump(), static_cast<int64_t>(splits.size() * subjects.size()));
  all["subjects"] = Json::array();
  for (const Subject& subject : subjects) all["subjects"].push_back(measure(subject, splits, run));
  return report(all);
}

}  // namespace

const TaskKind kSpamlangTask = {
    "spamlang", "Whether one symbol is repeated, seen in training or not",
    R"(On samples of `cplm data make spamlang`, one symbol again and again: the share of places, from the
symbol's second on, whose likeliest token is the symbol, by mode; and the share of right symbols when
the model goes on by itself behind --prompt of them.

Examples:
  cplm eval spamlang runs/spam-vanilla runs/spam-cplm --out results
)",
    make_task<Spamlang>};

}  // namespace cplm
