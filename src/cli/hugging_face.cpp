// cplm export and cplm import.
#include "cplm/hugging_face.h"

#include <algorithm>
#include <limits>

#include "base/argument_checks.h"
#include "cli/commands.h"

namespace cplm {
namespace {

std::string names_a_folder(const std::string& text) {
  return text.empty() ? "expected a folder's name, found nothing" : "";
}

const std::map<std::string, WeightType>& weight_types() {
  static const std::map<std::string, WeightType> types = {{"float64", WeightType::kFloat64},
                                                          {"float32", WeightType::kFloat32},
                                                          {"bfloat16", WeightType::kBFloat16},
                                                          {"float16", WeightType::kFloat16}};
  return types;
}

// The capital letters at the end.
std::string unit_of(const std::string& text) {
  const auto is_letter = [](char c) { return c >= 'A' && c <= 'Z'; };
  return {std::find_if_not(text.rbegin(), text.rend(), is_letter).base(), text.end()};
}

// "5GB", "300MB", "2000KB" or "4096"; nothing for anything else.
std::optional<uint64_t> parse_bytes(const std::string& text) {
  static const std::map<std::string, uint64_t> units = {
      {"", 1}, {"KB", 1'000}, {"MB", 1'000'000}, {"GB", 1'000'000'000}};
  const std::string digits = text.substr(0, text.size() - unit_of(text).size());
  const auto unit = units.find(unit_of(text));
  const std::optional<uint64_t> count = read_whole_number<uint64_t>(digits);
  if (!count || unit == units.end() || *count == 0) return std::nullopt;
  if (*count > std::numeric_limits<uint64_t>::max() / unit->second) return std::nullopt;
  return *count * unit->second;
}

void report(const FolderWritten& written) {
  log::info(str(written.folder.string(), ": ", written.architecture, ", ",
                with_commas(written.num_tensors), " tensors, ",
                with_commas(static_cast<int64_t>(written.weight_bytes)), " bytes"));
}

}  // namespace

void add_export_command(CLI::App& app) {
  struct Arguments {
    std::string checkpoint, folder, dtype, max_shard_size = "5GB";
    ExportOptions options;
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("export", "Write a model as a Hugging Face folder");
  command->add_option("checkpoint", arguments->checkpoint, "Run, checkpoint or imported model")
      ->required();
  command->add_option("folder", arguments->folder, "The folder to make")
      ->required()
      ->check(names_a_folder);
  command->add_option("--dtype", arguments->dtype, "Of the weights; as stored when not given")
      ->check(CLI::IsMember(weight_types()));
  command
      ->add_option("--max-shard-size", arguments->max_shard_size,
                   "Weights beyond it go to several files: bytes, or with KB, MB, GB")
      ->check([](const std::string& text) {
        return parse_bytes(text) ? std::string()
                                 : "expected a size as 5GB, " + found_number(text, unit_of(text));
      })
      ->capture_default_str();
  command->add_option("--eos", arguments->options.eos,
                      "Token that ends a text; <|endoftext|> when not given");
  command->add_flag("--chat", arguments->options.chat,
                    "The model is fine-tuned on conversations: add their template");
  command->add_flag("--overwrite", arguments->options.overwrite, "Replace an earlier export");
  command->callback([arguments] {
    ExportOptions& options = arguments->options;
    if (!arguments->dtype.empty()) options.dtype = weight_types().at(arguments->dtype);
    options.max_shard_bytes = *parse_bytes(arguments->max_shard_size);
    report(export_hugging_face(expand_tilde(arguments->checkpoint), expand_tilde(arguments->folder),
                               options));
  });
}

void add_import_command(CLI::App& app) {
  struct Arguments {
    std::string folder, checkpoint, head;
    ImportOptions options;
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("import", "Take in a Llama or Mistral of Hugging Face");
  command->add_option("folder", arguments->folder, "Hugging Face folder")->required();
  command->add_option("checkpoint", arguments->checkpoint, "The folder to make")
      ->required()
      ->check(names_a_folder);
  command
      ->add_option("--head", arguments->head,
                   "cplm adds a fresh copy head to a model without one, vanilla leaves one out; "
                   "as the folder when not given")
      ->check(CLI::IsMember({"cplm", "vanilla"}));
  command->add_flag("--overwrite", arguments->options.overwrite, "Replace an earlier import");
  command->callback([arguments] {
    ImportOptions& options = arguments->options;
    if (arguments->head == "cplm") options.head = HeadKind::kCplm;
    if (arguments->head == "vanilla") options.head = HeadKind::kVanilla;
    report(import_hugging_face(expand_tilde(arguments->folder), expand_tilde(arguments->checkpoint),
                               options));
  });
}

}  // namespace cplm
