// Every setting of a run, its default and its meaning's name. What a field means, its unit and
// range stand in src/config/fields.h, the one list that reads, writes, checks and documents them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace cplm {

// full_attention, sliding_attention, linear_attention
enum class LayerKind { kFull, kSliding, kLinear };
enum class HeadKind { kVanilla, kCplm };
enum class StopGradient { kNone, kScores, kScoresAndGate };
enum class Device { kAuto, kCpu, kCuda };
enum class Precision { kFloat64, kFloat32, kBFloat16 };
enum class OpsKind { kFused, kComposed };
enum class ScheduleKind { kWsd, kCosine, kConstant };
enum class DecayShape { kLinear, kSqrt, kCosine };
enum class OnNonfinite { kStop, kSkip, kRewind };

struct RunConfig {
  std::string name = "run";
  std::string dir;  // required for train
  uint64_t seed = 1234;
  bool operator==(const RunConfig&) const = default;
};

struct RopeScalingConfig {  // YaRN
  std::string rope_type = "yarn";
  double factor = 1.0;
  int64_t original_max_position_embeddings = 0;
  bool operator==(const RopeScalingConfig&) const = default;
};

struct CopyConfig {
  StopGradient stop_gradient = StopGradient::kNone;
  bool include_current = true;
  bool rope = false;
  bool qk_norm = false;
  bool operator==(const CopyConfig&) const = default;
};

struct ModelConfig {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t intermediate_size = 0;
  double rope_theta = 1.0e4;
  std::optional<RopeScalingConfig> rope_scaling;
  double rms_norm_eps = 1.0e-5;
  double initializer_range = 0.02;
  bool tie_word_embeddings = true;
  std::string backbone = "full";  // full, sliding, hybrid, recurrent; "" when layer_types rules
  std::vector<LayerKind> layer_types;  // resolved: one a layer
  int64_t sliding_window = 256;
  int64_t full_attention_every = 4;
  // Of linear_attention layers (Gated DeltaNet); null: the rule of the functions below.
  std::optional<int64_t> linear_num_heads, linear_key_head_dim, linear_value_head_dim;
  int64_t linear_conv_kernel = 4;
  bool linear_allow_neg_eigval = false;
  HeadKind head = HeadKind::kCplm;
  CopyConfig copy;

  int64_t head_dim() const { return hidden_size / num_attention_heads; }
  bool has_layer(LayerKind kind) const;
  int64_t linear_heads() const { return linear_num_heads.value_or(num_attention_heads); }
  int64_t linear_key_dim() const {
    return linear_key_head_dim.value_or(3 * hidden_size / (4 * linear_heads()));
  }
  int64_t linear_value_dim() const { return linear_value_head_dim.value_or(2 * linear_key_dim()); }
  bool operator==(const ModelConfig&) const = default;
};

struct DataSource {
  // Smaller shares of a mixture would leave blocks of the training order without the source.
  static constexpr double kMinShare = 1.0 / 4096;

  std::string path;              // a glob
  std::optional<double> weight;  // every source has one, or none has: one list of shards
  bool operator==(const DataSource&) const = default;
};

struct DataConfig {
  std::vector<DataSource> train;
  std::vector<std::string> validation;
  int64_t sequence_length = 2048;
  bool intra_document_mask = false;
  bool operator==(const DataConfig&) const = default;
};

struct TrainConfig {
  std::optional<int64_t> total_tokens;
  std::optional<int64_t> steps;
  int64_t batch_tokens = 0;
  int64_t micro_batch = 1;
  Device device = Device::kAuto;
  Precision precision = Precision::kFloat32;
  int64_t threads = 0;
  OpsKind ops = OpsKind::kFused;
  bool deterministic = true;
  std::string activation_checkpointing = "none";  // none, full, or a whole number
  std::optional<std::string> init_from;
  bool operator==(const TrainConfig&) const = default;
};

struct OptimizerConfig {
  std::string name = "adamw";
  double lr = 3.0e-3;
  std::vector<double> betas = {0.9, 0.95};
  double eps = 1.0e-8;
  double weight_decay = 0.01;
  std::vector<std::string> no_decay;
  double grad_clip = 1.0;
  bool shard = false;
  bool operator==(const OptimizerConfig&) const = default;
};

struct ScheduleConfig {
  ScheduleKind name = ScheduleKind::kWsd;
  int64_t warmup_steps = 0;
  double decay_fraction = 0.2;
  DecayShape decay_shape = DecayShape::kLinear;
  double min_lr = 0.0;

  // Steps of WSD's decay at the end of a run: round(decay_fraction S); 0 for other schedules.
  int64_t decay_steps(int64_t total_steps) const;
  bool operator==(const ScheduleConfig&) const = default;
};

struct ValidationConfig {
  int64_t every = 500;
  int64_t sequences = 512;
  std::vector<std::string> tasks;
  bool operator==(const ValidationConfig&) const = default;
};

struct CheckpointConfig {
  int64_t every = 1000;
  int64_t keep = 3;
  int64_t keep_every = 0;
  bool async = false;
  bool operator==(const CheckpointConfig&) const = default;
};

struct DistributedConfig {
  int64_t timeout_s = 600;
  int64_t bucket_mb = 25;
  std::string reduction = "exact";  // exact, bfloat16
  int64_t compare_every = 1000;
  bool operator==(const DistributedConfig&) const = default;
};

struct LossSpikeConfig {
  std::string action = "none";  // none, warn, skip
  double z_score = 6.0;
  int64_t window = 128;
  bool operator==(const LossSpikeConfig&) const = default;
};

struct LogConfig {
  int64_t every = 10;
  int64_t gradients_every = 0;
  std::optional<double> peak_tflops;
  bool operator==(const LogConfig&) const = default;
};

struct Config {
  RunConfig run;
  ModelConfig model;
  DataConfig data;
  TrainConfig train;
  OptimizerConfig optimizer;
  ScheduleConfig schedule;
  ValidationConfig validation;
  CheckpointConfig checkpoint;
  DistributedConfig distributed;
  LossSpikeConfig loss_spike;
  LogConfig log;
  OnNonfinite on_nonfinite = OnNonfinite::kStop;

  int64_t batch_sequences() const { return train.batch_tokens / data.sequence_length; }
  int64_t total_steps() const;  // steps, or ceil(total_tokens / batch_tokens)
  bool operator==(const Config&) const = default;
};

// Reads a config file with its includes, then applies `overrides` ("key.path=value"), resolves
// defaults and layer kinds, and checks every value and cross-field rule.
// Error(kBadConfig): one line with file, line, key, expected, found, nearest known key.
Config load_config(const std::filesystem::path& path,
                   const std::vector<std::string>& overrides = {});
// The same from text (`origin` stands for the file name in messages; no includes).
Config parse_config(const std::string& yaml, const std::string& origin,
                    const std::vector<std::string>& overrides = {});
// The resolved config as YAML that load_config reads back to the same values, in YAML 1.1 and 1.2.
std::string dump_config(const Config& config);

// "model.hidden_size" -> canonical text of the value, for every field; for comparing two configs.
std::map<std::string, std::string> flatten_config(const Config& config);
// Keys whose values differ and which a resume may not change (model.*, run.seed,
// data.sequence_length, data.train, train.batch_tokens, optimizer.name), each as
// "key: checkpoint's -> now"; and those that differ and may.
struct ConfigChange {
  std::string key, before, now;
  bool allowed;
};
std::vector<ConfigChange> compare_configs(const Config& checkpoint, const Config& now);

// Settings that nothing will use because of another value
// ("model.copy.rope: unused with model.head: vanilla").
std::vector<std::string> unused_settings(const Config& config);
// All fields with type, default, range and meaning, for --help and docs (Markdown table).
std::string config_reference();

const char* name_of(LayerKind);
const char* name_of(HeadKind);
const char* name_of(StopGradient);
const char* name_of(Device);
const char* name_of(Precision);
const char* name_of(OpsKind);
const char* name_of(ScheduleKind);
const char* name_of(DecayShape);
const char* name_of(OnNonfinite);

}  // namespace cplm
