// Every field of every config struct, once: key, member, rule, unit, meaning. Reading, checking,
// dumping, comparing and the reference all go through these lists and nothing else.
#pragma once

#include <limits>
#include <tuple>

#include "cplm/config.h"

namespace cplm {

constexpr double kUnbounded = std::numeric_limits<double>::infinity();
// Largest size of anything that is multiplied by others; validate.cpp bounds the products.
constexpr double kMaxSize = 1 << 24;
constexpr double kMaxCount = 1e15;  // of steps or tokens; exact in a double
// Smaller ones are no full numbers in float32, in which norms and updates are computed.
constexpr double kLeastEps = 1.2e-38;

struct Rule {
  double min = -kUnbounded;  // of numbers, and of the numbers in a list
  double max = kUnbounded;
  bool above_min = false;        // min itself is not allowed
  bool below_max = false;        // nor max
  const char* choices = "";      // of text: "a, b, c"
  bool or_count = false;         // or a whole number of at least 1
  size_t length = 0;             // of a list; 0 is any
  bool required = false;         // has no default
  bool may_be_null = false;      // null is "not given"; optional members always may
  bool fixed_on_resume = false;  // a resumed run must have the checkpoint's value
  bool same_numbers = false;     // whatever the value, losses and weights are equal to rounding
};

constexpr Rule kAny{};
constexpr Rule kSize{.min = 1, .max = kMaxSize, .required = true};
constexpr Rule kEvery{.min = 0, .max = kMaxCount};  // 0 is never
constexpr Rule kEverySame{.min = 0, .max = kMaxCount, .same_numbers = true};

template <class Struct, class Value>
struct Field {
  const char* key;
  Value Struct::*member;
  Rule rule;
  const char* unit;
  const char* meaning;
};

template <class Struct, class Value>
constexpr Field<Struct, Value> field(const char* key, Value Struct::*member, Rule rule,
                                     const char* unit, const char* meaning) {
  return {key, member, rule, unit, meaning};
}

template <class Struct>
struct Fields;

template <class Type>
concept HasFields = requires {
  Fields<Type>::list;
};

// Calls visit(field) for each field of the struct, in the order listed.
template <HasFields Struct, class Visit>
void for_each_field(Visit&& visit) {
  std::apply([&](const auto&... each) { (visit(each), ...); }, Fields<Struct>::list);
}

template <>
struct Fields<RunConfig> {
  using C = RunConfig;
  static constexpr auto list = std::make_tuple(
      field("name", &C::name, {.same_numbers = true}, "", "name of the run in tables and pictures"),
      field("dir", &C::dir, {.same_numbers = true}, "",
            "folder of the run, relative to the current one; `train` needs it"),
      field("seed", &C::seed, {.min = 0, .fixed_on_resume = true}, "",
            "decides initial weights and the order of the data"));
};

template <>
struct Fields<RopeScalingConfig> {
  using C = RopeScalingConfig;
  static constexpr auto list = std::make_tuple(
      field("rope_type", &C::rope_type, {.choices = "yarn"}, "", "how positions are stretched"),
      field("factor", &C::factor, {.min = 1, .max = 1e6, .required = true}, "",
            "longest context / original_max_position_embeddings"),
      field("original_max_position_embeddings", &C::original_max_position_embeddings, kSize,
            "tokens", "the context that the weights were trained with"));
};

template <>
struct Fields<CopyConfig> {
  using C = CopyConfig;
  static constexpr auto list = std::make_tuple(
      field("stop_gradient", &C::stop_gradient, kAny, "",
            "where the hidden state is detached: nowhere, before the copy scores, or before the "
            "copy gate too"),
      field("include_current", &C::include_current, kAny, "",
            "whether position t may copy its own token"),
      field("rope", &C::rope, kAny, "", "rotate copy queries and keys by position"),
      field("qk_norm", &C::qk_norm, kAny, "", "divide copy queries and keys by their RMS"));
};

template <>
struct Fields<ModelConfig> {
  using C = ModelConfig;
  static constexpr auto list = std::make_tuple(
      field("vocab_size", &C::vocab_size, kSize, "tokens", "vocabulary, without the `<copy>` row"),
      field("hidden_size", &C::hidden_size, kSize, "",
            "width D; a multiple of num_attention_heads, with an even quotient"),
      field("num_hidden_layers", &C::num_hidden_layers, {.min = 1, .max = 10'000, .required = true},
            "", "layers L"),
      field("num_attention_heads", &C::num_attention_heads, kSize, "", "query heads"),
      field("num_key_value_heads", &C::num_key_value_heads, kSize, "",
            "key and value heads; divides num_attention_heads"),
      field("intermediate_size", &C::intermediate_size, kSize, "", "width of the MLP"),
      field("rope_theta", &C::rope_theta, {.min = 0, .above_min = true}, "",
            "base of the rotary frequencies"),
      field("rope_scaling", &C::rope_scaling, kAny, "",
            "YaRN of the full layers, or null; sliding layers and the copy head stay unscaled"),
      field("rms_norm_eps", &C::rms_norm_eps, {.min = kLeastEps}, "", "added to the mean square"),
      field("initializer_range", &C::initializer_range, {.min = 0}, "",
            "standard deviation of the initial matrices"),
      field("tie_word_embeddings", &C::tie_word_embeddings, kAny, "",
            "whether the LM head is the embedding"),
      field("backbone", &C::backbone,
            {.choices = "full, sliding, hybrid, recurrent", .may_be_null = true}, "",
            "which layers there are; give this or layer_types"),
      field("layer_types", &C::layer_types, {.may_be_null = true}, "",
            "the kind of each layer, num_hidden_layers of them; by backbone when absent"),
      field("sliding_window", &C::sliding_window, {.min = 1, .max = kMaxSize}, "tokens",
            "positions that a sliding layer sees, its own included"),
      field("full_attention_every", &C::full_attention_every, {.min = 1, .max = 10'000}, "layers",
            "hybrid: layers n, 2n, 3n ... are full"),
      field("linear_num_heads", &C::linear_num_heads, {.min = 1, .max = kMaxSize}, "",
            "heads H of a linear layer; null is num_attention_heads"),
      field("linear_key_head_dim", &C::linear_key_head_dim, {.min = 1, .max = kMaxSize}, "",
            "width of a linear layer's query and key heads; null is 3 hidden_size / (4 H)"),
      field("linear_value_head_dim", &C::linear_value_head_dim, {.min = 1, .max = kMaxSize}, "",
            "width of a linear layer's value heads; null is twice the keys'"),
      field("linear_conv_kernel", &C::linear_conv_kernel, {.min = 1, .max = 64}, "tokens",
            "that the short convolutions of a linear layer see, the own included"),
      field("linear_allow_neg_eigval", &C::linear_allow_neg_eigval, kAny, "",
            "linear layers: the strength of writing is up to 2 instead of 1, so that states may "
            "change sign"),
      field("head", &C::head, kAny, "", "LM head alone, or with the Copy-Paste head"),
      field("copy", &C::copy, kAny, "", "settings of the Copy-Paste head"));
};

template <>
struct Fields<DataSource> {
  using C = DataSource;
  static constexpr auto list = std::make_tuple(
      field("path", &C::path, {.required = true}, "", "glob of HDF5 shards"),
      field("weight", &C::weight, {.min = 0, .above_min = true}, "",
            "its share of the tokens, relative to the others; given to every source or to "
            "none"));
};

template <>
struct Fields<DataConfig> {
  using C = DataConfig;
  static constexpr auto list = std::make_tuple(
      field("train", &C::train, {.required = true, .fixed_on_resume = true}, "",
            "globs of training shards, relative to the current folder, all one set; or, for a "
            "mixture with shares, maps {path, weight}"),
      field("validation", &C::validation, kAny, "", "globs of validation shards"),
      field("sequence_length", &C::sequence_length,
            {.min = 1, .max = kMaxSize, .fixed_on_resume = true}, "tokens",
            "positions T of a sequence"),
      field("intra_document_mask", &C::intra_document_mask, kAny, "",
            "no layer and not the copy head looks across a document's start"));
};

template <>
struct Fields<TrainConfig> {
  using C = TrainConfig;
  static constexpr auto list = std::make_tuple(
      field("total_tokens", &C::total_tokens, {.min = 1, .max = kMaxCount}, "tokens",
            "length of the run; give this or steps"),
      field("steps", &C::steps, {.min = 1, .max = kMaxCount}, "steps",
            "length of the run; give this or total_tokens"),
      field("batch_tokens", &C::batch_tokens,
            {.min = 1, .max = kMaxCount, .required = true, .fixed_on_resume = true}, "tokens",
            "global batch of an update, whatever the number of ranks; a multiple of "
            "data.sequence_length"),
      field("micro_batch", &C::micro_batch, {.min = 1, .max = kMaxSize, .same_numbers = true},
            "sequences", "sequences that a rank computes at once"),
      field("device", &C::device, {.same_numbers = true}, "",
            "where to compute; auto takes a GPU when there is one"),
      field("precision", &C::precision, kAny, "",
            "of activations; bfloat16 keeps float32 master weights, float64 is for tests on a CPU"),
      field("threads", &C::threads, {.min = 0, .max = 512, .same_numbers = true}, "threads",
            "on the CPU; 0 is all cores"),
      field("ops", &C::ops, {.same_numbers = true}, "", "fused kernels, or the composed reference"),
      field("deterministic", &C::deterministic, {.same_numbers = true}, "",
            "bitwise repeatable; false is faster"),
      field("activation_checkpointing", &C::activation_checkpointing,
            {.choices = "none, full", .or_count = true, .same_numbers = true}, "",
            "which layers recompute their activations: none, all (full), or every n-th"),
      field("init_from", &C::init_from, kAny, "",
            "checkpoint whose weights alone the run starts from, or null"));
};

template <>
struct Fields<OptimizerConfig> {
  using C = OptimizerConfig;
  static constexpr auto list = std::make_tuple(
      field("name", &C::name, {.choices = "adamw", .fixed_on_resume = true}, "", "the optimizer"),
      field("lr", &C::lr, {.min = 0, .above_min = true}, "", "peak learning rate"),
      field("betas", &C::betas, {.min = 0, .max = 1, .below_max = true, .length = 2}, "",
            "decay of the two running means"),
      field("eps", &C::eps, {.min = kLeastEps}, "", "added to the root of the second mean"),
      field("weight_decay", &C::weight_decay, {.min = 0}, "", "decoupled, times the learning rate"),
      field("no_decay", &C::no_decay, kAny, "",
            "tensors without weight decay: names or globs (`*` also matches dots)"),
      field("grad_clip", &C::grad_clip, {.min = 0}, "",
            "largest global gradient norm; 0 is no clipping"),
      field("shard", &C::shard, {.same_numbers = true}, "",
            "spread the optimizer's state over the ranks"));
};

template <>
struct Fields<ScheduleConfig> {
  using C = ScheduleConfig;
  static constexpr auto list = std::make_tuple(
      field("name", &C::name, kAny, "", "learning rate after the warm-up"),
      field("warmup_steps", &C::warmup_steps, {.min = 0, .max = kMaxCount}, "steps",
            "linear rise to the peak"),
      field("decay_fraction", &C::decay_fraction, {.min = 0, .max = 1}, "",
            "wsd: share of the run that decays"),
      field("decay_shape", &C::decay_shape, kAny, "", "wsd: shape of the decay"),
      field("min_lr", &C::min_lr, {.min = 0}, "", "learning rate at the decay's end"));
};

template <>
struct Fields<ValidationConfig> {
  using C = ValidationConfig;
  static constexpr auto list = std::make_tuple(
      field("every", &C::every, kEverySame, "steps", "between validations; 0 is only at the end"),
      field("sequences", &C::sequences, kEvery, "sequences", "the first so many windows; 0 is all"),
      field(
          "tasks", &C::tasks, {.same_numbers = true}, "",
          "evaluations that run along, each as `cplm eval` takes it, such as: recall --pairs 16"));
};

template <>
struct Fields<CheckpointConfig> {
  using C = CheckpointConfig;
  static constexpr auto list = std::make_tuple(
      field("every", &C::every, kEvery, "steps", "between checkpoints; 0 is only at the end"),
      field("keep", &C::keep, {.min = 1, .max = kMaxCount}, "checkpoints",
            "the newest so many stay"),
      field("keep_every", &C::keep_every, kEvery, "steps",
            "checkpoints of these steps stay for ever; 0 is none"),
      field("async", &C::async, kAny, "", "write while the next steps run"));
};

template <>
struct Fields<DistributedConfig> {
  using C = DistributedConfig;
  static constexpr auto list = std::make_tuple(
      field("timeout_s", &C::timeout_s, {.min = 1, .max = 1e6, .same_numbers = true}, "s",
            "how long ranks wait for each other, to join and in every step"),
      field("bucket_mb", &C::bucket_mb, {.min = 1, .max = 1 << 16, .same_numbers = true}, "MiB",
            "gradients that are reduced at once"),
      field("reduction", &C::reduction, {.choices = "exact, bfloat16"}, "",
            "how gradients travel: as they are, or rounded to bfloat16, half the bytes of "
            "float32"),
      field("compare_every", &C::compare_every, kEverySame, "steps",
            "between comparisons of the weights of all ranks, which must be equal; 0 is never"));
};

template <>
struct Fields<LossSpikeConfig> {
  using C = LossSpikeConfig;
  static constexpr auto list = std::make_tuple(
      field("action", &C::action, {.choices = "none, warn, skip"}, "",
            "when a step's loss stands out from those before it: nothing, a warning, or the "
            "batch is left out too"),
      field("z_score", &C::z_score, {.min = 0, .above_min = true}, "",
            "standard deviations above the mean"),
      field("window", &C::window, {.min = 2, .max = 1e6}, "steps",
            "over which mean and deviation are taken; before so many nothing stands out"));
};

template <>
struct Fields<LogConfig> {
  using C = LogConfig;
  static constexpr auto list = std::make_tuple(
      field("every", &C::every, kEvery, "steps", "between lines of metrics; 0 is never"),
      field("gradients_every", &C::gradients_every, kEvery, "steps",
            "between lines of the gradient's norms by path, and of the share of targets that "
            "could be copied; 0 is never"),
      field("peak_tflops", &C::peak_tflops, {.min = 0, .above_min = true}, "TFLOP/s",
            "of one device, for the model FLOPs utilisation; null takes a known GPU's"));
};

template <>
struct Fields<Config> {
  using C = Config;
  static constexpr auto list = std::make_tuple(
      field("run", &C::run, kAny, "", ""),
      field("model", &C::model, {.fixed_on_resume = true}, "", ""),
      field("data", &C::data, kAny, "", ""), field("train", &C::train, kAny, "", ""),
      field("optimizer", &C::optimizer, kAny, "", ""),
      field("schedule", &C::schedule, kAny, "", ""),
      field("validation", &C::validation, kAny, "", ""),
      field("checkpoint", &C::checkpoint, {.same_numbers = true}, "", ""),
      field("distributed", &C::distributed, kAny, "", ""),
      field("loss_spike", &C::loss_spike, kAny, "", ""),
      field("log", &C::log, {.same_numbers = true}, "", ""),
      field("on_nonfinite", &C::on_nonfinite, kAny, "",
            "what happens to a step whose loss or gradient is not finite"));
};

}  // namespace cplm
