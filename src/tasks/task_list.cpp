// The tasks by name, tasks from a line of arguments, and a result's files.
#include "tasks/task_list.h"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "base/python_script.h"
#include "cplm/base.h"

namespace cplm {
namespace {

constexpr const char* kLongContextNotes =
    R"(Documents of at least length + 1 tokens; the first `length` predicted in one forward, without a
stride. By position, averaged over documents: loss, and of a CPLM the copy gate c, the sink s, the
copied weight c (1 - s) and the mean copy distance, sum over i of alpha_i (t - i) / (1 - s). Buckets
double from 1,024 on; the last 1,024 positions (less where the length is under 16,384) stand apart:
"perplexity at 16k". Full layers read beyond their training by --yarn; sliding ones need nothing.

Examples:
  cplm eval long-context runs/sliding-cplm --data "data/long/*.h5" --documents 100 --out results
  cplm eval long-context runs/vanilla runs/cplm --length 4096 --packed --documents 32
)";

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

constexpr const char* kRequestsNotes =
    R"(One JSON object a line: {"context": TEXT, "choices": [TEXT, ...], "gold": 0}, or {"context": TEXT,
"continuation": TEXT}; lists of token ids in place of texts for models without tokenizer. acc: the
choice of the greatest log P is right; acc_norm: of the greatest log P a byte. Texts are divided
into tokens, and cut from the left, as by lm-eval. docs/evaluate.md has the whole format.

Examples:
  cplm eval requests runs/vanilla runs/cplm --requests arc_easy.jsonl --out results
  cplm eval requests runs/cplm --requests lambada.jsonl --mode natural --mode no_copy
constexpr const char* kNeedleNotes =
    R"(A sentence that gives a seven-digit number stands somewhere in neutral filler, and the prompt ends by
asking for it. An answer is right when the number is in the greedy continuation. Depth 0 is before
the first sentence, 100 behind the last. Samples depend on seed, length, depth and number alone.

Examples:
  cplm eval needle runs/vanilla runs/cplm --out results
  cplm eval needle runs/cplm --lengths 1k,4k,16k --samples 50
)";
constexpr const char* kRulerNotes =
    R"(Answers the questions of RULER's prepared jsonl (fields input, outputs, and where there are index,
answer_prefix, length, others) by greedy decoding, within each task's tokens. A score is the share of
the references found in the answer, for qa whether one is found, times 100. With --out the answers
are written to DIR/predictions/MODEL/LENGTH/TASK.jsonl, which RULER's evaluate script reads.
`cplm data make ruler` writes such files for the tasks that need no downloads, in our own wording.

Examples:
  cplm eval ruler runs/vanilla runs/cplm --data ruler/synthetic --out results
  cplm eval ruler runs/cplm --data data/ruler/4096/vt/validation.jsonl --samples 50
)";
constexpr const char* kRecallNotes =
    R"(A sequence is an end-of-document token, filler, pairs of a key and its value, filler and one of the
keys, all random single ids; an answer is right when the key's value is the likeliest next token. For
models trained on `cplm data make recall`, with whose options the samples are made; no tokenizer is
needed. Modes as in perplexity. A distance is counted from the value in its pair to the answer.

Examples:
  cplm eval recall runs/vanilla runs/cplm --first-symbol 1 --out results
  cplm eval recall runs/cplm --pairs 8 --distances 16,64,256,1k,4k,16k
)";

}  // namespace

const std::vector<TaskKind>& task_kinds() {
  static const std::vector<TaskKind> kinds = {
      {"long-context", "Loss, gates and copy distance by position in long documents",
       kLongContextNotes, make_long_context},
      {"perplexity", "Loss, perplexity and bits per byte in the three modes", kPerplexityNotes,
       make_perplexity},
      {"requests", "Continuations of contexts: log P, and multiple-choice accuracies",
       kRequestsNotes, make_requests},
      {"needle", "A number hidden in text: accuracy by length and depth", kNeedleNotes,
       make_needle},
      {"ruler", "RULER's prepared questions, answered and scored", kRulerNotes,
       make_ruler_evaluation},
      {"recall", "Key-value recall by distance, on token ids", kRecallNotes, make_recall},
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
