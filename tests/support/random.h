// Test inputs: normal numbers, ids, target masks and document starts, the same on every machine
// for one seed. No LibTorch.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <random>
#include <vector>

namespace cplm::test {

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  int below(int limit) { return static_cast<int>(engine_() % static_cast<uint64_t>(limit)); }
  double uniform() { return (static_cast<double>(engine_() >> 11) + 0.5) * 0x1.0p-53; }
  double normal() {
    const double radius = std::sqrt(-2.0 * std::log(uniform()));
    return radius * std::cos(2.0 * std::numbers::pi * uniform());
  }

  std::vector<double> normals(size_t count, double std = 1.0) {
    std::vector<double> x(count);
    for (double& value : x) value = std * normal();
    return x;
  }
  std::vector<int> ids(size_t count, int limit) {
    std::vector<int> x(count);
    for (int& id : x) id = below(limit);
    return x;
  }
  // Each is -1 (not counted) with the given probability.
  std::vector<int> targets(size_t count, int limit, double masked) {
    std::vector<int> x = ids(count, limit);
    for (int& target : x) {
      if (uniform() < masked) target = -1;
    }
    return x;
  }
  // First position of each position's document, documents of `mean` positions or so.
  std::vector<int> document_starts(size_t positions, double mean) {
    std::vector<int> starts(positions, 0);
    for (size_t t = 1; t < positions; ++t) {
      starts[t] = uniform() < 1.0 / mean ? static_cast<int>(t) : starts[t - 1];
    }
    return starts;
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace cplm::test
