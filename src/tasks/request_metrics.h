// Numbers of each item of a file of requests in one mode, and their means.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tasks/request_file.h"
#include "tasks/request_score.h"

namespace cplm {

// Scores of an item's pairs in one mode.
struct ItemView {
  const RequestItem* item = nullptr;
  const RequestScore* scores = nullptr;
  const TokenRequest* tokens = nullptr;
};

// Which choice an item's scores choose; -1: none, a score being NaN, or all -inf (force_copy, where
// no choice's tokens are in the context).
enum class Norm { kNone, kBytes, kCharacters };
int64_t chosen_by(const ItemView& view, Norm norm);
// Whether a right choice is chosen.
bool is_right(const ItemView& view, Norm norm);

// By name, one number an item: of items with choices acc, acc_norm and acc_norm_chars (the latter
// two where no item is of ids), of pairs by themselves greedy, log_prob and token_loss.
using ItemMetrics = std::map<std::string, std::vector<double>>;
ItemMetrics item_metrics(const std::vector<ItemView>& views);

struct MeanWithError {
  double mean = 0;
  double standard_error = 0;  // NaN of one item
};
// standard_error^2 = sum (x - mean)^2 / (n - 1) / n.
MeanWithError mean_with_error(const std::vector<double>& values);

}  // namespace cplm
