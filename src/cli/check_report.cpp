// Gathers a config's consequences: parameters, memory, work, schedule, data.
#include "cli/check_report.h"

#include <nlohmann/json.hpp>
#include <set>

#include "cplm/base.h"
#include "cplm/data.h"
#include "cplm/model.h"
#include "cplm/plan.h"
#include "cplm/train.h"

namespace cplm {
namespace {

using Json = nlohmann::ordered_json;
using Texts = std::vector<std::string>;

// What `cplm train` would refuse although every setting by itself is right.
Json refusals_json(const Config& config, const Texts& of_data) {
  Json refusals = Json::array();
  for (const std::string& refusal : of_data) refusals.push_back(refusal);
  if (config.run.dir.empty()) refusals.push_back("run.dir: not set");
  if (const std::string problem = tasks_problem(config); !problem.empty()) {
    refusals.push_back(problem);
  }
  try {
    resolve_device(config.train.device, config.train.precision);
  } catch (const Error& error) {
    refusals.push_back(error.what());
  }
  return refusals;
}

Json parameters_json(const Config& config) {
  const ParameterCounts counts = count_parameters(config.model);
  Json json{{"total", counts.total}};
  for (const auto& [part, count] : counts.parts) json[part] = count;
  return json;
}

Json memory_json(const Config& config) {
  const MemoryPlan plan = plan_memory(config);
  Json json{{"total_bytes", plan.total}};
  for (const auto& [part, bytes] : plan.parts) json["parts"][part] = bytes;
  return json;
}

// The assumption stands beside the number: nobody has measured it.
Json work_json(const Config& config) {
  constexpr double kPeakFlops = 989e12, kShareOfPeak = 0.4;  // H100 SXM, dense bf16
  const WorkPlan work = plan_work(config);
  const double steps = static_cast<double>(config.total_steps());
  return {
      {"flops_per_token", work.flops_per_token},
      {"copy_head_share", work.copy_head_share},
      {"flops_per_step", work.flops_per_step},
      {"flops_of_run", steps * work.flops_per_step},
      {"modelled_gpu_hours", steps * work.flops_per_step / (kPeakFlops * kShareOfPeak) / 3600.0},
      {"assumption", "one H100 at 40 % of 989 TFLOP/s (bfloat16); modelled, not measured"}};
}

Json schedule_json(const Config& config) {
  const int64_t steps = config.total_steps();
  const int64_t decay = steps_before_decay(config.schedule, steps);
  std::set<int64_t> updates = {1, steps};
  for (const int64_t update : {config.schedule.warmup_steps / 2, config.schedule.warmup_steps,
                               decay, decay + 1, decay + (steps - decay) / 2}) {
    if (update >= 1 && update <= steps) updates.insert(update);
  }
  Json table = Json::array();
  for (const int64_t update : updates) {
    table.push_back({{"update", update},
                     {"lr", learning_rate(config.schedule, config.optimizer.lr, steps, update)}});
  }
  return {{"steps", steps},
          {"tokens", steps * config.train.batch_tokens},
          {"batch_sequences", config.batch_sequences()},
          {"warmup_steps", config.schedule.warmup_steps},
          {"decay_starts_after", decay},
          {"learning_rates", table}};
}

Json layers_json(const ModelConfig& model) {
  Json kinds = Json::array();
  for (const LayerKind kind : model.layer_types) kinds.push_back(name_of(kind));
  return kinds;
}

Json decay_json(const Config& config) {
  check_no_decay(config.model, config.optimizer);
  Json decayed = Json::array(), kept = Json::array();
  for (const auto& spec : parameter_specs(config.model)) {
    (AdamW::decays(spec.name, config.optimizer) ? decayed : kept).push_back(spec.name);
  }
  return {
      {"weight_decay", config.optimizer.weight_decay}, {"decayed", decayed}, {"not_decayed", kept}};
}

Json windows_json(const WindowSet& windows, const Config& config) {
  int64_t tokens = 0, documents = 0;
  for (const ShardInfo& shard : windows.shards()) {
    tokens += shard.token_count;
    documents += shard.document_count;
  }
  return {{"present", true},
          {"shards", windows.shards().size()},
          {"tokens", tokens},
          {"documents", documents},
          {"windows", windows.size()},
          {"vocab_size", windows.vocab_size()},
          {"vocabulary_fits", windows.vocab_size() <= config.model.vocab_size}};
}

// One of data.train and data.validation; `add` puts more about the windows into its part.
template <class Patterns, class Add>
Json split_json(const std::string& key, const Patterns& patterns, const Config& config,
                WindowSet::ShortWindows short_windows, Texts& refusals, Add&& add) {
  try {
    const WindowSet windows(patterns, config.data.sequence_length, short_windows);
    Json json = windows_json(windows, config);
    if (!json["vocabulary_fits"].get<bool>()) {
      refusals.push_back(str(key, ": the shards' vocabulary is ", windows.vocab_size(),
                             ", model.vocab_size is ", config.model.vocab_size));
    }
    add(windows, json);
    return json;
  } catch (const Error& error) {
    refusals.push_back(str(key, ": ", error.what()));
    return {{"present", false}, {"problem", error.what()}};
  }
}

// Tokens of an epoch of each source, and how many epochs the run takes of it.
Json sources_json(const WindowSet& windows, const Config& config) {
  const TrainingOrder order(config.run.seed, windows.sources());
  const auto shares = source_shares(order, config.total_steps() * config.batch_sequences());
  Json json = Json::array();
  for (size_t i = 0; i < shares.size(); ++i) {
    const int64_t num_windows = windows.sources()[i].num_windows;
    json.push_back({{"path", shares[i].path},
                    {"weight", shares[i].weight},
                    {"windows", num_windows},
                    {"tokens_per_epoch", num_windows * config.data.sequence_length},
                    {"epochs", shares[i].epochs}});
  }
  return json;
}

Json data_json(const Config& config, Texts& refusals) {
  using enum WindowSet::ShortWindows;
  Json json;
  json["train"] = split_json("data.train", config.data.train, config, kDrop, refusals,
                             [&](const WindowSet& windows, Json& train) {
                               train["sources"] = sources_json(windows, config);
                               try {
                                 check_enough_windows(windows.sources(), config);
                               } catch (const Error& error) {
                                 refusals.push_back(error.what());
                               }
                             });
  const Json sources = json["train"].value("sources", Json::array());
  if (sources.size() == 1) {
    json["tokens_per_epoch"] = sources[0]["tokens_per_epoch"];
    json["epochs"] = sources[0]["epochs"];
  }
  if (!config.data.validation.empty()) {
    json["validation"] = split_json("data.validation", config.data.validation, config, kKeep,
                                    refusals, [](const WindowSet&, Json&) {});
  }
  return json;
}

}  // namespace

Json check_report(const Config& config) {
  Json report;
  report["config"] = dump_config(config);
  report["parameters"] = parameters_json(config);
  report["memory"] = memory_json(config);
  report["work"] = work_json(config);
  report["optimizer"] = decay_json(config);
  for (const auto& spec : parameter_specs(config.model)) {
    report["tensors"][spec.name] = spec.shape;
  }
  report["schedule"] = schedule_json(config);
  report["layer_types"] = layers_json(config.model);
  Texts data_refusals;
  report["data"] = data_json(config, data_refusals);
  report["unused_settings"] = unused_settings(config);
  report["train_would_refuse"] = refusals_json(config, data_refusals);
  return report;
}

}  // namespace cplm
