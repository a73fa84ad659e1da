// Grid arithmetic of the launchers. Plain C++.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace cplm::kernels {

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// grid.x for so many blocks; std::invalid_argument where no grid is that long.
inline unsigned grid_x(const char* op, std::int64_t blocks) {
  constexpr std::int64_t kLimit = 2147483647;
  if (blocks <= kLimit) return static_cast<unsigned>(blocks);
  throw std::invalid_argument(std::string(op) + ": needs " + std::to_string(blocks) +
                              " blocks, a grid has at most " + std::to_string(kLimit) +
                              "; give fewer rows at once");
}

// Threads, in whole warps, for `items` pieces of work: at most `most`.
constexpr int block_threads(std::int64_t items, int most) {
  const std::int64_t warps = ceil_div(items, 32) * 32;
  return warps < most ? static_cast<int>(warps) : most;
}

}  // namespace cplm::kernels
