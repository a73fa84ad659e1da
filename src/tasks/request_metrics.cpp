// See request_metrics.h.
#include "tasks/request_metrics.h"

#include <cmath>
#include <limits>

namespace cplm {
namespace {

bool has_bytes(const ItemView& view) { return view.item->pairs.front().bytes > 0; }

// The first of equals, as numpy has it; -1 where one is NaN, or all are -inf.
int64_t greatest(const std::vector<double>& values) {
  int64_t best = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isnan(values[i])) return -1;
    if (values[i] > values[static_cast<size_t>(best)]) best = static_cast<int64_t>(i);
  }
  return values[static_cast<size_t>(best)] > -std::numeric_limits<double>::infinity() ? best : -1;
}

}  // namespace

int64_t chosen_by(const ItemView& view, Norm norm) {
  std::vector<double> values;
  for (size_t i = 0; i < view.item->pairs.size(); ++i) {
    const RequestPair& pair = view.item->pairs[i];
    const int64_t length = norm == Norm::kNone    ? 1
                           : norm == Norm::kBytes ? pair.bytes
                                                  : pair.characters;
    values.push_back(view.scores[i].log_prob / static_cast<double>(length));
  }
  return greatest(values);
}

bool is_right(const ItemView& view, Norm norm) {
  const int64_t chosen = chosen_by(view, norm);
  return chosen >= 0 && view.item->is_gold[static_cast<size_t>(chosen)] != 0;
}

ItemMetrics item_metrics(const std::vector<ItemView>& views) {
  ItemMetrics metrics;
  bool all_have_bytes = true;
  for (const ItemView& view : views) {
    if (!view.item->has_choices()) {
      metrics["greedy"].push_back(view.scores->is_greedy ? 1 : 0);
      metrics["log_prob"].push_back(view.scores->log_prob);
      metrics["token_loss"].push_back(-view.scores->log_prob /
                                      static_cast<double>(view.tokens->continuation));
      continue;
    }
    metrics["acc"].push_back(is_right(view, Norm::kNone) ? 1 : 0);
    all_have_bytes = all_have_bytes && has_bytes(view);
    if (!all_have_bytes) continue;
    metrics["acc_norm"].push_back(is_right(view, Norm::kBytes) ? 1 : 0);
    metrics["acc_norm_chars"].push_back(is_right(view, Norm::kCharacters) ? 1 : 0);
  }
  if (!all_have_bytes) {
    metrics.erase("acc_norm");
    metrics.erase("acc_norm_chars");
  }
  return metrics;
}

MeanWithError mean_with_error(const std::vector<double>& values) {
  const auto count = static_cast<double>(values.size());
  double sum = 0, squares = 0;
  for (const double value : values) sum += value;
  const double mean = sum / count;
  for (const double value : values) squares += (value - mean) * (value - mean);
  if (values.size() < 2) return {mean, std::numeric_limits<double>::quiet_NaN()};
  return {mean, std::sqrt(squares / (count - 1) / count)};
}

}  // namespace cplm
