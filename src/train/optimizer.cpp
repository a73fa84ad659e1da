// AdamW on whole runs of the flat buffers that share their weight decay.
#include <ATen/ops/zeros.h>
#include <fnmatch.h>

#include <algorithm>

#include "cplm/base.h"
#include "cplm/train.h"

namespace cplm {
namespace {

bool matches(const std::string& pattern, const std::string& name) {
  return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

}  // namespace

bool AdamW::decays(const std::string& name, const OptimizerConfig& config) {
  return std::none_of(config.no_decay.begin(), config.no_decay.end(),
                      [&](const std::string& pattern) { return matches(pattern, name); });
}

void check_no_decay(const ModelConfig& model, const OptimizerConfig& config) {
  ModelConfig with_copy_head = model;  // has every tensor of the vanilla arm too
  with_copy_head.head = HeadKind::kCplm;
  std::vector<std::string> names;
  for (const auto& spec : parameter_specs(with_copy_head)) names.push_back(spec.name);
  for (const std::string& pattern : config.no_decay) {
    const auto is_match = [&](const std::string& name) { return matches(pattern, name); };
    if (std::any_of(names.begin(), names.end(), is_match)) continue;
    const std::string near = nearest_name(pattern, names);
    throw Error(str("optimizer.no_decay: \"", pattern, "\" matches no tensor of the model",
                    near.empty() ? "; `cplm check --json` lists their names"
                                 : "; did you mean " + near + "?"),
                ExitCode::kBadConfig);
  }
}

AdamW::AdamW(ParameterStore& parameters, const OptimizerConfig& config, OpsKind ops)
    : AdamW(parameters, config, ops, {{0, parameters.flat_value().numel()}}) {}

AdamW::AdamW(ParameterStore& parameters, const OptimizerConfig& config, OpsKind ops,
             const std::vector<FlatRange>& owned)
    : parameters_(parameters), config_(config), ops_(ops) {
  for (const FlatRange& range : owned) add_runs(range);
  const auto options = parameters.flat_grad().options();
  exp_avg_ = at::zeros({num_owned_}, options);
  exp_avg_sq_ = at::zeros({num_owned_}, options);
  adam_step_ = at::zeros({}, options.dtype(at::kFloat));
}

// Padding between groups belongs to the tensor before it: it is zero, and an update leaves it so.
void AdamW::add_runs(const FlatRange& range) {
  const size_t first = runs_.size();
  const std::vector<Parameter>& all = parameters_.all();
  for (size_t i = 0; i < all.size(); ++i) {
    const int64_t next = i + 1 < all.size() ? all[i + 1].offset : parameters_.flat_value().numel();
    const int64_t begin = std::max(range.begin, all[i].offset), end = std::min(range.end, next);
    if (begin >= end) continue;
    const double decay = decays(all[i].name, config_) ? config_.weight_decay : 0.0;
    if (runs_.size() > first && runs_.back().weight_decay == decay) {
      runs_.back().end = end;
    } else {
      runs_.push_back({begin, end, num_owned_ + begin - range.begin, decay});
    }
  }
  num_owned_ += range.end - range.begin;
}

void AdamW::step(double learning_rate, const at::Tensor& grad_scale, const at::Tensor& blocked) {
  adam_step_.add_(blocked.neg().add_(1.0));
  // Of a spread optimizer the masters may be spread with it, in the order of its state.
  const at::Tensor& master = parameters_.flat_master();
  const bool whole_master = master.numel() == parameters_.flat_value().numel();
  for (const Run& run : runs_) {
    const int64_t length = run.end - run.begin;
    const auto part = [&](const at::Tensor& flat) { return flat.narrow(0, run.begin, length); };
    const auto state = [&](const at::Tensor& own) {
      return own.narrow(0, run.state_begin, length);
    };
    ops::adamw(
        {whole_master ? part(master) : state(master), part(parameters_.flat_value()),
         part(parameters_.flat_grad()), state(exp_avg_), state(exp_avg_sq_), adam_step_, grad_scale,
         blocked, learning_rate, config_.betas[0], config_.betas[1], config_.eps, run.weight_decay},
        ops_);
  }
}

NamedTensors AdamW::named_state(const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq) const {
  NamedTensors state;
  for (const auto& [prefix, flat] :
       {std::pair{"exp_avg.", &exp_avg}, {"exp_avg_sq.", &exp_avg_sq}}) {
    for (const Parameter& p : parameters_.all()) {
      state.emplace_back(prefix + p.name, flat->narrow(0, p.offset, p.numel).view(p.shape));
    }
  }
  state.emplace_back("adam_step", adam_step_);
  return state;
}

NamedTensors AdamW::named_state() const { return named_state(exp_avg_, exp_avg_sq_); }

}  // namespace cplm
