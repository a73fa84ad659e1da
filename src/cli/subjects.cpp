// See subjects.h.
#include "cli/subjects.h"

#include <iostream>
#include <set>

#include "base/standard_output.h"
#include "cplm/base.h"

namespace cplm {
namespace {

namespace fs = std::filesystem;

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

void print(const TaskResult& result) {
  std::cout << result.table;
  flush_standard_output();
}

}  // namespace

std::vector<Subject> subjects_of(const std::vector<std::string>& paths,
                                 const ModelArguments& arguments, bool needs_weights) {
  std::vector<Subject> subjects;
  for (const std::string& path : paths) {
    const bool config_alone = !needs_weights && is_config_file(path);
    subjects.push_back(config_alone ? config_subject(path, arguments)
                                    : subject_of(path, arguments));
  }
  std::vector<ModelConfig> models;
  models.reserve(subjects.size());
  for (const Subject& subject : subjects) models.push_back(subject.config.model);
  check_yarn(arguments, models);
  make_names_differ(subjects);
  return subjects;
}

void run_task(const std::string& name, Task& task, const std::vector<Subject>& subjects,
              const std::string& out) {
  if (out.empty()) {
    TaskRun run;
    const TaskResult result = task.run(subjects, run);
    run.forget();
    print(result);
    return;
  }
  install_stop_signals();
  const fs::path folder = expand_tilde(out);
  TaskRun run(folder, name);
  const TaskResult result = task.run(subjects, run);
  print(result);
  write_task_result(result, name, folder);
  run.forget();
}

}  // namespace cplm
