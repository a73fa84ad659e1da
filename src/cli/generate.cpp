// cplm generate: arguments to prompts and options; what is written is generate_text.cpp's.
#include <c10/core/InferenceMode.h>

#include <optional>

#include "base/argument_checks.h"
#include "cli/commands.h"
#include "cli/document_cache.h"
#include "cli/generate_text.h"
#include "cli/model_arguments.h"
#include "cli/prompts.h"
#include "cplm/copy_modes.h"

namespace cplm {
namespace {

constexpr const char* kFooter =
    R"(Without a prompt a new document is begun. Text goes to stdout, all else to stderr.
--mode takes one mode, or changes of it by new tokens: natural,40:no_copy,80:force_copy

Examples:
  cplm generate runs/a --prompt "The copy head"
  cplm generate runs/a --file notes.txt --temperature 0.8 --top-p 0.95 --seed 7
  cplm generate runs/a --prompt "The copy head" --explain page.html
  cplm generate runs/chat --chat --prompt "What is a copy head?" --stop "<|user|>"
  cplm generate runs/a --ids 17,3,92 --json --speculate copy
  cplm generate runs/a --documents notes.h5 --prompt "The notes say that"
)";

struct Arguments {
  std::string checkpoint, mode = "natural", speculate = "none", explain, eos, seed = "0";
  std::vector<std::string> prompts, files, ids, stops, documents;
  bool chat = false, json = false, special = false;
  int64_t batch = 8;
  ModelArguments model;
  GenerateOptions options;
};

[[noreturn]] void bad_argument(const std::string& message) {
  throw Error(message, ExitCode::kBadConfig);
}

CopyMode parse_mode(const std::string& name) {
  for (const auto& [known, mode] : kCopyModes) {
    if (name == known) return mode;
  }
  const std::string near = nearest_name(name, copy_mode_names());
  bad_argument(str("--mode: expected natural, no_copy or force_copy, found \"", name, "\"",
                   near.empty() ? "" : "; did you mean " + near + "?"));
}

// "natural" or "natural,40:no_copy": the first mode, then changes by new token.
void set_modes(const std::string& text, GenerateOptions& options) {
  const std::vector<std::string> parts = split_list(text, ',');
  options.mode = parse_mode(parts.front());
  int64_t last = 0;
  for (size_t i = 1; i < parts.size(); ++i) {
    const size_t colon = parts[i].find(':');
    if (colon == std::string::npos) {
      bad_argument(
          str("--mode: expected TOKENS:MODE behind the first mode, found \"", parts[i], "\""));
    }
    const int64_t first = parse_whole_number("--mode", parts[i].substr(0, colon));
    if (first <= last) bad_argument(str("--mode: expected rising token numbers, found ", text));
    options.mode_changes.emplace_back(first, parse_mode(parts[i].substr(colon + 1)));
    last = first;
  }
}

void run(Arguments& a) {
  c10::InferenceMode inference;
  set_modes(a.mode, a.options);
  if (a.speculate == "copy") a.options.speculation = Speculation::kCopy;
  a.options.sampling.seed = std::stoull(a.seed);
  if (!a.explain.empty() && !a.documents.empty()) {
    bad_argument("--explain: shows a text alone, and --documents stand before it; leave one out");
  }
  const TextOptions text{read_prompts(a.prompts, a.files, a.ids),
                         a.stops,
                         a.chat,
                         a.json,
                         a.special,
                         a.batch,
                         a.explain,
                         a.eos};
  const OpenModel opened = open_model(a.checkpoint, a.model);
  const std::optional<CopyCache> documents =
      read_documents(a.documents, opened.saved, *opened.model);
  if (documents) a.options.decoder.documents = &*documents;
  write_texts(*opened.model, opened.saved, text, a.options);
}

void add_sampling(CLI::App& command, Arguments& a) {
  SamplingOptions& sampling = a.options.sampling;
  command.add_option("--temperature", sampling.temperature, "0: always the likeliest token")
      ->check(number_between(0, 1e6))
      ->capture_default_str();
  command.add_option("--top-k", sampling.top_k, "Only the k likeliest tokens; 0: all")
      ->check(whole_from(0))
      ->capture_default_str();
  command.add_option("--top-p", sampling.top_p, "Only the likeliest tokens that reach this sum")
      ->check(number_between(0, 1))
      ->capture_default_str();
  command.add_option("--seed", a.seed, "Of the sampling")
      ->check(seed_problem)
      ->capture_default_str();
  command.add_option("--mode", a.mode, "natural, no_copy or force_copy, or changes of it")
      ->capture_default_str();
  command.add_option("--speculate", a.speculate, "copy: check tokens that followed a copied one")
      ->check(CLI::IsMember({"none", "copy"}))
      ->capture_default_str();
  command.add_option("--max-draft", a.options.max_draft, "Tokens checked at once, at most")
      ->check(whole_from(1))
      ->capture_default_str();
}

void add_batches(CLI::App& command, Arguments& a) {
  command.add_option("--batch", a.batch, "Prompts at once")
      ->check(whole_from(1))
      ->capture_default_str();
  command
      .add_option("--prefill-chunk", a.options.decoder.prefill_chunk,
                  "Prompt tokens that go through the model at once")
      ->check(whole_from(1))
      ->capture_default_str();
}

}  // namespace

void add_generate_command(CLI::App& app) {
  auto a = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("generate", "Write text with a trained model");
  command->add_option("checkpoint", a->checkpoint, "A run's folder or a checkpoint")->required();
  command->add_option("--prompt", a->prompts, "Text to go on from (any number of times)")
      ->allow_extra_args(false);
  command->add_option("--file", a->files, "A file to go on from (any number of times); -: stdin")
      ->allow_extra_args(false);
  command->add_option("--ids", a->ids, "Token ids to go on from, as 17,3,92")
      ->allow_extra_args(false);
  command
      ->add_option("--documents", a->documents,
                   "A file of `cplm copy-cache make`, to copy from (any number of times)")
      ->allow_extra_args(false);
  command->add_flag("--chat", a->chat,
                    "Prompts are a user's message, or JSON messages, for a fine-tuned model");
  command->add_flag("--special", a->special,
                    "Prompts that spell special tokens mean them; the output shows them");
  command->add_option("--max-new-tokens", a->options.max_new_tokens, "Of each text")
      ->check(whole_from(0))
      ->capture_default_str();
  command->add_option("--stop", a->stops, "End a text before this string (any number of times)")
      ->allow_extra_args(false);
  command->add_option("--eos", a->eos, "Token that ends a text; <|endoftext|> when not given");
  command->add_flag("--json", a->json,
                    "One JSON object a text: prompt, text, ids, log_probs, stop");
  command->add_option("--explain", a->explain,
                      "FILE.html or .json: what each token was copied from (one prompt)");
  add_sampling(*command, *a);
  add_batches(*command, *a);
  add_model_arguments(*command, a->model);
  command->footer(kFooter);
  command->callback([a] { run(*a); });
}

}  // namespace cplm
