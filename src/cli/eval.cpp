// cplm eval TASK CHECKPOINT...: checkpoints to subjects, and a task's result to console and files.
#include <c10/core/InferenceMode.h>

#include <iostream>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/commands.h"
#include "cli/model_arguments.h"
#include "cplm/tasks.h"

namespace cplm {
namespace {

namespace fs = std::filesystem;

struct Arguments {
  std::vector<std::string> checkpoints;
  std::string out;
  ModelArguments model;
  std::unique_ptr<Task> task;
};

// What the weights and everything that changes their numbers are.
std::string identity_of(const SavedModel& saved) {
  const TrainConfig& train = saved.config.train;
  return str(sha256_file(saved.folder / "model.safetensors"), " ", dump_config(saved.config), " ",
             name_of(train.precision), " ", name_of(train.device), " ", name_of(train.ops));
}

Subject subject_of(const std::string& path, const ModelArguments& arguments) {
  const auto saved = std::make_shared<SavedModel>(find_model(path, arguments));
  return {.name = saved->config.run.name,
          .path = path,
          .config = saved->config,
          .tokenizer = saved->tokenizer,
          .step = saved->step,
          .identity = [saved] { return identity_of(*saved); },
          .open = [saved] { return std::shared_ptr<LanguageModel>(load_found_model(*saved)); }};
}

bool is_config_file(const std::string& path) {
  const fs::path file = expand_tilde(path);
  return (file.extension() == ".yaml" || file.extension() == ".yml") && fs::is_regular_file(file);
}

Subject config_subject(const std::string& path, const ModelArguments& arguments) {
  const Config config = load_config(expand_tilde(path), arguments.overrides);
  return {.name = config.run.name.empty() ? fs::path(path).stem().string() : config.run.name,
          .path = path,
          .config = config,
          .tokenizer = {},
          .step = 0,
          .identity = [config] { return dump_config(config); },
          .open = {}};
}

// Equal names are told apart by their steps, or else by their paths.
void make_names_differ(std::vector<Subject>& subjects) {
  const auto count = [&](const auto& key_of) {
    std::multiset<std::string> keys;
    for (const Subject& subject : subjects) keys.insert(key_of(subject));
    return keys;
  };
  const auto with_step = [](const Subject& s) { return str(s.name, " step ", s.step); };
  const auto names = count([](const Subject& s) { return s.name.empty() ? s.path : s.name; });
  const auto names_and_steps = count(with_step);
  for (Subject& subject : subjects) {
    if (subject.name.empty()) {
      subject.name = subject.path;
    } else if (names.count(subject.name) > 1) {
      const std::string longer = with_step(subject);
      subject.name = names_and_steps.count(longer) > 1 ? subject.path : longer;
    }
  }
}

std::vector<Subject> subjects_of(const Arguments& a) {
  std::vector<Subject> subjects;
  for (const std::string& path : a.checkpoints) {
    const bool config_alone = !a.task->needs_weights() && is_config_file(path);
    subjects.push_back(config_alone ? config_subject(path, a.model) : subject_of(path, a.model));
  }
  make_names_differ(subjects);
  return subjects;
}

void run(const std::string& name, Arguments& a) {
  c10::InferenceMode inference;
  prepare_process(a.model);
  const std::vector<Subject> subjects = subjects_of(a);
  const auto print = [](const TaskResult& result) {
    std::cout << result.table << std::flush;
    CPLM_CHECK(std::cout.good(), "cannot write the result to standard output");
  };
  if (a.out.empty()) {
    TaskRun task_run;
    const TaskResult result = a.task->run(subjects, task_run);
    task_run.forget();
    print(result);
    return;
  }
  install_stop_signals();
  const fs::path folder = expand_tilde(a.out);
  TaskRun task_run(folder, name);
  const TaskResult result = a.task->run(subjects, task_run);
  print(result);
  write_task_result(result, name, folder);
  task_run.forget();
}

}  // namespace

void add_eval_command(CLI::App& app) {
  CLI::App* parent = app.add_subcommand("eval", "Measure trained models, side by side");
  parent->require_subcommand(1);
  for (const TaskKind& kind : task_kinds()) {
    auto a = std::make_shared<Arguments>();
    a->task = kind.make();
    CLI::App* command = parent->add_subcommand(kind.name, kind.summary);
    command->add_option("checkpoints", a->checkpoints, "Runs' folders or checkpoints")->required();
    command->add_option("--out", a->out,
                        str("Folder for ", kind.name, ".json, .csv, .png and .svg; the same ",
                            "command goes on there after a kill"));
    a->task->add_arguments(*command);
    add_model_arguments(*command, a->model);
    command->footer(kind.notes);
    command->callback([a, name = std::string(kind.name)] { run(name, *a); });
  }
}

}  // namespace cplm
