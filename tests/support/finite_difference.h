// Derivatives by central differences of four points: error about step^4, so 1e-11 or better for
// the smooth functions of order one that tests differentiate.
#pragma once

#include <cstddef>
#include <vector>

namespace cplm::test {

inline constexpr double kDifferenceStep = 1e-3;

// f'(0) of a function of one number.
template <class Function>
auto derivative(const Function& f, double step = kDifferenceStep) {
  return (8.0 * (f(step) - f(-step)) - (f(2 * step) - f(-2 * step))) / (12.0 * step);
}

// df/dx of every element of x.
template <class Function>
std::vector<double> finite_difference(const Function& f, std::vector<double> x,
                                      double step = kDifferenceStep) {
  std::vector<double> gradient(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const double at = x[i];
    gradient[i] = static_cast<double>(derivative(
        [&](double move) {
          x[i] = at + move;
          return f(x);
        },
        step));
    x[i] = at;
  }
  return gradient;
}

// The derivative of f at x along `direction`: <gradient, direction>.
template <class Function>
double along(const Function& f, const std::vector<double>& x, const std::vector<double>& direction,
             double step = kDifferenceStep) {
  return derivative(
      [&](double move) {
        std::vector<double> moved = x;
        for (size_t i = 0; i < x.size(); ++i) moved[i] += move * direction[i];
        return f(moved);
      },
      step);
}

}  // namespace cplm::test
