// AdamW on whole runs of the flat buffers that share their weight decay.
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
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
    : parameters_(parameters), config_(config), ops_(ops) {
  const auto options = parameters.flat_grad().options();
  exp_avg_ = at::zeros_like(parameters.flat_grad());
  exp_avg_sq_ = at::zeros_like(parameters.flat_grad());
  adam_step_ = at::zeros({}, options.dtype(at::kFloat));
  for (const Parameter& p : parameters.all()) {
    const double decay = decays(p.name, config) ? config.weight_decay : 0.0;
    if (runs_.empty() || runs_.back().weight_decay != decay) {
      runs_.push_back({p.offset, p.offset + p.numel, decay});
    } else {
      runs_.back().end = p.offset + p.numel;  // padding between groups is zero and stays so
    }
  }
}

void AdamW::step(double learning_rate, const at::Tensor& grad_scale, const at::Tensor& blocked) {
  adam_step_.add_(blocked.neg().add_(1.0));
  for (const Run& run : runs_) {
    const auto part = [&](const at::Tensor& flat) {
      return flat.narrow(0, run.begin, run.end - run.begin);
    };
    ops::adamw(
        {part(parameters_.flat_master()), part(parameters_.flat_value()),
         part(parameters_.flat_grad()), part(exp_avg_), part(exp_avg_sq_), adam_step_, grad_scale,
         blocked, learning_rate, config_.betas[0], config_.betas[1], config_.eps, run.weight_decay},
        ops_);
  }
}

NamedTensors AdamW::named_state() const {
  NamedTensors state;
  for (const auto& [prefix, flat] :
       {std::pair{"exp_avg.", &exp_avg_}, {"exp_avg_sq.", &exp_avg_sq_}}) {
    for (const Parameter& p : parameters_.all()) {
      state.emplace_back(prefix + p.name, flat->narrow(0, p.offset, p.numel).view(p.shape));
    }
  }
  state.emplace_back("adam_step", adam_step_);
  return state;
}

}  // namespace cplm
