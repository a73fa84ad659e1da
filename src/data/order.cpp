// The order of training: a keyed permutation of the windows of an epoch, without a table. The exact
// arithmetic is described in docs/data-order.md and must never change.
#include <algorithm>
#include <bit>

#include "cplm/base.h"
#include "cplm/data.h"

namespace cplm {
namespace {

constexpr int64_t kBlockWindows = 32;
constexpr int64_t kSpanPlaces = 8192;
constexpr int kRounds = 8;
constexpr int kMinHalfBits = 4;  // shorter halves permute few places unevenly
constexpr uint64_t kBlockPurpose = 0x626c6f636b730001, kSpanPurpose = 0x7370616e73000001;
constexpr uint64_t kStep = 0x9e3779b97f4a7c15;  // odd: distinct inputs stay distinct

uint64_t derive_key(uint64_t key, uint64_t number) { return mix64(key + kStep * (number + 1)); }

// A permutation of [0, size): a Feistel network on the smallest even number of bits (at least 8)
// that holds size, applied again while its result lies outside.
class KeyedPermutation {
 public:
  KeyedPermutation(uint64_t key, int64_t size) : size_(static_cast<uint64_t>(size)) {
    half_bits_ = std::max(kMinHalfBits, (static_cast<int>(std::bit_width(size_ - 1)) + 1) / 2);
    half_mask_ = (uint64_t{1} << half_bits_) - 1;
    for (int round = 0; round < kRounds; ++round) {
      round_keys_[round] = derive_key(key, static_cast<uint64_t>(round));
    }
  }

  int64_t forward(int64_t place) const {
    uint64_t value = static_cast<uint64_t>(place);
    do value = encrypt(value);
    while (value >= size_);
    return static_cast<int64_t>(value);
  }

  int64_t inverse(int64_t place) const {
    uint64_t value = static_cast<uint64_t>(place);
    do value = decrypt(value);
    while (value >= size_);
    return static_cast<int64_t>(value);
  }

 private:
  uint64_t scramble(uint64_t half, int round) const {
    return mix64(half ^ round_keys_[round]) & half_mask_;
  }
  uint64_t encrypt(uint64_t value) const {
    uint64_t left = value >> half_bits_, right = value & half_mask_;
    for (int round = 0; round < kRounds; ++round) {
      left ^= scramble(right, round);
      std::swap(left, right);
    }
    return left << half_bits_ | right;
  }
  uint64_t decrypt(uint64_t value) const {
    uint64_t left = value >> half_bits_, right = value & half_mask_;
    for (int round = kRounds - 1; round >= 0; --round) {
      std::swap(left, right);
      left ^= scramble(right, round);
    }
    return left << half_bits_ | right;
  }

  uint64_t size_;
  int half_bits_;
  uint64_t half_mask_;
  uint64_t round_keys_[kRounds];
};

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
