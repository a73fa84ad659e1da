// Evaluations during training (validation.tasks): rank 0 measures the model as it stands.
#include "cplm/base.h"
#include "cplm/tasks.h"
#include "train/run_files.h"
#include "train/start_checks.h"
#include "train/trainer.h"

namespace cplm {

namespace {

// But for its weights.
Subject subject_of(const Config& config) {
  Subject subject;
  subject.name = config.run.name;
  subject.path = expand_tilde(config.run.dir).string();
  subject.config = config;
  subject.tokenizer = tokenizer_of(config);
  return subject;
}

}  // namespace

std::string tasks_problem(const Config& config) {
  try {
    for (const std::string& line : config.validation.tasks) parse_task(line);
  } catch (const Error& error) {
    return str("validation.tasks: ", error.what());
  }
  return "";
}

void check_task_data(const Config& config) {
  const Subject subject = subject_of(config);
  for (const std::string& line : config.validation.tasks) parse_task(line)->check({subject});
}

Subject Trainer::subject() {
  Subject subject = subject_of(config_);
  subject.step = state_.step;
  subject.identity = [this] { return str(config_.run.name, " step ", state_.step); };
  subject.open = [this] {
    return std::shared_ptr<LanguageModel>(std::shared_ptr<void>(), &model_);  // not owned
  };
  return subject;
}

// What is wrong with a task or its data shows before the first step, not at the first validation.
void Trainer::open_tasks() {
  for (const std::string& line : config_.validation.tasks) tasks_.push_back(parse_task(line));
  ranks_.leader_works([&] {
    for (const auto& task : tasks_) {
      task->check({subject()});
      progress_();
    }
  });
}

void Trainer::run_tasks() {
  ranks_.leader_works([&] {
    for (size_t i = 0; i < tasks_.size(); ++i) {
      TaskRun run;
      run.set_heartbeat(progress_);
      const TaskResult result = tasks_[i]->run({subject()}, run);
      const TaskRecord record{state_.step, state_.tokens, config_.validation.tasks[i],
                              result.summaries.front()};
      metrics_->write(record);
      console_.task_line(record);
    }
  });
}

}  // namespace cplm
