// Counter-based noise of the samplers: Philox4x32-10 (Salmon et al. 2011) keyed by a seed, turned
// into Gumbel noise. Plain C++ for host and device: any path that asks for (seed, counter, v) gets
// the same random bits, in any order and from any thread.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/host_device.h"

namespace cplm::kernels {

struct RandomWords {
  uint32_t word[4];
};

CPLM_HOST_DEVICE RandomWords philox_round(const RandomWords& x, uint32_t key0, uint32_t key1) {
  const uint64_t product0 = uint64_t{0xD2511F53} * x.word[0];
  const uint64_t product1 = uint64_t{0xCD9E8D57} * x.word[2];
  return {
      {static_cast<uint32_t>(product1 >> 32) ^ x.word[1] ^ key0, static_cast<uint32_t>(product1),
       static_cast<uint32_t>(product0 >> 32) ^ x.word[3] ^ key1, static_cast<uint32_t>(product0)}};
}

// The ten-round Philox4x32 block function.
CPLM_HOST_DEVICE RandomWords philox(uint64_t key, RandomWords counter) {
  uint32_t key0 = static_cast<uint32_t>(key), key1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    counter = philox_round(counter, key0, key1);
    key0 += 0x9E3779B9u;  // the Weyl steps of the key schedule
    key1 += 0xBB67AE85u;
  }
  return counter;
}

// Standard Gumbel noise -log(-log(1 - x)), x uniform in (0, 1) with the full 32 bits of `bits`. The
// side of x that decides a draw (large noise, small x) is the one that floats resolve finely.
CPLM_HOST_DEVICE float gumbel_from_bits(uint32_t bits) {
  constexpr float kUnit = 1.0f / 4294967296.0f, kBelowOne = 1.0f - 1.0f / 16777216.0f;
  const float uniform = std::fmin((static_cast<float>(bits) + 0.5f) * kUnit, kBelowOne);
  return -std::log(-std::log1p(-uniform));
}

// Random bits of tokens 4 * group .. 4 * group + 3 in the draw `counter` of `seed`.
CPLM_HOST_DEVICE RandomWords token_bits(uint64_t seed, uint64_t counter, uint32_t group) {
  return philox(
      seed, {{group, static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0u}});
}

// Noise of token v in the draw `counter` of `seed`: argmax_v(log P_v / tau + noise) is a sample.
CPLM_HOST_DEVICE float gumbel_noise(uint64_t seed, uint64_t counter, uint32_t token) {
  return gumbel_from_bits(token_bits(seed, counter, token / 4).word[token % 4]);
}

}  // namespace cplm::kernels
