// See unit_scores.h.
#include "tasks/unit_scores.h"

#include <ATen/ops/stack.h>

#include <CLI/App.hpp>
#include <algorithm>

#include "cplm/base.h"
#include "runs/json_number.h"
#include "tasks/arguments.h"

namespace cplm {
namespace {

constexpr int64_t kUnitsAPiece = 64;

// By unit of a batch.
std::vector<Sums> score_units(LanguageModel& model, const ModelInput& input) {
  const PositionScores scores = model.score(input);
  const at::Tensor counted = input.targets.ge(0).to(at::kDouble);
  const auto loss = [&](const at::Tensor& log_prob) {
    const at::Tensor& x = log_prob.defined() ? log_prob : scores.log_prob;
    return x.to(at::kDouble).sum(-1).neg();  // 0 where not counted
  };
  const auto gate = [&](const at::Tensor& x) {
    return x.defined() ? x.to(at::kDouble).mul(counted).sum(-1)
                       : counted.new_zeros(counted.size(0));
  };
  const at::Tensor sums =
      at::stack({loss(scores.log_prob), loss(scores.log_prob_no_copy),
                 loss(scores.log_prob_force_copy), gate(scores.copy_gate), gate(scores.sink_mass),
                 gate(scores.copy_weight), counted.sum(-1)},
                1)
          .cpu()
          .contiguous();
  std::vector<Sums> units(static_cast<size_t>(sums.size(0)));
  std::copy_n(sums.const_data_ptr<double>(), sums.numel(), units.front().data());
  return units;
}

}  // namespace

Sums UnitSums::total() const {
  Sums total{};
  for (const Sums& unit : units) {
    for (size_t i = 0; i < kNumSums; ++i) total[i] += unit[i];
  }
  return total;
}

WindowSums UnitSums::windows() const {
  WindowSums sums;
  for (const Sums& unit : units) {
    sums.loss.push_back(unit[kLoss]);
    sums.counted.push_back(static_cast<int64_t>(unit[kCounted]));
  }
  return sums;
}

void UnitArguments::add(CLI::App& command) {
  add_data_argument(command, data_);
  command.add_option("--context", context_, "Tokens predicted in one go; 0: as in training")
      ->check(whole_from(0))
      ->capture_default_str();
  command.add_flag("--per-document", per_document_,
                   "Each document by itself, its first tokens up to the context");
  command.add_option("--sequences", sequences_, "The first so many windows or documents; 0: all")
      ->check(whole_from(0))
      ->capture_default_str();
  command.add_option("--batch", batch_, "Windows or documents at once")
      ->check(whole_from(1))
      ->capture_default_str();
}

int64_t UnitArguments::context(const std::vector<Subject>& subjects) const {
  return common_context(context_, subjects);
}

std::unique_ptr<ScoredUnits> UnitArguments::open(const std::vector<Subject>& subjects) const {
  const std::vector<std::string> patterns = data_patterns(data_, subjects);
  const int64_t context = this->context(subjects);
  std::unique_ptr<ScoredUnits> units = per_document_
                                           ? single_documents(patterns, context, sequences_)
                                           : packed_windows(patterns, context, sequences_);
  check_same_tokens(units->shards(), subjects);
  if (sequences_ > units->size()) {
    log::warn(str("--sequences ", sequences_, ": there are only ", units->size()));
  }
  return units;
}

Json UnitArguments::description(const ScoredUnits& units,
                                const std::vector<Subject>& subjects) const {
  return {{"unit", per_document_ ? "document" : "window"},
          {"sequences", units.size()},
          {"data_sha256", contents_of(units.shards())},
          {"context", context(subjects)}};
}

int64_t UnitArguments::num_pieces(const ScoredUnits& units) {
  return (units.size() + kUnitsAPiece - 1) / kUnitsAPiece;
}

UnitSums UnitArguments::measure(const Subject& subject, const ScoredUnits& units,
                                TaskRun& run) const {
  UnitSums sums;
  std::shared_ptr<LanguageModel> model;
  for (int64_t first = 0; first < units.size(); first += kUnitsAPiece) {
    const int64_t last = std::min(units.size(), first + kUnitsAPiece);
    const Json piece = run.piece(subject, str("units ", first), [&] {
      if (!model) model = subject.open();
      Json found = Json::array();
      for (int64_t begin = first; begin < last; begin += batch_) {
        const int64_t end = std::min(last, begin + batch_);
        const ModelInput input = units.input(begin, end, subject, model->options().tensor.device());
        for (const Sums& unit : score_units(*model, input)) {
          for (const double sum : unit) found.push_back(json_number(sum));
        }
      }
      return found;
    });
    for (int64_t unit = 0; unit < last - first; ++unit) {
      Sums& each = sums.units.emplace_back();
      for (size_t i = 0; i < kNumSums; ++i) {
        each[i] = read_json_number(piece.at(static_cast<size_t>(unit) * kNumSums + i));
      }
    }
  }
  return sums;
}

void check_counted(const UnitSums& sums) {
  if (sums.total()[kCounted] > 0) return;
  throw Error("[eval] no target is counted; check loss_mask of the shards", ExitCode::kBadData);
}

}  // namespace cplm
