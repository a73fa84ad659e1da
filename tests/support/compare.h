// Comparison of two lists of numbers as one error, with a message that names the worst element.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace cplm::test {

// |actual - expected|; 0 for equal infinities, infinite for a NaN on either side.
inline double distance(double actual, double expected) {
  if (actual == expected) return 0.0;
  const double difference = std::abs(actual - expected);
  return std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference;
}

inline double norm(const std::vector<double>& x) {
  double sum = 0;
  for (const double value : x) sum += std::isinf(value) ? 0.0 : value * value;
  return std::sqrt(sum);
}

struct Difference {
  double norm = 0, largest = 0;
  size_t where = 0;
};

inline Difference difference(const std::vector<double>& actual,
                             const std::vector<double>& expected) {
  Difference out;
  double sum = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double d = distance(actual[i], expected[i]);
    if (d > out.largest) {
      out.largest = d;
      out.where = i;
    }
    sum += d * d;
  }
  out.norm = std::sqrt(sum);
  return out;
}

inline ::testing::AssertionResult judge(const std::vector<double>& actual,
                                        const std::vector<double>& expected, double error,
                                        double tolerance, size_t where) {
  if (error <= tolerance) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << "error " << error << " over " << tolerance << "; worst element " << where << ": "
         << actual[where] << ", expected " << expected[where];
}

inline ::testing::AssertionResult other_size(size_t actual, size_t expected) {
  return ::testing::AssertionFailure() << actual << " values, expected " << expected;
}

// |actual - expected| / |expected| in the 2-norm; absolute where expected is all zero.
inline ::testing::AssertionResult close(const std::vector<double>& actual,
                                        const std::vector<double>& expected, double tolerance) {
  if (actual.size() != expected.size()) return other_size(actual.size(), expected.size());
  const Difference d = difference(actual, expected);
  const double size = norm(expected);
  return judge(actual, expected, size > 0 ? d.norm / size : d.norm, tolerance, d.where);
}

// Every element within `tolerance`, absolute.
inline ::testing::AssertionResult near(const std::vector<double>& actual,
                                       const std::vector<double>& expected, double tolerance) {
  if (actual.size() != expected.size()) return other_size(actual.size(), expected.size());
  const Difference d = difference(actual, expected);
  return judge(actual, expected, d.largest, tolerance, d.where);
}

inline ::testing::AssertionResult all_finite(const std::vector<double>& x) {
  for (size_t i = 0; i < x.size(); ++i) {
    if (!std::isfinite(x[i])) {
      return ::testing::AssertionFailure() << "element " << i << " is " << x[i];
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace cplm::test
