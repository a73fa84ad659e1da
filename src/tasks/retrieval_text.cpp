// See cplm/retrieval_text.h.
#include "cplm/retrieval_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/new_folder.h"
#include "cplm/base.h"
#include "cplm/tokenizer.h"
#include "tasks/counting_text.h"
#include "tasks/needle_text.h"
#include "tasks/ruler_tasks.h"

namespace cplm {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::ordered_json;

struct GeneratedTask {
  const char* name;
  int64_t least_units, most_units;
  std::function<RetrievalSample(const SampleRandom&, int64_t units)> make;
};

GeneratedTask needle_task(const char* name, const NeedleTask& task) {
  return {name, task.among_needles ? 1 : 0, most_needle_units(task),
          [task](const SampleRandom& random, int64_t units) {
            return needle_sample(task, random, units);
          }};
}

const std::vector<GeneratedTask>& generated_tasks() {
  constexpr auto kNumber = NeedlePart::kNumber, kCode = NeedlePart::kCode,
                 kWords = NeedlePart::kWords;
  constexpr int64_t kMostUnits = int64_t{1} << 24, kMostWords = 100'000;
  static const std::vector<GeneratedTask> tasks = {
      needle_task("niah_single_1", {}),
      needle_task("niah_multikey_2", {kWords, kNumber, /*among_needles=*/true}),
      needle_task("niah_multikey_3", {kCode, kCode, /*among_needles=*/true}),
      needle_task("niah_single_3_filler", {kWords, kCode}),
      needle_task("niah_multikey_1_filler", {.keys = 4}),
      needle_task("niah_multivalue_filler", {.values = 4}),
      needle_task("niah_multiquery_filler", {.keys = 4, .asked = 4}),
      {"vt", 0, kMostUnits, variable_sample},
      {"cwe", 0, kMostWords, common_words_sample},
      {"fwe", kLeastFrequentWords, kMostUnits, frequent_words_sample}};
  return tasks;
}

const GeneratedTask& task_named(const std::string& name) {
  const std::vector<std::string> names = ruler_task_names();
  for (const GeneratedTask& task : generated_tasks()) {
    if (name == task.name) return task;
  }
  const std::string near = nearest_name(name, names);
  throw Error(str("--tasks: expected some of ", join(names, ", "), ", found ", name,
                  near.empty() ? "" : "; did you mean " + near + "?"),
              ExitCode::kBadConfig);
}

class RulerWriter {
 public:
  RulerWriter(const RulerOptions& options, const SampleProgress& on_progress)
      : options_(options), on_progress_(on_progress), tokenizer_(expand_tilde(options.tokenizer)) {}

  void write(const fs::path& folder) {
    std::vector<std::string> names = options_.tasks;
    if (names.empty()) names = ruler_task_names();
    const auto files = static_cast<int64_t>(names.size() * options_.lengths.size());
    total_ = files * options_.samples;
    for (const int64_t length : options_.lengths) {
      for (const std::string& name : names) {
        const fs::path path = folder / std::to_string(length) / name / "validation.jsonl";
        make_folders(path.parent_path());
        write_file_atomic(path, text_of(task_named(name), length));
      }
    }
  }

 private:
  std::string text_of(const GeneratedTask& task, int64_t length) {
    std::string text;
    double tokens_per_unit = 0;
    const int64_t answer_tokens = *ruler_answer_tokens(task.name);
    for (int64_t i = 0; i < options_.samples; ++i) {
      const SampleRandom random(options_.seed, str("ruler ", task.name, " ", length), i);
      const auto tokens_of = [&](int64_t units) {
        const RetrievalSample sample = task.make(random, units);
        const auto ids = tokenizer_.encode(sample.input + sample.answer_prefix);
        return static_cast<int64_t>(ids.size()) + answer_tokens;
      };
      const std::optional<int64_t> units =
          most_fitting_units(task.least_units, task.most_units, length, tokens_per_unit, tokens_of);
      if (!units) {
        throw Error(str("--lengths: expected at least ", tokens_of(task.least_units), " for ",
                        task.name, " with this tokenizer, found ", length),
                    ExitCode::kBadConfig);
      }
      const RetrievalSample sample = task.make(random, *units);
      const Json row = {{"index", i},
                        {"input", sample.input},
                        {"outputs", sample.answers},
                        {"length", tokens_of(*units)},
                        {"answer_prefix", sample.answer_prefix}};
      text += row.dump() + "\n";
      on_progress_(++done_, total_);
    }
    return text;
  }

  const RulerOptions& options_;
  const SampleProgress& on_progress_;
  Tokenizer tokenizer_;
  int64_t done_ = 0, total_ = 0;
};

Json needle_row(const RetrievalSample& sample, bool conversation) {
  const std::string answer = str(sample.answer_prefix, " ", sample.answers.front(), ".");
  if (!conversation) return {{"text", sample.input + answer}};
  // Behind a turn's content stands a newline of the template.
  const std::string question = sample.input.substr(0, sample.input.find_last_not_of('\n') + 1);
  return {{"messages", Json::array({{{"role", "user"}, {"content", question}},
                                    {{"role", "assistant"}, {"content", answer}}})}};
}

void check(const NeedleTextOptions& options) {
  if (options.min_sentences < 0 || options.min_sentences > options.max_sentences) {
    throw Error(str("--sentences: expected FROM:TO with 0 <= FROM <= TO, found ",
                    options.min_sentences, ":", options.max_sentences),
                ExitCode::kBadConfig);
  }
  if (options.output.extension() == ".jsonl") return;
  throw Error(str("--output: expected the name of a .jsonl file, found ", options.output.string()),
              ExitCode::kBadConfig);
}

}  // namespace

std::vector<std::string> ruler_task_names() {
  std::vector<std::string> names;
  for (const GeneratedTask& task : generated_tasks()) names.emplace_back(task.name);
  return names;
}

void make_ruler(const RulerOptions& options, const SampleProgress& on_progress) {
  std::set<std::string> names;
  for (const std::string& name : options.tasks) {
    if (!names.insert(task_named(name).name).second) {
      throw Error(str("--tasks: expected each task once, found ", name, " again"),
                  ExitCode::kBadConfig);
    }
  }
  NewFolder folder(options.output);
  RulerWriter(options, on_progress).write(folder.path());
  folder.finish();
}

void make_needle_texts(const NeedleTextOptions& options, const SampleProgress& on_progress) {
  check(options);
  const fs::path output = expand_tilde(options.output.string());
  if (!output.parent_path().empty()) make_folders(output.parent_path());
  CheckedFile file(output);
  for (int64_t i = 0; i < options.documents; ++i) {
    SampleRandom random(options.seed, "needle texts", i);
    const int64_t sentences = random.in({options.min_sentences, options.max_sentences});
    const RetrievalSample sample = needle_sample({}, random, sentences);
    const std::string line = needle_row(sample, options.conversations).dump() + "\n";
    file.write(line.data(), line.size());
    if ((i + 1) % 1024 == 0) on_progress(i + 1, options.documents);
  }
  file.finish();
}

}  // namespace cplm
