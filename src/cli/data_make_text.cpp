// cplm data make ruler, needle: generated questions and texts.
#include <cstdio>

#include "base/argument_checks.h"
#include "cli/data_make.h"
#include "cplm/base.h"
#include "cplm/retrieval_text.h"
#include "tasks/arguments.h"

namespace cplm {
namespace {

constexpr const char* kRulerHelp =
    R"(Questions for `cplm eval ruler` and for RULER's own scripts: OUTPUT/LENGTH/TASK/validation.jsonl,
each as long as fits the length with the longest answer. The tasks are those of RULER that need no
downloads, by its definition but in our own wording, filler and words; where a name ends in _filler,
our filler stands in place of RULER's essays. Compare with published numbers by RULER's own files.

Examples:
  cplm data make ruler --output data/ruler --tokenizer data/mine/tokenizer.json --lengths 4k,8k,16k
  cplm data make ruler --output data/vt --tokenizer smollm2/tokenizer.json --tasks vt --samples 100
)";
constexpr const char* kNeedleHelp =
    R"(Documents to train on, one a line as {"text"}: what `cplm eval needle` asks, at random depths of
filler of random lengths, with the answer. scripts/prepare_data.py makes shards of them. As
conversations, {"messages"}, the answer alone is what training counts.

Examples:
  cplm data make needle --output data/needle/texts.jsonl --documents 20000 --sentences 4:60
  scripts/prepare_data.py --input data/needle/texts.jsonl --train-tokenizer 600 --output data/needle
  cplm data make needle --output data/answers.jsonl --sentences 0:12 --conversations
  scripts/prepare_data.py --input data/answers.jsonl --chat --sequence-length 512 \
      --train-tokenizer 512 --output data/answers
)";

struct RulerArguments {
  RulerOptions options;
  std::string lengths = "4k,8k,16k,32k,64k,128k";
};

SampleProgress tell_samples() {
  return [](int64_t done, int64_t total) {
    log::progress(str(with_commas(done), " of ", with_commas(total), " samples"));
  };
}

void add_ruler(CLI::App& parent) {
  auto a = std::make_shared<RulerArguments>();
  CLI::App* command = parent.add_subcommand("ruler", "Questions as RULER prepares them");
  command->add_option("--output", a->options.output, "A new folder")->required();
  command->add_option("--tokenizer", a->options.tokenizer, "The tokenizer.json that counts lengths")
      ->required();
  command
      ->add_option("--lengths", a->lengths,
                   "Tokens of prompt and longest answer, at most; k: 1,024")
      ->check(counts_between(1, int64_t{1} << 24))
      ->capture_default_str();
  command
      ->add_option("--tasks", a->options.tasks,
                   "Some of " + join(ruler_task_names(), ", ") + " [all]")
      ->delimiter(',')
      ->allow_extra_args(false);
  command->add_option("--samples", a->options.samples, "Questions a task and length")
      ->check(whole_from(1))
      ->capture_default_str();
  command->add_option("--seed", a->options.seed, "Other questions")
      ->check(seed_problem)
      ->capture_default_str();
  command->footer(kRulerHelp);
  command->callback([a] {
    a->options.lengths = parse_counts(a->lengths);
    make_ruler(a->options, tell_samples());
    log::progress("");
    std::printf("%s: %s questions a task and length\n", a->options.output.c_str(),
                with_commas(a->options.samples).c_str());
  });
}

void add_needle(CLI::App& parent) {
  auto options = std::make_shared<NeedleTextOptions>();
  auto sentences = std::make_shared<std::string>();
  CLI::App* command = parent.add_subcommand("needle", "Documents with a number hidden in filler");
  command->add_option("--output", options->output, "A .jsonl file")->required();
  command->add_option("--documents", options->documents, "Lines")
      ->check(whole_from(1))
      ->capture_default_str();
  command->add_option("--sentences", *sentences,
                      str("Filler of a document, N or FROM:TO [", options->min_sentences, ":",
                          options->max_sentences, "]"));
  command->add_flag("--conversations", options->conversations,
                    "As a user's text with the question, and the assistant's answer");
  command->add_option("--seed", options->seed, "Other documents")
      ->check(seed_problem)
      ->capture_default_str();
  command->footer(kNeedleHelp);
  command->callback([options, sentences] {
    if (const auto range = parse_range("--sentences", *sentences)) {
      options->min_sentences = range->min;
      options->max_sentences = range->max;
    }
    make_needle_texts(*options, tell_samples());
    log::progress("");
    std::printf("%s: %s documents\n", options->output.c_str(),
                with_commas(options->documents).c_str());
  });
}

}  // namespace

void add_text_kinds(CLI::App& data_make) {
  add_ruler(data_make);
  add_needle(data_make);
}

}  // namespace cplm
