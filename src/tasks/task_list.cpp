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

constexpr const char* kInductionNotes =
    R"(Sequences are an end of document, T symbols, each uniform, and the same again. Losses are means of
-log P: over the first copy (chance is the log of the number of symbols), and over the second but for
its first symbol, which cannot be known. A head's score is its mean attention, over the second copy,
to the token behind the one that it repeats; of the Copy-Paste head, alpha there, with and without
the sink's share.

Examples:
  cplm eval induction runs/vanilla runs/cplm --out results
  cplm eval induction runs/cplm --lengths 32,512 --score-length 32 --first-symbol 1
)";

constexpr const char* kGradientNotes =
    R"(The gradient of -log P at the logits reaches the hidden state only as far as it lies in the column
space of the LM head's matrix: kept is the norm of its projection there over its own, lost that of
the rest, energy lost the square. The same for the gradient at the copy scores of a query, and of a
key, by position, with singular values up to 1e-12, 1e-3 or 1e-2 of the largest counted as none; the
reading "sink lost" counts the sink's entry as lost, transfer is ||M^T g|| / (sigma_max ||g||).

Examples:
  cplm eval gradient runs/vanilla runs/cplm --out results
  cplm eval gradient runs/cplm --sequences 64 --context 512 --stride 64
)";

constexpr const char* kSpamlangNotes =
    R"(On samples of `cplm data make spamlang`, one symbol again and again: the share of places, from the
symbol's second on, whose likeliest token is the symbol, by mode; and the share of right symbols when
the model goes on by itself behind --prompt of them.

Examples:
  cplm eval spamlang runs/spam-vanilla runs/spam-cplm --out results
)";

}  // namespace

const std::vector<TaskKind>& task_kinds() {
  static const std::vector<TaskKind> kinds = {
      {"perplexity", "Loss, perplexity and bits per byte in the three modes", kPerplexityNotes,
       make_perplexity},
      {"induction", "Loss on repeated random sequences, and which heads repeat them",
       kInductionNotes, make_induction},
      {"gradient", "How much of its gradient each head passes on", kGradientNotes, make_gradient},
      {"spamlang", "Whether one symbol is repeated, seen in training or not", kSpamlangNotes,
       make_spamlang},
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
