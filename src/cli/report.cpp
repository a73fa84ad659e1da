// cplm report: a comparison and evaluations of a pair of runs in one folder, and one HTML page of
// them (scripts/report.py).
#include <c10/core/InferenceMode.h>

#include <set>

#include "base/python_script.h"
#include "cli/commands.h"
#include "cli/subjects.h"
#include "cplm/runs.h"

namespace cplm {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFooter =
    R"(The folder gets compare.* and each task's files, as `cplm compare` and `cplm eval` write them, and
report.html: all of it with the authors' figures beside, in one file that needs nothing else.
Results of other tasks that lie there are shown too. After a kill the same command goes on where it
was.

Examples:
  cplm report runs/vanilla runs/cplm --out results
  cplm report runs/vanilla runs/cplm --out results --task "long-context --length 4096" --task memory
)";

struct Arguments {
  std::vector<std::string> runs, tasks = {"perplexity"};
  std::string out;
  ModelArguments model;
};

std::string task_name(const std::string& line) { return line.substr(0, line.find(' ')); }

void run(const Arguments& a) {
  c10::InferenceMode inference;
  prepare_process(a.model);
  std::vector<std::unique_ptr<Task>> tasks;
  std::set<std::string> names;
  for (const std::string& line : a.tasks) {
    tasks.push_back(parse_task(line));
    if (names.insert(task_name(line)).second) continue;
    throw Error(str("--task: ", task_name(line), " is given twice, and both would be ", a.out, "/",
                    task_name(line), ".json; give one of them another --out by cplm eval"),
                ExitCode::kBadConfig);
  }
  CompareOptions compare;
  for (const std::string& path : a.runs) compare.runs.push_back(expand_tilde(path));
  compare.out = expand_tilde(a.out);
  compare_runs(compare);
  for (size_t i = 0; i < tasks.size(); ++i) {
    log::info(a.tasks[i]);
    run_task(task_name(a.tasks[i]), *tasks[i],
             subjects_of(a.runs, a.model, tasks[i]->needs_weights()), a.out);
  }
  run_python_script(project_root(), "report.py", {compare.out->string()});
  log::info(str("report: ", (*compare.out / "report.html").string()));
}

}  // namespace

void add_report_command(CLI::App& app) {
  auto a = std::make_shared<Arguments>();
  CLI::App* command =
      app.add_subcommand("report", "One page on runs: curves, evaluations, analyses");
  command->add_option("runs", a->runs, "Run folders; the first is the baseline")
      ->required()
      ->expected(2, -1);
  command->add_option("--out", a->out, "Folder for the page and all results")->required();
  command
      ->add_option("--task", a->tasks,
                   "A task to measure, as `cplm eval` takes it (any number of times)")
      ->allow_extra_args(false)
      ->capture_default_str();
  add_model_arguments(*command, a->model);
  command->footer(kFooter);
  command->callback([a] { run(*a); });
}

}  // namespace cplm
