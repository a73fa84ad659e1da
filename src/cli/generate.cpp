// cplm generate: arguments to prompts and options; what is written is generate_text.cpp's.
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/generate_text.h"
#include "cplm/saved_model.h"
#include "cplm/train.h"

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
)";

struct Arguments {
  std::string checkpoint, mode = "natural", device = "auto", precision, speculate = "none", explain,
                          eos;
  std::vector<std::string> overrides, prompts, files, ids, stops;
  bool chat = false, json = false, special = false;
  int64_t threads = 0, batch = 8;
  double yarn = 0;
  std::string seed = "0";
  GenerateOptions options;
};

[[noreturn]] void bad_argument(const std::string& message) {
  throw Error(message, ExitCode::kBadConfig);
}

CopyMode parse_mode(const std::string& name) {
  if (name == "natural") return CopyMode::kNatural;
  if (name == "no_copy") return CopyMode::kNoCopy;
  if (name == "force_copy") return CopyMode::kForceCopy;
  const std::string near = nearest_name(name, {"natural", "no_copy", "force_copy"});
  bad_argument(str("--mode: expected natural, no_copy or force_copy, found \"", name, "\"",
                   near.empty() ? "" : "; did you mean " + near + "?"));
}

int64_t parse_number(const char* option, std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) {
    bad_argument(str(option, ": expected a whole number from 0, found \"", text, "\""));
  }
  return value;
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

// "natural" or "natural,40:no_copy": the first mode, then changes by new token.
void set_modes(const std::string& text, GenerateOptions& options) {
  const std::vector<std::string> parts = split(text, ',');
  options.mode = parse_mode(parts.front());
  int64_t last = 0;
  for (size_t i = 1; i < parts.size(); ++i) {
    const size_t colon = parts[i].find(':');
    if (colon == std::string::npos) {
      bad_argument(
          str("--mode: expected TOKENS:MODE behind the first mode, found \"", parts[i], "\""));
    }
    const int64_t first = parse_number("--mode", parts[i].substr(0, colon));
    if (first <= last) bad_argument(str("--mode: expected rising token numbers, found ", text));
    options.mode_changes.emplace_back(first, parse_mode(parts[i].substr(colon + 1)));
    last = first;
  }
}

std::vector<int64_t> parse_ids(const std::string& text) {
  std::vector<int64_t> ids;
  for (const std::string& part : split(text, ',')) ids.push_back(parse_number("--ids", part));
  return ids;
}

// In the order text, files, ids.
std::vector<Prompt> prompts_of(const Arguments& a) {
  std::vector<Prompt> prompts;
  for (const std::string& text : a.prompts) prompts.push_back({text, {}, "--prompt"});
  for (const std::string& file : a.files) {
    const std::filesystem::path path = file == "-" ? "/dev/stdin" : expand_tilde(file);
    if (!std::filesystem::exists(path)) {
      throw Error(str(path.string(), ": no such file"), ExitCode::kBadData);
    }
    prompts.push_back({read_file(path), {}, path.string()});
  }
  for (const std::string& text : a.ids) prompts.push_back({"", parse_ids(text), "--ids"});
  return prompts;
}

SavedModel saved_model_of(const Arguments& a) {
  SavedModel saved = find_saved_model(expand_tilde(a.checkpoint));
  Config& config = saved.config;
  config = parse_config(dump_config(config), (saved.folder / "config").string(), a.overrides);
  if (a.yarn != 0) {
    const std::vector<LayerKind>& kinds = config.model.layer_types;
    if (std::find(kinds.begin(), kinds.end(), LayerKind::kFull) == kinds.end()) {
      bad_argument("--yarn: stretches full-attention layers, and this model has none");
    }
    RopeScalingConfig scaling;
    scaling.factor = a.yarn;
    // Of a model that is stretched already, the context from before.
    scaling.original_max_position_embeddings =
        config.model.rope_scaling ? config.model.rope_scaling->original_max_position_embeddings
                                  : config.data.sequence_length;
    config.model.rope_scaling = scaling;
    config = parse_config(dump_config(config), "--yarn");  // its rules
  }
  config.train.device = a.device == "cpu"    ? Device::kCpu
                        : a.device == "cuda" ? Device::kCuda
                                             : Device::kAuto;
  config.train.threads = a.threads;
  return saved;
}

// float32 on a CPU, where bfloat16 would only be slow; the run's own on a GPU.
void set_precision(const std::string& asked, at::Device device, Config& config) {
  if (asked == "float64") config.train.precision = Precision::kFloat64;
  if (asked == "float32") config.train.precision = Precision::kFloat32;
  if (asked == "bfloat16") config.train.precision = Precision::kBFloat16;
  if (asked.empty() && device.is_cpu() && config.train.precision == Precision::kBFloat16) {
    config.train.precision = Precision::kFloat32;
  }
}

void run(Arguments& a) {
  c10::InferenceMode inference;
  set_modes(a.mode, a.options);
  if (a.speculate == "copy") a.options.speculation = Speculation::kCopy;
  a.options.sampling.seed = std::stoull(a.seed);
  TextOptions text{prompts_of(a), a.stops, a.chat, a.json, a.special, a.batch, a.explain, a.eos};
  SavedModel saved = saved_model_of(a);
  set_threads(a.threads);
  const Precision to_find_device =
      a.precision == "float64" ? Precision::kFloat64 : saved.config.train.precision;
  const at::Device device = resolve_device(saved.config.train.device, to_find_device);
  set_precision(a.precision, device, saved.config);
  keep_freed_memory();
  LanguageModel model(saved.config.model, model_options(saved.config, device));
  load_model(saved.folder, model.parameters());
  write_texts(model, saved, text, a.options);
}

// CLI11's own would tell the range of a double.
auto whole_from(int64_t least) {
  return [least](const std::string& text) -> std::string {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool whole = error == std::errc() && end == text.data() + text.size();
    if (whole && value >= least) return "";
    return str("expected a whole number from ", least, ", found ", text);
  };
}

void add_sampling(CLI::App& command, Arguments& a) {
  SamplingOptions& sampling = a.options.sampling;
  command.add_option("--temperature", sampling.temperature, "0: always the likeliest token")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  command.add_option("--top-k", sampling.top_k, "Only the k likeliest tokens; 0: all")
      ->check(whole_from(0))
      ->capture_default_str();
  command.add_option("--top-p", sampling.top_p, "Only the likeliest tokens that reach this sum")
      ->check(CLI::Range(0.0, 1.0))
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

// CLI::Range takes nan.
std::string yarn_problem(const std::string& text) {
  double factor = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), factor);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  if (whole && factor >= 1 && factor <= 1e6) return "";
  return str("expected a factor from 1 to 1000000, found ", text);
}

void add_machine(CLI::App& command, Arguments& a) {
  command.add_option("--batch", a.batch, "Prompts at once")
      ->check(whole_from(1))
      ->capture_default_str();
  command
      .add_option("--prefill-chunk", a.options.decoder.prefill_chunk,
                  "Prompt tokens that go through the model at once")
      ->check(whole_from(1))
      ->capture_default_str();
  command.add_option("--device", a.device, "auto, cpu or cuda")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  command
      .add_option("--precision", a.precision,
                  "float64, float32 or bfloat16; else the run's, or float32 for bfloat16 on a CPU")
      ->check(CLI::IsMember({"float64", "float32", "bfloat16"}));
  command.add_option("--threads", a.threads, "CPU threads; 0: all cores")
      ->check(whole_from(0))
      ->capture_default_str();
  command.add_option("--yarn", a.yarn, "Stretch full layers' positions by this factor (YaRN)")
      ->check(yarn_problem);
  command.add_option("--set", a.overrides, "Override a field of the run's config: key.path=value")
      ->allow_extra_args(false);
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
  add_machine(*command, *a);
  command->footer(kFooter);
  command->callback([a] { run(*a); });
}

}  // namespace cplm
