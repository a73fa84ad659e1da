// The order of training: a keyed permutation of the windows of an epoch, without a table. The exact
// arithmetic is described in docs/data-order.md and must never change.
#include <algorithm>

#include "cplm/data.h"
#include "data/keyed_permutation.h"

namespace cplm {
namespace {

constexpr int64_t kBlockWindows = 32;
constexpr int64_t kSpanPlaces = 8192;
constexpr uint64_t kBlockPurpose = 0x626c6f636b730001, kSpanPurpose = 0x7370616e73000001;

// The window at a place when whole blocks are permuted. The last block may be short; wherever it
// lands, the places behind it move up.
int64_t window_of_place(const KeyedPermutation& blocks, int64_t num_blocks, int64_t place,
                        int64_t num_windows) {
  const int64_t short_block = num_blocks - 1;
  const int64_t short_size = num_windows - short_block * kBlockWindows;
  const int64_t short_begin = blocks.inverse(short_block) * kBlockWindows;
  if (place >= short_begin + short_size) place += kBlockWindows - short_size;
  return blocks.forward(place / kBlockWindows) * kBlockWindows + place % kBlockWindows;
}

}  // namespace

int64_t window_at(uint64_t seed, int64_t epoch, int64_t index, int64_t num_windows) {
  CPLM_CHECK(epoch >= 0 && index >= 0 && index < num_windows,
             "[data.window_at] expected epoch >= 0 and 0 <= index < ", num_windows, ", got epoch ",
             epoch, " and index ", index);
  const uint64_t epoch_key = derive_key(derive_key(seed, 0), static_cast<uint64_t>(epoch));
  const int64_t span = index / kSpanPlaces, span_begin = span * kSpanPlaces;
  const KeyedPermutation within_span(
      derive_key(epoch_key ^ kSpanPurpose, static_cast<uint64_t>(span)),
      std::min(kSpanPlaces, num_windows - span_begin));
  const int64_t place = span_begin + within_span.forward(index - span_begin);
  const int64_t num_blocks = (num_windows + kBlockWindows - 1) / kBlockWindows;
  const KeyedPermutation blocks(derive_key(epoch_key ^ kBlockPurpose, 0), num_blocks);
  return window_of_place(blocks, num_blocks, place, num_windows);
}

}  // namespace cplm
