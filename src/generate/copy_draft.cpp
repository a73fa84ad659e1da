// See copy_draft.h.
#include "generate/copy_draft.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

namespace cplm {

namespace {

constexpr double kNewestShare = 0.125;  // of the newest guess in the chance that the next one holds

// One row's keys [begin, end).
template <class T>
struct PointedKeys {
  const T* scores;
  const int32_t* ids;
  int64_t begin, end;

  // M, their logsumexp.
  double context_lse() const {
    const auto largest = static_cast<double>(*std::max_element(scores + begin, scores + end));
    double sum = 0;
    for (int64_t j = begin; j < end; ++j) sum += std::exp(static_cast<double>(scores[j]) - largest);
    return largest + std::log(sum);
  }
};

// Few keys hold the chosen token: where M is known, no other's weight is needed.
template <class T>
std::optional<int64_t> committed_key(const PointedKeys<T>& keys, int64_t chosen,
                                     std::optional<double> context_lse) {
  std::optional<int64_t> best;
  double alpha = 0;
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    if (keys.ids[j] != chosen) continue;
    if (!best && !context_lse) context_lse = keys.context_lse();
    if (!best || keys.scores[j] >= keys.scores[*best]) best = j;  // of equal ones the latest
    alpha += std::exp(static_cast<double>(keys.scores[j]) - *context_lse);
  }
  return alpha >= kCommitted ? best : std::nullopt;
}

}  // namespace

std::optional<int64_t> committed_position(const ops::NextTokenInput& next, int64_t row,
                                          int64_t chosen) {
  if (!next.copy.scores.defined()) return std::nullopt;
  const auto of_row = [&](const at::Tensor& x) {
    return x.select(0, x.size(0) > 1 ? row : 0).cpu().contiguous();
  };
  const int64_t begin = next.range.begin.defined() ? of_row(next.range.begin).item<int32_t>() : 0;
  const int64_t end = of_row(next.range.end).item<int32_t>();
  const at::Tensor scores = of_row(next.copy.scores), ids = of_row(next.ids);
  std::optional<double> context_lse;
  if (next.copy.context_lse.defined()) {
    context_lse = of_row(next.copy.context_lse).item().toDouble();
  }
  const auto among = [&](const auto* of_scores) {
    return committed_key(
        PointedKeys<std::decay_t<decltype(*of_scores)>>{of_scores, ids.const_data_ptr<int32_t>(),
                                                        begin, end},
        chosen, context_lse);
  };
  return scores.scalar_type() == at::kFloat ? among(scores.const_data_ptr<float>())
                                            : among(scores.const_data_ptr<double>());
}

DraftSource::DraftSource(const CopyCache* documents) {
  if (documents == nullptr) return;
  const at::Tensor ids = documents->ids().cpu().contiguous();
  document_ids_.assign(ids.const_data_ptr<int32_t>(), ids.const_data_ptr<int32_t>() + ids.numel());
  document_offsets_ = documents->document_offsets();
  document_end_ = documents->origin().document_end;
}

std::vector<int64_t> DraftSource::from_documents(int64_t key, int64_t length) const {
  const int64_t end = *std::upper_bound(document_offsets_.begin(), document_offsets_.end(), key);
  std::vector<int64_t> draft;
  for (int64_t next = key + 1; next < std::min(end, key + 1 + length); ++next) {
    const int64_t id = document_ids_[static_cast<size_t>(next)];
    if (document_end_ == id) break;
    draft.push_back(id);
  }
  return draft;
}

std::vector<int64_t> DraftSource::draft(const std::vector<int64_t>& ids, int64_t key,
                                        int64_t length) const {
  const auto documents = static_cast<int64_t>(document_ids_.size());
  if (key < documents) return from_documents(key, length);
  std::vector<int64_t> draft;
  for (auto next = static_cast<size_t>(key - documents) + 1;
       static_cast<int64_t>(draft.size()) < length && next < ids.size() + draft.size(); ++next) {
    draft.push_back(next < ids.size() ? ids[next] : draft[next - ids.size()]);
  }
  return draft;
}

int64_t DraftLength::next() const {
  int64_t length = 0;
  for (double all = chance_; all >= 0.5 && length < max_; all *= chance_) ++length;
  return length;
}

void DraftLength::compared(bool holds) { chance_ += kNewestShare * ((holds ? 1 : 0) - chance_); }

}  // namespace cplm
