// Gathers a config's consequences: parameters, memory, work, schedule, data.
#include "cli/check_report.h"

#include <nlohmann/json.hpp>
#include <set>

#include "cplm/base.h"
#include "cplm/config_changes.h"
#include "cplm/data.h"
#include "cplm/model.h"
#include "cplm/plan.h"
#include "cplm/train.h"

namespace cplm {
namespace {

using Json = nlohmann::ordered_json;

Json refusals_json(const StartCheck& start) {
  Json refusals = Json::array();
  for (const Error& refusal : start.refusals()) refusals.push_back(refusal.what());
  return refusals;
}

// What the run's folder holds, and what train would make of it.
Json run_json(const RunFolder& folder, bool has_nothing_to_do) {
  Json json{{"dir", folder.path.string()}, {"starts_at_step", folder.state.step}};
  if (folder.resume_from) json["checkpoint"] = folder.resume_from->string();
  json["nothing_to_do"] = has_nothing_to_do;
  json["changed_settings"] = Json::array();
  for (const ConfigChange& change : folder.changed_settings) {
    json["changed_settings"].push_back(text_of(change));
  }
  return json;
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

Json split_json(const StartCheck::Split& split, const Config& config) {
  if (!split.windows) return {{"present", false}, {"problem", split.problem}};
  return windows_json(*split.windows, config);
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

Json data_json(const Config& config, const StartCheck& start) {
  Json json;
  json["train"] = split_json(start.train_data(), config);
  if (start.train_data().windows) {
    const Json sources = sources_json(*start.train_data().windows, config);
    json["train"]["sources"] = sources;
    if (sources.size() == 1) {
      json["tokens_per_epoch"] = sources[0]["tokens_per_epoch"];
      json["epochs"] = sources[0]["epochs"];
    }
  }
  if (!config.data.validation.empty()) {
    json["validation"] = split_json(start.validation_data(), config);
  }
  return json;
}

}  // namespace

Json check_report(const Config& config, const StartCheck& start) {
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
  report["data"] = data_json(config, start);
  if (start.run() != nullptr) report["run"] = run_json(*start.run(), start.has_nothing_to_do());
  report["unused_settings"] = unused_settings(config);
  report["not_there_yet"] = start.absent();
  report["train_would_refuse"] = refusals_json(start);
  return report;
}

}  // namespace cplm
