// Settings that stand in a config without effect, since another value makes them pointless.
#include "cplm/config.h"

namespace cplm {
namespace {

struct Setting {
  const char* text;  // "key: why"
  bool (*applies)(const Config&);
};

bool is_vanilla(const Config& c) { return c.model.head == HeadKind::kVanilla; }
bool has_no_window(const Config& c) { return !c.model.has_layer(LayerKind::kSliding); }
bool has_no_linear(const Config& c) { return !c.model.has_layer(LayerKind::kLinear); }
bool is_no_hybrid(const Config& c) { return c.model.backbone != "hybrid"; }
bool never_decays(const Config& c) {
  const bool empty_decay = c.schedule.name == ScheduleKind::kWsd && c.schedule.decay_fraction == 0;
  return c.schedule.name == ScheduleKind::kConstant || empty_decay;
}
bool is_constant(const Config& c) { return c.schedule.name == ScheduleKind::kConstant; }
bool is_cosine(const Config& c) { return c.schedule.name == ScheduleKind::kCosine; }
bool has_no_validation(const Config& c) { return c.data.validation.empty(); }
bool never_evaluates(const Config& c) {
  return c.data.validation.empty() && c.validation.tasks.empty();
}

constexpr Setting kUnused[] = {
    {"model.copy.stop_gradient: unused with model.head: vanilla", is_vanilla},
    {"model.copy.include_current: unused with model.head: vanilla", is_vanilla},
    {"model.copy.rope: unused with model.head: vanilla", is_vanilla},
    {"model.copy.qk_norm: unused with model.head: vanilla", is_vanilla},
    {"model.rope_scaling: unused without a full_attention layer",
     [](const Config& c) { return c.model.rope_scaling && !c.model.has_layer(LayerKind::kFull); }},
    {"model.sliding_window: unused without a sliding_attention layer", has_no_window},
    {"model.full_attention_every: unused unless model.backbone is hybrid", is_no_hybrid},
    {"model.linear_num_heads: unused without a linear_attention layer",
     [](const Config& c) { return c.model.linear_num_heads && has_no_linear(c); }},
    {"model.linear_key_head_dim: unused without a linear_attention layer",
     [](const Config& c) { return c.model.linear_key_head_dim && has_no_linear(c); }},
    {"model.linear_value_head_dim: unused without a linear_attention layer",
     [](const Config& c) { return c.model.linear_value_head_dim && has_no_linear(c); }},
    {"model.linear_conv_kernel: unused without a linear_attention layer",
     [](const Config& c) {
       return c.model.linear_conv_kernel != ModelConfig{}.linear_conv_kernel && has_no_linear(c);
     }},
    {"model.linear_allow_neg_eigval: unused without a linear_attention layer",
     [](const Config& c) { return c.model.linear_allow_neg_eigval && has_no_linear(c); }},
    {"data.train weight: unused with one source",
     [](const Config& c) { return c.data.train.size() == 1 && c.data.train[0].weight; }},
    {"schedule.decay_fraction: unused with schedule.name: constant", is_constant},
    {"schedule.decay_fraction: unused with schedule.name: cosine", is_cosine},
    {"schedule.decay_shape: unused with schedule.name: cosine", is_cosine},
    {"schedule.decay_shape: unused without a decay", never_decays},
    {"schedule.min_lr: unused without a decay", never_decays},
    {"validation.every: unused without data.validation and validation.tasks", never_evaluates},
    {"validation.sequences: unused without data.validation", has_no_validation},
};

}  // namespace

std::vector<std::string> unused_settings(const Config& config) {
  std::vector<std::string> texts;
  for (const Setting& setting : kUnused) {
    if (setting.applies(config)) texts.emplace_back(setting.text);
  }
  return texts;
}

}  // namespace cplm
