// Writes a synthetic set: shards of samples, then manifest.json, in a folder aside that takes its
// name when all is there.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/new_folder.h"
#include "cplm/base.h"
#include "cplm/data.h"
#include "cplm/shard_tools.h"
#include "data/synthetic_sample.h"

namespace cplm {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::ordered_json;

std::string range_text(const WholeRange& range) { return str(range.min, ":", range.max); }

// The options of the command that makes the same set.
Json settings_of(const SyntheticOptions& options) {
  Json settings = {{"kind", name_of(options.kind)},
                   {"vocab_size", options.vocab_size},
                   {"eos_id", options.eos_token_id},
                   {"first_symbol", options.first_symbol},
                   {"sequence_length", options.sequence_length},
                   {"samples", options.samples},
                   {"validation_samples", options.validation_samples},
                   {"seed", options.seed},
                   {"counted", options.counted == CountedTargets::kAll ? "all" : "answers"},
                   {"shard_tokens", options.shard_tokens}};
  switch (options.kind) {
    case SyntheticKind::kRepeat:
      settings["repeat_length"] = range_text(*options.repeat_length);
      break;
    case SyntheticKind::kRecall:
      settings["pairs"] = options.pairs;
      settings["queries"] = options.queries;
      settings["filler_symbols"] = options.filler_symbols;
      settings["distance"] = range_text(*options.distance);
      break;
    case SyntheticKind::kSpamlang:
      settings["held_out"] = options.held_out;
      break;
  }
  return settings;
}

// "cplm data make repeat --vocab-size 64 ...", for the attribute `source`.
std::string command_of(const Json& settings) {
  std::string command = "cplm data make";
  for (const auto& [name, value] : settings.items()) {
    const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
    std::string option = name;
    std::replace(option.begin(), option.end(), '_', '-');
    command += name == "kind" ? " " + text : str(" --", option, " ", text);
  }
  return command;
}

class SetWriter {
 public:
  SetWriter(const SampleMaker& maker, fs::path folder, const ShardProgress& on_progress)
      : maker_(maker),
        options_(maker.options()),
        folder_(std::move(folder)),
        settings_(settings_of(options_)),
        on_progress_(on_progress) {
    total_ = options_.samples + options_.validation_samples;
    if (options_.held_out > 0) total_ += options_.validation_samples;
  }

  void write() {
    write_split("train", options_.samples);
    write_split("validation", options_.validation_samples);
    if (options_.held_out > 0) write_split("held_out", options_.validation_samples);
    const Json manifest = {
        {"format_version", 1}, {"settings", settings_}, {"counts", counts_}, {"files", files_}};
    write_file_atomic(folder_ / "manifest.json", manifest.dump(2) + "\n");
  }

 private:
  void write_split(const std::string& split, int64_t samples) {
    make_folders(folder_ / split);
    const int64_t length = options_.sequence_length;
    const int64_t samples_per_shard = std::max<int64_t>(1, (options_.shard_tokens - 1) / length);
    int64_t shards = 0, tokens = 0;
    for (int64_t begin = 0; begin < samples; begin += samples_per_shard, ++shards) {
      tokens += write_one(split, shards, begin, std::min(samples - begin, samples_per_shard));
    }
    counts_[split] = {{"documents", samples + shards}, {"tokens", tokens}, {"samples", samples}};
  }

  // An eos, then the samples: window j is sample j with the eos before it.
  int64_t write_one(const std::string& split, int64_t number, int64_t begin, int64_t samples) {
    ShardContents contents;
    contents.vocab_size = options_.vocab_size;
    contents.eos_token_id = options_.eos_token_id;
    contents.source =
        str(command_of(settings_), ": ", split, ", samples ", begin, " to ", begin + samples - 1);
    const bool masked = options_.counted == CountedTargets::kAnswers;
    const auto size = static_cast<size_t>(samples * options_.sequence_length + 1);
    contents.tokens.reserve(size);
    contents.tokens.push_back(static_cast<int32_t>(options_.eos_token_id));
    contents.document_offsets = {0, 1};
    if (masked) contents.loss_mask.reserve(size);
    if (masked) contents.loss_mask.push_back(0);
    SyntheticSample sample;
    for (int64_t i = 0; i < samples; ++i) {
      maker_.make(split, begin + i, sample);
      contents.tokens.insert(contents.tokens.end(), sample.tokens.begin(), sample.tokens.end());
      contents.document_offsets.push_back(static_cast<int64_t>(contents.tokens.size()));
      if (masked) {
        contents.loss_mask.insert(contents.loss_mask.end(), sample.is_answer.begin(),
                                  sample.is_answer.end());
      }
      if (++done_ % 4096 == 0) on_progress_(done_, total_);
    }
    const std::string digits = std::to_string(number);
    const std::string name = str(
        split, "/shard_", std::string(5 - std::min<size_t>(5, digits.size()), '0'), digits, ".h5");
    write_shard(folder_ / name, contents);
    files_[name] = {{"size_bytes", fs::file_size(folder_ / name)},
                    {"sha256", sha256_file(folder_ / name)},
                    {"token_count", contents.tokens.size()},
                    {"document_count", contents.document_offsets.size() - 1}};
    return static_cast<int64_t>(contents.tokens.size());
  }

  const SampleMaker& maker_;
  const SyntheticOptions& options_;
  const fs::path folder_;
  const Json settings_;
  const ShardProgress& on_progress_;
  Json counts_ = Json::object(), files_ = Json::object();
  int64_t done_ = 0, total_ = 0;  // samples
};

}  // namespace

std::string_view name_of(SyntheticKind kind) {
  switch (kind) {
    case SyntheticKind::kRepeat:
      return "repeat";
    case SyntheticKind::kRecall:
      return "recall";
    case SyntheticKind::kSpamlang:
      break;
  }
  return "spamlang";
}

SyntheticOptions synthetic_defaults(SyntheticKind kind) {
  SyntheticOptions options;
  options.kind = kind;
  options.seed = 1234;
  options.vocab_size = 49152;
  options.first_symbol = 17;  // SmolLM2's special ids are 0 to 16
  options.validation_samples = 512;
  switch (kind) {
    case SyntheticKind::kRepeat:
      options.sequence_length = 257;  // eos and 128 ids twice
      options.samples = 20'000;
      break;
    case SyntheticKind::kRecall:
      options.sequence_length = 512;
      options.samples = 100'000;
      options.counted = CountedTargets::kAnswers;
      options.pairs = 16;
      options.queries = 1;
      options.filler_symbols = 64;
      break;
    case SyntheticKind::kSpamlang:
      options.vocab_size = 16384;
      options.first_symbol = 1;
      options.sequence_length = 128;
      options.samples = 320'000;  // 5,000 steps of 64
      options.held_out = 1024;
      break;
  }
  return options;
}

void make_synthetic(const SyntheticOptions& options, const ShardProgress& on_progress) {
  const SampleMaker maker(options);
  NewFolder folder(options.output);
  SetWriter(maker, folder.path(), on_progress).write();
  folder.finish();
}

}  // namespace cplm
