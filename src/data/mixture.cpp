// The order of a whole run, over one source or a weighted mixture of several, in closed form:
// docs/data-order.md holds the arithmetic, which must never change.
#include <cmath>

#include "cplm/data.h"
#include "data/keyed_permutation.h"

namespace cplm {
namespace {

constexpr int64_t kBlockSequences = 8192;
constexpr int kBlockBits = 13, kShareBits = 32;
constexpr uint64_t kSlotPurpose = 0x6d69787475726501, kSourcePurpose = 0x736f757263650001;

// round(block * kBlockSequences * share / 2^32), in pieces that stay below 2^63.
int64_t rounded_share(int64_t block, int64_t share) {
  constexpr int kShift = kShareBits - kBlockBits;
  constexpr int64_t kMask = (int64_t{1} << kShift) - 1, kHalf = int64_t{1} << (kShift - 1);
  return (block >> kShift) * share + (((block & kMask) * share + kHalf) >> kShift);
}

}  // namespace

// A source's share is the step between two borders: sums of weights, rounded to 32 bits.
TrainingOrder::TrainingOrder(uint64_t seed, std::vector<WindowSource> sources)
    : seed_(seed), sources_(std::move(sources)) {
  CPLM_CHECK(!sources_.empty(), "[data.order] expected at least one source");
  double total = 0, sum = 0;
  for (const WindowSource& source : sources_) {
    CPLM_CHECK(source.num_windows > 0 && source.weight > 0,
               "[data.order] expected windows and a weight above 0, got ", source.num_windows,
               " windows and weight ", source.weight, " of ", source.path);
    total += source.weight;
  }
  for (size_t s = 0; s < sources_.size(); ++s) {
    sum += sources_[s].weight;
    borders_.push_back(static_cast<int64_t>(std::floor(sum / total * 0x1.0p32 + 0.5)));
    first_windows_.push_back(s == 0 ? 0 : first_windows_[s - 1] + sources_[s - 1].num_windows);
    seeds_.push_back(sources_.size() == 1 ? seed : derive_key(seed ^ kSourcePurpose, s));
    CPLM_CHECK(sources_[s].weight / total >= DataSource::kMinShare, "[data.order] the share of ",
               sources_[s].path, " is ", sources_[s].weight / total, ", expected at least 1/4096");
  }
}

TrainingOrder::Turn TrainingOrder::turn_of(int64_t sequence) const {
  if (sources_.size() == 1) return {0, sequence};
  const int64_t block = sequence / kBlockSequences;
  const KeyedPermutation slots(derive_key(seed_ ^ kSlotPurpose, static_cast<uint64_t>(block)),
                               kBlockSequences);
  const int64_t slot = slots.forward(sequence % kBlockSequences);
  int64_t first_slot = 0, before = 0;  // of the source: its slots, and all sources' up to it
  for (size_t source = 0;; ++source) {
    const int64_t up_to = rounded_share(block, borders_[source]);
    const int64_t end_slot = rounded_share(block + 1, borders_[source]) - up_to;
    if (slot < end_slot) return {source, up_to - before + slot - first_slot};
    first_slot = end_slot;
    before = up_to;
  }
}

int64_t TrainingOrder::window_of(int64_t sequence) const {
  const Turn turn = turn_of(sequence);
  const int64_t size = sources_[turn.source].num_windows;
  return first_windows_[turn.source] +
         window_at(seeds_[turn.source], turn.number / size, turn.number % size, size);
}

std::vector<int64_t> TrainingOrder::taken(int64_t num_sequences) const {
  if (sources_.size() == 1) return {num_sequences};
  std::vector<int64_t> counts;
  const int64_t block = num_sequences / kBlockSequences;
  int64_t before = 0;
  for (const int64_t border : borders_) {
    counts.push_back(rounded_share(block, border) - before);
    before += counts.back();
  }
  for (int64_t n = block * kBlockSequences; n < num_sequences; ++n) ++counts[turn_of(n).source];
  return counts;
}

}  // namespace cplm
