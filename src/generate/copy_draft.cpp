// See copy_draft.h.
#include "generate/copy_draft.h"

#include <algorithm>
#include <cmath>

namespace cplm {

std::optional<int64_t> committed_position(const NextTokens& row, int64_t chosen) {
  const ops::NextTokenInput& in = row.input;
  if (!in.copy.scores.defined()) return std::nullopt;
  const at::Tensor scores = in.copy.scores.to(at::kDouble).cpu().contiguous();
  const at::Tensor ids = in.ids.cpu().contiguous();
  const int64_t begin = in.range.begin.defined() ? in.range.begin.item<int32_t>() : 0;
  const int64_t end = in.range.end.item<int32_t>();
  const double* const score = scores.const_data_ptr<double>();
  if (begin >= end) return std::nullopt;
  const double largest = *std::max_element(score + begin, score + end);
  double total = 0, of_chosen = 0, best = -1;
  int64_t position = begin;
  for (int64_t j = begin; j < end; ++j) {
    const double weight = std::exp(score[j] - largest);
    total += weight;
    if (ids.const_data_ptr<int32_t>()[j] != chosen) continue;
    of_chosen += weight;
    if (weight > best) position = j;
    best = std::max(best, weight);
  }
  if (!(of_chosen >= kCommitted * total)) return std::nullopt;
  return position;
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

int64_t DraftLength::next() {
  if (pause_ > 0) {
    --pause_;
    return 0;
  }
  return std::min(length_, max_);
}

void DraftLength::checked(int64_t drafted, int64_t accepted) {
  if (drafted == 0) return;
  if (accepted == drafted) {
    length_ = std::min(2 * length_, max_);
  } else {
    length_ = std::max<int64_t>(2, accepted + 1);
  }
  if (2 * accepted >= drafted) {
    failures_ = 0;
    return;
  }
  ++failures_;
  if (failures_ > 1) pause_ = std::min<int64_t>(int64_t{1} << std::min<int64_t>(failures_, 6), 64);
}

}  // namespace cplm
