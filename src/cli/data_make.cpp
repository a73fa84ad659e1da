// cplm data make: synthetic sets for tests and studies.
#include "cli/data_make.h"

#include <chrono>
#include <cmath>
#include <cstdio>

#include "base/argument_checks.h"
#include "cli/commands.h"
#include "cplm/shard_tools.h"

namespace cplm {
namespace {

constexpr const char* kRepeatHelp =
    R"(Samples are eos, then R random symbols again and again up to the end of the window, then eos.
An answer is a token that R and the tokens before determine: --counted answers makes a run's
validation loss the induction NLL.

Examples:
  cplm data make repeat --output data/repeat
  cplm data make repeat --output data/repeat --vocab-size 512 --first-symbol 1
      --sequence-length 257 --repeat-length 16:128 --samples 50000
)";
constexpr const char* kRecallHelp =
    R"(Samples are eos, filler, pairs of a key and its value, filler, then queries: a key of the pairs and
its value, the answer. Symbols are filler, then keys, then values. A distance is counted from the
value in the pair to the last answer.

Examples:
  cplm data make recall --output data/recall
  cplm data make recall --output data/recall-far --vocab-size 256 --first-symbol 1 --pairs 8
      --sequence-length 256 --distance 128:253 --queries 4
)";
constexpr const char* kSpamlangHelp =
    R"(Samples are eos, one symbol up to the end of the window, eos. The symbols held out come in
OUTPUT/held_out alone. Every token but the first of a sample is an answer.

Examples:
  cplm data make spamlang --output data/spam --vocab-size 131072
  cplm data make spamlang --output data/spam-small --vocab-size 256 --sequence-length 32
      --samples 32000 --held-out 16
)";

struct Arguments {
  explicit Arguments(SyntheticKind kind) : options(synthetic_defaults(kind)) {
    if (options.counted == CountedTargets::kAnswers) counted = "answers";
  }
  SyntheticOptions options;
  std::string counted = "all", repeat_length, distance;
};

void add_common_options(CLI::App* command, const std::shared_ptr<Arguments>& arguments) {
  SyntheticOptions& options = arguments->options;
  command->add_option("--output", options.output, "A new folder")->required();
  const auto add = [command](const char* name, auto& value, const char* help) {
    command->add_option(name, value, help)->capture_default_str();
  };
  add("--vocab-size", options.vocab_size, "Ids are 0 to this - 1");
  add("--eos-id", options.eos_token_id, "Stands before and after each sample");
  add("--first-symbol", options.first_symbol, "Symbols are the ids from here on");
  add("--sequence-length", options.sequence_length, "Tokens a sample: data.sequence_length");
  add("--samples", options.samples, "In OUTPUT/train");
  add("--validation-samples", options.validation_samples, "In OUTPUT/validation");
  command->add_option("--seed", options.seed, "Other samples")
      ->check(seed_problem)
      ->capture_default_str();
  add("--shard-tokens", options.shard_tokens, "Tokens a shard, held in memory");
  command->add_option("--counted", arguments->counted, "Targets that the loss counts: all, answers")
      ->check(CLI::IsMember({"all", "answers"}))
      ->capture_default_str();
}

void make(Arguments& arguments) {
  SyntheticOptions& options = arguments.options;
  options.counted = arguments.counted == "all" ? CountedTargets::kAll : CountedTargets::kAnswers;
  options.repeat_length = parse_range("--repeat-length", arguments.repeat_length);
  options.distance = parse_range("--distance", arguments.distance);
  const auto start = std::chrono::steady_clock::now();
  make_synthetic(options, [&](int64_t done, int64_t total) {
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const double tokens = static_cast<double>(done * options.sequence_length);
    log::progress(str(with_commas(done), " of ", with_commas(total), " samples, ",
                      with_commas(std::llround(tokens / std::max(seconds, 1e-3))), " tokens/s"));
  });
  log::progress("");
  std::printf("%s: %s samples of %s tokens for training, %s for validation%s\n",
              options.output.c_str(), with_commas(options.samples).c_str(),
              with_commas(options.sequence_length).c_str(),
              with_commas(options.validation_samples).c_str(),
              options.held_out > 0 ? ", as many of symbols held out" : "");
}

CLI::App* add_kind(CLI::App* parent, const std::shared_ptr<Arguments>& arguments,
                   const char* description, const char* help) {
  CLI::App* command =
      parent->add_subcommand(std::string(name_of(arguments->options.kind)), description);
  add_common_options(command, arguments);
  command->footer(help);
  command->callback([arguments] { make(*arguments); });
  return command;
}

}  // namespace

std::optional<WholeRange> parse_range(const char* option, const std::string& text) {
  if (text.empty()) return std::nullopt;
  const auto number = [&](std::string_view digits) {
    const std::optional<int64_t> value = read_whole_number<int64_t>(digits);
    if (value) return *value;
    throw Error(str(option, ": expected a whole number, or two as FROM:TO, ", found_number(digits)),
                ExitCode::kBadConfig);
  };
  const size_t colon = text.find(':');
  const int64_t min = number(std::string_view(text).substr(0, colon));
  return WholeRange{
      min, colon == std::string::npos ? min : number(std::string_view(text).substr(colon + 1))};
}

void add_data_make_command(CLI::App& data) {
  CLI::App* parent =
      data.add_subcommand("make", "Synthetic shards and texts, for tests and studies");
  parent->require_subcommand(1);

  auto repeat = std::make_shared<Arguments>(SyntheticKind::kRepeat);
  CLI::App* command = add_kind(parent, repeat, "Random sequences, repeated", kRepeatHelp);
  command->add_option("--repeat-length", repeat->repeat_length,
                      "R, or FROM:TO [(sequence length - 1) / 2]");

  auto recall = std::make_shared<Arguments>(SyntheticKind::kRecall);
  command = add_kind(parent, recall, "Keys with values, then a key alone", kRecallHelp);
  command->add_option("--pairs", recall->options.pairs, "Keys with a value")->capture_default_str();
  command->add_option("--queries", recall->options.queries, "Pairs asked for, each once")
      ->capture_default_str();
  command
      ->add_option("--filler-symbols", recall->options.filler_symbols,
                   "Symbols that are neither keys nor values")
      ->capture_default_str();
  command->add_option("--distance", recall->distance,
                      "D, or FROM:TO [2 x queries : sequence length - 3]");

  auto spamlang = std::make_shared<Arguments>(SyntheticKind::kSpamlang);
  command = add_kind(parent, spamlang, "One symbol, again and again", kSpamlangHelp);
  command->add_option("--held-out", spamlang->options.held_out, "Symbols that training never shows")
      ->capture_default_str();
  add_text_kinds(*parent);
}

}  // namespace cplm
