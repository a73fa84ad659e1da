// cplm copy-cache make: documents, each by itself, to a file of ids and copy keys that `cplm
// generate --documents` reads.
#include <c10/core/InferenceMode.h>

#include <optional>

#include "base/argument_checks.h"
#include "cli/commands.h"
#include "cli/document_cache.h"
#include "cli/model_arguments.h"
#include "cli/prompts.h"
#include "cplm/copy_cache_file.h"
#include "cplm/tokenizer.h"

namespace cplm {
namespace {

constexpr const char* kFooter =
    R"(Each FILE and each list of ids is a document. It is read by itself, and ends with the token that ends
a text, which nothing is copied from. Files of any documents of one model are joined by
`cplm generate --documents A.h5 --documents B.h5`, in any order.

Examples:
  cplm copy-cache make runs/a --file notes.txt --file log.txt --output notes.h5
  cplm generate runs/a --documents notes.h5 --prompt "The notes say that"
)";

struct Arguments {
  std::string checkpoint, output, eos, key_type;
  std::vector<std::string> files, ids;
  int64_t batch_tokens = 8192;
  ModelArguments model;
};

Documents documents_of(const Arguments& a, std::optional<Tokenizer>& tokenizer,
                       int64_t vocab_size) {
  Documents documents;
  for (const Prompt& prompt : read_prompts({}, a.files, a.ids)) {
    std::vector<int64_t> ids = prompt.ids;
    if (ids.empty()) {
      if (!tokenizer) {
        throw Error(str(prompt.origin, ": needs the run's tokenizer.json, and there is none; give ",
                        "the document by --ids, or copy the tokenizer there"),
                    ExitCode::kBadConfig);
      }
      ids = encode_prompt(prompt, [&](const std::string& text) { return tokenizer->encode(text); });
    }
    check_prompt_ids(ids, prompt.origin, vocab_size);
    if (tokenizer && tokenizer->eos_id()) ids.push_back(*tokenizer->eos_id());
    if (ids.empty()) throw Error(prompt.origin + ": an empty document", ExitCode::kBadData);
    documents.push_back(std::move(ids));
  }
  return documents;
}

void make(const Arguments& a) {
  c10::InferenceMode inference;
  const OpenModel opened = open_model(a.checkpoint, a.model);
  LanguageModel& model = *opened.model;
  const std::filesystem::path output = expand_tilde(a.output);
  std::optional<Tokenizer> tokenizer;
  if (!opened.saved.tokenizer.empty()) {
    tokenizer.emplace(opened.saved.tokenizer, TokenizerOptions{.eos = a.eos});
  } else if (!a.eos.empty()) {
    throw Error("--eos: needs the run's tokenizer.json, and there is none", ExitCode::kBadConfig);
  }
  const Documents documents = documents_of(a, tokenizer, model.config().vocab_size);
  const CopyCacheOrigin origin = copy_cache_origin(
      model, tokenizer ? tokenizer->eos_id() : std::nullopt, tokenizer_hash(opened.saved));
  CopyCache cache = encode_documents(model, documents, origin, a.batch_tokens);
  if (a.key_type == "bfloat16") cache = cache.to(at::TensorOptions().dtype(at::kBFloat16));
  if (a.key_type == "float32") cache = cache.to(at::TensorOptions().dtype(at::kFloat));
  make_folders(std::filesystem::absolute(output).parent_path());
  save_copy_cache(cache, std::filesystem::absolute(output));
  log::info(describe(cache, output.string()));
}

}  // namespace

void add_copy_cache_command(CLI::App& app) {
  CLI::App* parent = app.add_subcommand("copy-cache", "Documents as copy keys, to be copied from");
  parent->require_subcommand(1);
  auto a = std::make_shared<Arguments>();
  CLI::App* command = parent->add_subcommand("make", "Encode documents, each by itself");
  command->add_option("checkpoint", a->checkpoint, "A run's folder or a checkpoint")->required();
  command->add_option("--output", a->output, "FILE.h5, replaced when it is there")->required();
  command->add_option("--file", a->files, "A document's text (any number of times); -: stdin")
      ->allow_extra_args(false);
  command->add_option("--ids", a->ids, "A document's token ids, as 17,3,92 (any number of times)")
      ->allow_extra_args(false);
  command->add_option("--eos", a->eos, "Token that ends a document; <|endoftext|> when not given");
  command
      ->add_option("--key-type", a->key_type,
                   "bfloat16 or float32, as keys are kept; else the model's precision")
      ->check(CLI::IsMember({"bfloat16", "float32"}));
  command->add_option("--batch-tokens", a->batch_tokens, "Tokens that are encoded at once")
      ->check(whole_from(1))
      ->capture_default_str();
  add_model_arguments(*command, a->model);
  command->footer(kFooter);
  command->callback([a] {
    if (a->files.empty() && a->ids.empty()) {
      throw Error("expected documents: give --file or --ids", ExitCode::kBadConfig);
    }
    make(*a);
  });
}

}  // namespace cplm
