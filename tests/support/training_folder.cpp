// See training_folder.h.
#include "support/training_folder.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cplm/base.h"
#include "support/shards.h"

namespace cplm::test {
namespace {

namespace fs = std::filesystem;

constexpr char kConfig[] = R"(run: {name: tiny, dir: run, seed: 7}
model:
  vocab_size: 64
  hidden_size: 16
  num_hidden_layers: 2
  num_attention_heads: 2
  num_key_value_heads: 1
  intermediate_size: 32
  backbone: hybrid
  sliding_window: 8
  full_attention_every: 2
  head: cplm
data:
  train: ["data/train/*.h5"]
  validation: ["data/validation/*.h5"]
  sequence_length: 16
train: {steps: 40, batch_tokens: 64, micro_batch: 3, device: cpu, precision: float32, threads: 1}
optimizer: {lr: 1.0e-2, weight_decay: 0.1}
schedule: {warmup_steps: 4, decay_fraction: 0.5}
validation: {every: 20, sequences: 5}
checkpoint: {every: 10, keep: 9}
log: {every: 1}
)";

constexpr const char* kTimes[] = {"step_ms", "tokens_per_s", "data_wait_ms", "peak_memory_mb",
                                   "reduce_wait_ms", "slowest_rank", "slowest_rank_ms"};

}  // namespace

TrainingFolder::TrainingFolder() {
  // 120 windows: one epoch is 30 steps.
  make_text_like_shard(dir_ / "data/train/0.h5", 1000, 64, 1);
  make_text_like_shard(dir_ / "data/train/1.h5", 940, 64, 2);
  make_text_like_shard(dir_ / "data/validation/0.h5", 200, 64, 3);
  dir_.write("data/tokenizer.json", "{\"test\": true}\n");
  dir_.write("config.yaml", kConfig);
}

ProcessResult TrainingFolder::cplm(const Texts& arguments, ProcessOptions options) const {
  options.arguments = arguments;
  options.working_dir = path();
  options.environment.emplace("OMP_NUM_THREADS", "1");
  return run_process(CPLM_BINARY, options);
}

namespace {

Texts train_arguments(const std::string& run, const Texts& overrides) {
  Texts all = {"train", "config.yaml", "--set", "run.dir=" + run};
  for (const std::string& text : overrides) all.insert(all.end(), {"--set", text});
  return all;
}

}  // namespace

ProcessResult TrainingFolder::train_after(const std::string& prelude, const std::string& run,
                                          const Texts& overrides) const {
  ProcessOptions options;
  options.working_dir = path();
  options.environment.emplace("OMP_NUM_THREADS", "1");
  options.arguments = {"-c", prelude + "; exec \"$0\" \"$@\"", CPLM_BINARY};
  const Texts arguments = train_arguments(run, overrides);
  options.arguments.insert(options.arguments.end(), arguments.begin(), arguments.end());
  return run_process("bash", options);
}

ProcessResult TrainingFolder::train(const std::string& run, const Texts& overrides,
                                    const Texts& arguments, ProcessOptions options) const {
  Texts all = train_arguments(run, overrides);
  all.insert(all.end(), arguments.begin(), arguments.end());
  return cplm(all, std::move(options));
}

Texts TrainingFolder::metrics(const std::string& run, const std::string& kind) const {
  std::ifstream in(path() / run / "metrics.jsonl");
  Texts lines;
  for (std::string line; std::getline(in, line);) {
    auto json = nlohmann::ordered_json::parse(line);
    for (const char* name : kTimes) json.erase(name);
    if (kind.empty() || json.at("kind") == kind) lines.push_back(json.dump());
  }
  return lines;
}

fs::path TrainingFolder::checkpoint(const std::string& run, int step) const {
  const std::string digits = std::to_string(step);
  return path() / run / "checkpoints" / ("step_" + std::string(10 - digits.size(), '0') + digits);
}

Texts TrainingFolder::weights(const std::string& run, int step) const {
  const fs::path folder = checkpoint(run, step);
  return {sha256_file(folder / "model.safetensors"), sha256_file(folder / "optimizer.safetensors")};
}

Texts TrainingFolder::snapshot(const std::string& folder) const {
  Texts files;
  for (const auto& item : fs::recursive_directory_iterator(path() / folder)) {
    if (!item.is_regular_file() || item.path().filename() == ".lock") continue;
    files.push_back(str(item.path().string(), " ",
                        item.last_write_time().time_since_epoch().count(), " ",
                        sha256_file(item.path())));
  }
  std::sort(files.begin(), files.end());
  return files;
}

double number_in(const std::string& line, const char* field) {
  return nlohmann::json::parse(line).at(field).get<double>();
}

std::string error_line(const ProcessResult& result) {
  std::string last, line;
  int errors = 0;
  std::istringstream in(result.err);
  while (std::getline(in, line)) {
    last = line;
    errors += line.starts_with("error: ") ? 1 : 0;
  }
  if (errors != 1 || !last.starts_with("error: ")) return "not one line of error: " + result.err;
  return last;
}

}  // namespace cplm::test
