// Rules that span several keys. Each names the place of the key to change and what it depends on.
#include "config/validate.h"

#include <algorithm>

#include "config/fields.h"
#include "cplm/base.h"

namespace cplm {
namespace {

constexpr double kMaxNumbers = 1e16;  // of parameters, or activations of a micro-batch

class Validator {
 public:
  Validator(Config& config, const Places& places)
      : config_(config), model_(config.model), places_(places) {}

  void run() {
    check_missing();
    check_heads();
    check_rope();
    resolve_layers();
    resolve_linear();
    check_batch();
    check_products();
    check_mixture();
    check_length();
    check_precision();
    check_rates();
  }

 private:
  [[noreturn]] void fail(const std::string& key, const std::string& message) const {
    fail_at(places_.of(key), str(key, ": ", message));
  }

  void check_missing() const {
    const std::vector<std::string> missing = missing_keys(config_, places_);
    if (missing.empty()) return;
    const std::string section = missing[0].substr(0, missing[0].rfind('.'));
    fail_at(places_.of(section),
            str("missing required ", missing.size() > 1 ? "keys: " : "key: ", join(missing, ", ")));
  }

  void check_heads() const {
    const int64_t heads = model_.num_attention_heads, groups = model_.num_key_value_heads;
    if (model_.hidden_size % heads != 0) {
      fail("model.hidden_size", str("expected a multiple of model.num_attention_heads (", heads,
                                    "), found ", model_.hidden_size));
    }
    if (model_.head_dim() % 2 != 0) {
      fail("model.hidden_size", str("expected an even hidden_size / num_attention_heads, since "
                                    "RoPE rotates pairs, found ",
                                    model_.hidden_size, " / ", heads, " = ", model_.head_dim()));
    }
    if (heads % groups != 0) {
      fail("model.num_key_value_heads",
           str("expected a divisor of model.num_attention_heads (", heads, "), found ", groups));
    }
  }

  void check_rope() const {
    if (!model_.rope_scaling || model_.rope_theta > 1) return;
    fail("model.rope_theta", str("expected above 1 with model.rope_scaling, whose frequencies are "
                                 "its powers, found ",
                                 format_double(model_.rope_theta)));
  }

  void resolve_layers() {
    const bool has_layers = !model_.layer_types.empty();
    if (has_layers && places_.given("model.backbone")) {
      fail("model.layer_types",
           str("expected model.layer_types or model.backbone, found both (",
               places_.of("model.backbone").text(), "); remove one, or give it as null"));
    }
    const auto num_layers = static_cast<size_t>(model_.num_hidden_layers);
    if (has_layers) {
      model_.backbone.clear();
      if (model_.layer_types.size() != num_layers) {
        fail("model.layer_types", str("expected model.num_hidden_layers = ", num_layers,
                                      " names, found ", model_.layer_types.size()));
      }
      return;
    }
    if (model_.backbone.empty()) {
      fail("model.backbone",
           "expected full, sliding, hybrid or recurrent, or model.layer_types; "
           "found neither");
    }
    for (size_t layer = 1; layer <= num_layers; ++layer) {
      model_.layer_types.push_back(kind_of_layer(static_cast<int64_t>(layer)));
    }
  }

  // Layers count from 1: of a hybrid the 4th, 8th, 12th ... are full.
  LayerKind kind_of_layer(int64_t layer) const {
    if (model_.backbone == "sliding") return LayerKind::kSliding;
    if (model_.backbone == "recurrent") return LayerKind::kLinear;
    const bool sliding = model_.backbone == "hybrid" && layer % model_.full_attention_every != 0;
    return sliding ? LayerKind::kSliding : LayerKind::kFull;
  }

  // Sizes of linear layers are written out, so that a resume sees them; null without such layers.
  void resolve_linear() {
    if (!model_.has_layer(LayerKind::kLinear)) return;
    const int64_t heads = model_.linear_heads(), width = model_.hidden_size;
    if (!model_.linear_key_head_dim && 3 * width % (4 * heads) != 0) {
      fail("model.linear_key_head_dim",
           str("expected a number, since its default, 3 hidden_size / (4 heads) = ", 3 * width,
               " / ", 4 * heads, ", is not whole; found null"));
    }
    model_.linear_num_heads = heads;
    model_.linear_key_head_dim = model_.linear_key_dim();
    model_.linear_value_head_dim = model_.linear_value_dim();
    constexpr auto kMost = static_cast<int64_t>(kMaxSize);
    for (const auto& [key, width_of_head] :
         {std::pair{"model.linear_key_head_dim", *model_.linear_key_head_dim},
          std::pair{"model.linear_value_head_dim", *model_.linear_value_head_dim}}) {
      if (heads * width_of_head <= kMost) continue;
      fail(key, str("expected at most ", kMost, " / model.linear_num_heads (", heads, "), found ",
                    width_of_head));
    }
  }

  void check_batch() const {
    if (config_.train.batch_tokens % config_.data.sequence_length == 0) return;
    fail("train.batch_tokens",
         str("expected a multiple of data.sequence_length (", config_.data.sequence_length,
             "), found ", config_.train.batch_tokens));
  }

  // Sizes that are allowed each may be too much together: what is counted stays in 64 bits.
  void check_products() const {
    const double width = static_cast<double>(model_.hidden_size);
    const double layers = static_cast<double>(model_.num_hidden_layers);
    const double vocab = static_cast<double>(model_.vocab_size);
    double inner = static_cast<double>(model_.intermediate_size), state = 0;
    if (model_.has_layer(LayerKind::kLinear)) {
      const double heads = static_cast<double>(model_.linear_heads());
      const double key_dim = static_cast<double>(model_.linear_key_dim());
      const double value_dim = static_cast<double>(model_.linear_value_dim());
      inner += 2 * heads * (key_dim + value_dim);
      state = heads * key_dim * value_dim;
    }
    if (width * (2 * vocab + layers * (4 * width + 3 * inner)) > kMaxNumbers) {
      fail("model.hidden_size",
           "expected a model of at most 1e16 parameters, found more; lower hidden_size, "
           "intermediate_size, vocab_size or num_hidden_layers");
    }
    const double positions = std::min(static_cast<double>(config_.train.batch_tokens),
                                      static_cast<double>(config_.train.micro_batch) *
                                          static_cast<double>(config_.data.sequence_length));
    if (positions * (vocab + layers * (8 * width + 4 * inner + state)) > kMaxNumbers) {
      fail("train.micro_batch",
           "expected at most 1e16 activations of its sequences, found more; lower micro_batch or "
           "data.sequence_length");
    }
  }

  void check_mixture() const {
    const std::vector<DataSource>& sources = config_.data.train;
    const auto fail_source = [this](size_t source, const std::string& problem) {
      fail_at(places_.of("data.train"), str("data.train[", source, "].weight: ", problem));
    };
    double total = 0;
    for (size_t i = 0; i < sources.size(); ++i) {
      if (sources[i].weight.has_value() != sources[0].weight.has_value()) {
        fail_source(sources[i].weight ? 0 : i,
                    "missing, but other sources have one; give each source a weight (its share of "
                    "the tokens), or none of them (their shards are one set)");
      }
      total += sources[i].weight.value_or(0);
    }
    if (sources.size() == 1 || !sources[0].weight) return;
    for (size_t i = 0; i < sources.size(); ++i) {
      if (*sources[i].weight / total >= DataSource::kMinShare) continue;
      fail_source(i, str("expected at least 1/4096 of the sum of all weights, ",
                         format_double(total), ", found ", format_double(*sources[i].weight)));
    }
  }

  void check_length() const {
    const TrainConfig& train = config_.train;
    if (train.steps && train.total_tokens) {
      fail("train.steps",
           str("expected train.steps or train.total_tokens, found both (",
               places_.of("train.total_tokens").text(), "); remove one, or give it as null"));
    }
    if (!train.steps && !train.total_tokens) {
      fail_at(places_.of("train"), "missing required key: train.total_tokens or train.steps");
    }
    const double steps = static_cast<double>(config_.total_steps());
    if (train.steps && steps * static_cast<double>(train.batch_tokens) > kMaxCount) {
      fail("train.steps", str("expected a run of at most 1e15 tokens, found ", *train.steps,
                              " steps of ", train.batch_tokens, " tokens"));
    }
  }

  void check_precision() const {
    if (config_.train.precision == Precision::kFloat64 && config_.train.device == Device::kCuda) {
      fail("train.precision",
           "expected float32 or bfloat16 with train.device cuda, found float64, "
           "which is for tests on a CPU");
    }
  }

  void check_rates() const {
    if (config_.schedule.min_lr <= config_.optimizer.lr) return;
    fail("schedule.min_lr",
         str("expected at most optimizer.lr (", format_double(config_.optimizer.lr), "), found ",
             format_double(config_.schedule.min_lr)));
  }

  Config& config_;
  ModelConfig& model_;
  const Places& places_;
};

}  // namespace

void validate(Config& config, const Places& places) { Validator(config, places).run(); }

}  // namespace cplm
