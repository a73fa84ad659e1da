// See request_score.h.
#include "tasks/request_score.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>

#include "cplm/base.h"
#include "model/head.h"
#include "runs/json_number.h"

namespace cplm {
namespace {

constexpr int64_t kRequestsAPiece = 64;

int64_t requests_a_piece(int64_t batch) { return (kRequestsAPiece + batch - 1) / batch * batch; }

// Side by side, padded behind; the continuations alone are targets.
ModelInput input_of(const std::vector<const TokenRequest*>& rows, at::Device device) {
  size_t longest = 0;
  for (const TokenRequest* row : rows) longest = std::max(longest, row->ids.size() - 1);
  const at::IntArrayRef::value_type shape[] = {static_cast<int64_t>(rows.size()),
                                               static_cast<int64_t>(longest)};
  ModelInput input;
  input.ids = at::zeros(shape, at::kLong);
  input.targets = at::full(shape, -1, at::kLong);
  for (size_t b = 0; b < rows.size(); ++b) {
    const std::vector<int64_t>& ids = rows[b]->ids;
    int64_t* row_ids = input.ids.mutable_data_ptr<int64_t>() + b * longest;
    int64_t* row_targets = input.targets.mutable_data_ptr<int64_t>() + b * longest;
    std::copy(ids.begin(), ids.end() - 1, row_ids);
    for (size_t t = ids.size() - 1 - static_cast<size_t>(rows[b]->continuation); t + 1 < ids.size();
         ++t) {
      row_targets[t] = ids[t + 1];
    }
  }
  input.ids = input.ids.to(device);
  input.targets = input.targets.to(device);
  return input;
}

const at::Tensor& log_prob_in(const PositionScores& scores, CopyMode mode) {
  if (mode == CopyMode::kNoCopy) return scores.log_prob_no_copy;
  return mode == CopyMode::kForceCopy ? scores.log_prob_force_copy : scores.log_prob;
}

// By mode, then by row.
RequestScores score_batch(LanguageModel& model, const std::vector<const TokenRequest*>& rows,
                          const std::vector<CopyMode>& modes) {
  const ModelInput input = input_of(rows, model.options().tensor.device());
  const at::Tensor hidden = model.hidden(input);
  const PositionScores scores = model.head().score(hidden, input);
  RequestScores found;
  for (const CopyMode mode : modes) {
    const at::Tensor sums =
        log_prob_in(scores, mode).to(at::kDouble).sum(-1).cpu();  // 0 where not counted
    std::vector<RequestScore>& by_row = found.emplace_back();
    for (size_t b = 0; b < rows.size(); ++b) {
      const auto row = static_cast<int64_t>(b);
      const auto end = static_cast<int64_t>(rows[b]->ids.size()) - 1;
      const int64_t begin = end - rows[b]->continuation;
      const at::Tensor likeliest =
          model.distribution(hidden, input, row, begin, end, mode).argmax(-1);
      by_row.push_back({sums.const_data_ptr<double>()[b],
                        likeliest.equal(input.targets.select(0, row).slice(0, begin, end))});
    }
  }
  return found;
}

// [[log_prob, is_greedy] by request] by mode.
Json piece_json(const RequestScores& scores) {
  Json json = Json::array();
  for (const auto& by_request : scores) {
    Json& list = json.emplace_back(Json::array());
    for (const RequestScore& score : by_request) {
      list.push_back(Json::array({json_number(score.log_prob), score.is_greedy}));
    }
  }
  return json;
}

// Longest first, so that a batch is of like lengths and memory runs short at once or never.
std::vector<size_t> order_of(const std::vector<TokenRequest>& requests) {
  std::vector<size_t> order(requests.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return requests[a].ids.size() > requests[b].ids.size();
  });
  return order;
}

}  // namespace

std::vector<CopyMode> modes_of(const Subject& subject, const std::vector<CopyMode>& asked) {
  return subject.config.model.head == HeadKind::kCplm ? asked
                                                      : std::vector<CopyMode>{CopyMode::kNatural};
}

int64_t num_request_pieces(int64_t requests, int64_t batch) {
  const int64_t each = requests_a_piece(batch);
  return (requests + each - 1) / each;
}

RequestScores score_requests(const Subject& subject, const std::vector<TokenRequest>& requests,
                             const std::vector<CopyMode>& modes, int64_t batch, TaskRun& run) {
  const std::vector<size_t> order = order_of(requests);
  RequestScores scores(modes.size(), std::vector<RequestScore>(requests.size()));
  std::shared_ptr<LanguageModel> model;
  const auto step = static_cast<size_t>(requests_a_piece(batch));
  for (size_t first = 0; first < order.size(); first += step) {
    const size_t last = std::min(order.size(), first + step);
    const Json piece = run.piece(subject, str("requests ", first), [&] {
      if (!model) model = subject.open();
      RequestScores found(modes.size());
      for (size_t begin = first; begin < last; begin += static_cast<size_t>(batch)) {
        const size_t end = std::min(last, begin + static_cast<size_t>(batch));
        std::vector<const TokenRequest*> rows;
        for (size_t i = begin; i < end; ++i) rows.push_back(&requests[order[i]]);
        const RequestScores part = score_batch(*model, rows, modes);
        for (size_t m = 0; m < modes.size(); ++m) {
          found[m].insert(found[m].end(), part[m].begin(), part[m].end());
        }
      }
      return piece_json(found);
    });
    for (size_t m = 0; m < modes.size(); ++m) {
      for (size_t i = first; i < last; ++i) {
        const Json& number = piece.at(m).at(i - first);
        scores[m][order[i]] = {read_json_number(number.at(0)), number.at(1).get<bool>()};
      }
    }
  }
  return scores;
}

}  // namespace cplm
