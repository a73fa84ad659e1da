// A table of where each id was seen last answers both questions in one step a token.
#include "data/token_census.h"

#include <algorithm>

namespace cplm {

TokenCensus::TokenCensus(int64_t vocab_size, int64_t sequence_length)
    : pages_(static_cast<size_t>(vocab_size / kPage + 1)), sequence_length_(sequence_length) {}

void TokenCensus::begin_shard() { shard_begin_ = window_begin_ = position_; }

// Window j of a shard has the targets jT + 1 to jT + T and sees tokens jT up to the one before.
void TokenCensus::add(std::span<const int32_t> tokens, std::span<const uint8_t> loss_mask) {
  while (!tokens.empty()) {
    const int64_t in_shard = position_ - shard_begin_;
    int64_t length = 1;
    if (in_shard == 0) {  // no target
      CopyReach none;
      const CopyReach counted = counted_;
      add_targets(tokens.first(1), {}, none);
      counted_ = counted;
    } else {
      const int64_t in_window = (in_shard - 1) % sequence_length_;
      const int64_t half = sequence_length_ / 2;
      window_begin_ = position_ - 1 - in_window;
      const bool second = in_window >= half;
      length = std::min(static_cast<int64_t>(tokens.size()),
                        (second ? sequence_length_ : half) - in_window);
      const auto piece = static_cast<size_t>(length);
      add_targets(tokens.first(piece), loss_mask.empty() ? loss_mask : loss_mask.first(piece),
                  halves_[second ? 1 : 0]);
    }
    tokens = tokens.subspan(static_cast<size_t>(length));
    if (!loss_mask.empty()) loss_mask = loss_mask.subspan(static_cast<size_t>(length));
  }
}

void TokenCensus::add_targets(std::span<const int32_t> tokens, std::span<const uint8_t> loss_mask,
                              CopyReach& reach) {
  int64_t found = 0, counted_found = 0, position = position_;
  for (size_t i = 0; i < tokens.size(); ++i) {
    Entry& seen = entry(tokens[i]);
    const int64_t is_found = seen.last_position >= window_begin_ ? 1 : 0;
    found += is_found;
    if (!loss_mask.empty()) counted_found += loss_mask[i] * is_found;
    seen.count += 1;
    seen.last_position = position++;
  }
  position_ = position;
  const auto size = static_cast<int64_t>(tokens.size());
  reach.targets += size;
  reach.found += found;
  counted_.targets +=
      loss_mask.empty() ? size : std::count(loss_mask.begin(), loss_mask.end(), uint8_t{1});
  counted_.found += loss_mask.empty() ? found : counted_found;
}

void TokenCensus::merge(const TokenCensus& other) {
  for (size_t page = 0; page < pages_.size(); ++page) {
    if (!other.pages_[page]) continue;
    if (!pages_[page]) pages_[page] = std::make_unique<Entry[]>(kPage);
    for (size_t i = 0; i < kPage; ++i) pages_[page][i].count += other.pages_[page][i].count;
  }
  const auto add = [](CopyReach& to, const CopyReach& from) {
    to.targets += from.targets;
    to.found += from.found;
  };
  add(halves_[0], other.halves_[0]);
  add(halves_[1], other.halves_[1]);
  add(counted_, other.counted_);
}

int64_t TokenCensus::distinct() const {
  int64_t distinct = 0;
  for (const auto& page : pages_) {
    if (!page) continue;
    distinct += std::count_if(page.get(), page.get() + kPage,
                              [](const Entry& seen) { return seen.count > 0; });
  }
  return distinct;
}

std::vector<DataReport::TokenCount> TokenCensus::most_frequent(int64_t count) const {
  std::vector<DataReport::TokenCount> all;
  for (size_t page = 0; page < pages_.size(); ++page) {
    if (!pages_[page]) continue;
    for (size_t i = 0; i < kPage; ++i) {
      const int64_t occurrences = pages_[page][i].count;
      if (occurrences == 0) continue;
      all.push_back(
          {static_cast<int64_t>(page) * kPage + static_cast<int64_t>(i), occurrences, ""});
    }
  }
  const auto listed = all.begin() + std::min<int64_t>(count, static_cast<int64_t>(all.size()));
  std::partial_sort(all.begin(), listed, all.end(), [](const auto& a, const auto& b) {
    return a.count != b.count ? a.count > b.count : a.id < b.id;
  });
  all.erase(listed, all.end());
  return all;
}

}  // namespace cplm
