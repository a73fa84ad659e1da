// The tasks by name, tasks from a line of arguments, and a result's files.
#include "tasks/task_list.h"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "base/python_script.h"
#include "cplm/base.h"

namespace cplm {
namespace {

constexpr const char* kPerplexityNotes =
    R"(Loss is the mean of -log P(target), in nats a token, over the counted targets; perplexity its exp.
Modes: natural is the model's P, no_copy the LM head alone, force_copy the Copy-Paste head alone,
which is infinite as soon as one target is nowhere in its context. Bits per byte count the bytes of
the text, end-of-document tokens having none. The difference to the first model is paired by window
or document, each as one cluster.

Examples:
  cplm eval perplexity runs/vanilla runs/cplm --out results
  cplm eval perplexity runs/cplm --data "data/books/*.h5" --context 4096 --per-document
)";

constexpr const char* kMemoryNotes =
    R"(Sizes of one sequence's decoding caches, by arithmetic: keys and values of full layers for every
token, of sliding layers for the window's last, and one copy key a token. "both" is their sum, and
what the shares are of: of full attention without a copy head at the same size, and of the first
model. Token ids (4 bytes each) stand in a column of their own. "copy keys alone" is a document's
copy cache against the whole of this model's. Configs without weights will do; with --data the
picture is loss against memory, one mark a checkpoint.

Examples:
  cplm eval memory configs/1.7b-full-vanilla.yaml configs/1.7b-sliding-cplm.yaml --lengths 4096
  cplm eval memory configs/135m-sliding-cplm.yaml --windows 32,64,128,256,512,1024 --out results
  cplm eval memory runs/w32 runs/w256 runs/full --data "data/validation/*.h5" --out results
)";
constexpr const char* kCopyOnlyNotes =
    R"(Documents are visible (in the prompt, all caches kept), read through copy keys alone (each encoded
by itself, one key and one id a token kept; the backbone sees the question alone), read by the last
layer alone (its keys and values kept; the control without a copy head), or dropped. Questions ask
for a 7-digit number in text, or for the value of a key by ids; the answer is the greedy one.

Examples:
  cplm eval copy-only runs/vanilla runs/cplm --questions 200 --out results
  cplm eval copy-only runs/recall-cplm --ask pairs --pairs 8 --filler-symbols 16 --first-symbol 1
)";

}  // namespace

const std::vector<TaskKind>& task_kinds() {
  static const std::vector<TaskKind> kinds = {
      {"perplexity", "Loss, perplexity and bits per byte in the three modes", kPerplexityNotes,
       make_perplexity},
      {"memory", "Sizes of decoding caches, and the loss they buy", kMemoryNotes, make_memory},
      {"copy-only", "Questions about documents that are read through copy keys alone",
       kCopyOnlyNotes, make_copy_only},
  };
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
  try {
    run_python_script(project_root(), "plot_eval.py", {(folder / (task + ".json")).string()});
  } catch (const Error& error) {
    throw Error(str("the pictures of ", task, " were not drawn (", task, ".json and ", task,
                    ".csv were written): ", error.what()),
                error.code());
  }
}

}  // namespace cplm
