// The tasks by name, tasks from a line of arguments, and a result's files.
#include "tasks/task_list.h"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "base/argument_checks.h"
#include "base/python_script.h"
#include "cplm/base.h"

namespace cplm {

const std::vector<TaskKind>& task_kinds() {
  static const std::vector<TaskKind> kinds = {
      kCopyOnlyTask,   kGradientTask, kInductionTask, kLongContextTask, kMemoryTask,  kNeedleTask,
      kPerplexityTask, kRecallTask,   kRequestsTask,  kRulerTask,       kSpamlangTask};
  return kinds;
}

std::unique_ptr<Task> parse_task(const std::string& line) {
  const std::string name = line.substr(0, line.find(' '));
  std::vector<std::string> names;
  for (const TaskKind& kind : task_kinds()) {
    if (kind.name != name) {
      names.emplace_back(kind.name);
      continue;
    }
    std::unique_ptr<Task> task = kind.make();
    CLI::App arguments;
    task->add_arguments(arguments);
    check_whole_numbers(arguments);
    try {
      arguments.parse(line.substr(name.size()));
    } catch (const CLI::ParseError& error) {
      throw Error(str("task \"", line, "\": ", error.what(), "; see cplm eval ", name, " --help"),
                  ExitCode::kBadConfig);
    }
    return task;
  }
  const std::string near = nearest_name(name, names);
  throw Error(str("task \"", line, "\": expected one of ", join(names, ", "),
                  near.empty() ? "" : "; did you mean " + near + "?"),
              ExitCode::kBadConfig);
}

void write_task_result(const TaskResult& result, const std::string& task,
                       const std::filesystem::path& folder) {
  make_folders(folder);
  write_file_atomic(folder / (task + ".json"), result.json);
  write_file_atomic(folder / (task + ".csv"), result.csv);
  write_file_atomic(folder / (task + ".txt"), result.table);
  for (const TaskFile& file : result.files) {
    make_folders((folder / file.path).parent_path());
    write_file_atomic(folder / file.path, file.contents());
  }
  try {
    run_python_script(project_root(), "plot_eval.py", {(folder / (task + ".json")).string()});
  } catch (const Error& error) {
    throw Error(str("the pictures of ", task, " were not drawn (", task, ".json and ", task,
                    ".csv were written): ", error.what()),
                error.code());
  }
}

}  // namespace cplm
