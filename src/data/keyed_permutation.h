// The arithmetic that both orders of training stand on: keys derived from keys, and a permutation
// without a table. Described in docs/data-order.md; it must never change.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <utility>

#include "cplm/base.h"

namespace cplm {

inline uint64_t derive_key(uint64_t key, uint64_t number) {
  constexpr uint64_t kStep = 0x9e3779b97f4a7c15;  // odd: distinct inputs stay distinct
  return mix64(key + kStep * (number + 1));
}

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
  static constexpr int kRounds = 8;
  static constexpr int kMinHalfBits = 4;  // shorter halves permute few places unevenly

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

}  // namespace cplm
