// cplm eval TASK CHECKPOINT...: checkpoints to subjects, and a task's result to console and files.
#include <c10/core/InferenceMode.h>

#include "cli/commands.h"
#include "cli/subjects.h"

namespace cplm {
namespace {

struct Arguments {
  std::vector<std::string> checkpoints;
  std::string out;
  ModelArguments model;
  std::unique_ptr<Task> task;
};

void run(const std::string& name, Arguments& a) {
  c10::InferenceMode inference;
  prepare_process(a.model);
  run_task(name, *a.task, subjects_of(a.checkpoints, a.model, a.task->needs_weights()), a.out);
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
