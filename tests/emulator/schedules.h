// Runs a kernel under every schedule of the emulator and demands the same bytes each time.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <ostream>
#include <tuple>
#include <type_traits>
#include <vector>

#include "emulator/emulator.h"

namespace cplm::emulator {

inline std::ostream& operator<<(std::ostream& out, const Options& options) {
  static constexpr const char* kNames[] = {"forward", "reverse", "random", "starve"};
  return out << (options.backend == Backend::kFibers ? "fibers, " : "threads, ")
             << kNames[static_cast<int>(options.schedule)] << ", seed " << options.seed;
}

// Forward, reverse, and `num_seeds` each of random and starve. Under ThreadSanitizer one run on
// threads, whose order is the operating system's.
inline std::vector<Options> every_schedule(std::uint64_t num_seeds = 3) {
  if (Options{}.backend == Backend::kThreads) return {Options{}};
  std::vector<Options> all = {{.schedule = Schedule::kForward}, {.schedule = Schedule::kReverse}};
  for (std::uint64_t seed = 0; seed < num_seeds; ++seed) {
    all.push_back({.schedule = Schedule::kRandom, .seed = seed});
    all.push_back({.schedule = Schedule::kStarve, .seed = seed});
  }
  return all;
}

template <class T>
bool same_bytes(const std::vector<T>& a, const std::vector<T>& b) {
  static_assert(std::is_trivially_copyable_v<T>);
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

template <class... Ts>
bool same_bytes(const std::tuple<std::vector<Ts>...>& a, const std::tuple<std::vector<Ts>...>& b) {
  const auto same = [&]<std::size_t... i>(std::index_sequence<i...>) {
    return (same_bytes(std::get<i>(a), std::get<i>(b)) && ...);
  };
  return same(std::index_sequence_for<Ts...>{});
}

// `run` makes fresh outputs, launches, and returns them: a vector, or a tuple of vectors. They must
// be bit-equal under every schedule; the first run's are returned.
template <class Run>
auto run_under_every_schedule(const Run& run, std::uint64_t num_seeds = 3) {
  std::optional<decltype(run())> first;
  for (const Options& options : every_schedule(num_seeds)) {
    const ScopedOptions scope(options);
    auto outputs = run();
    if (!first) {
      first = std::move(outputs);
      continue;
    }
    EXPECT_TRUE(same_bytes(outputs, *first)) << "outputs depend on the schedule: " << options;
  }
  return *first;
}

}  // namespace cplm::emulator
