// How much of a gradient a linear map lets through, exactly, in float64 (PROTOCOLS.md sections 3.1
// and 3.2): with P the projection onto the map's column space, kept K = ||P g|| / ||g|| and lost =
// ||g - P g|| / ||g||, so K^2 + lost^2 = 1.
#pragma once

#include <ATen/core/Tensor.h>

namespace cplm {

// Of many gradients through one tall matrix W [V, D]. Its column space comes from W^T W alone: an
// orthonormal basis W U_r S_r^-1, made orthonormal again to rounding by one Cholesky factor.
// Singular values below sqrt(eps max(V, D)) of the largest are none.
class TallColumnSpace {
 public:
  explicit TallColumnSpace(const at::Tensor& weight);  // float64
  int64_t rank() const { return basis_.size(1); }
  struct Shares {
    at::Tensor kept, lost;  // float64 [R]; NaN where g is zero
  };
  Shares shares(const at::Tensor& gradients) const;  // float64 [R, V]

 private:
  at::Tensor basis_;  // [V, rank]
};

// Of one gradient through one matrix M [n, D] of any rank, by its singular values.
class ColumnSpace {
 public:
  explicit ColumnSpace(const at::Tensor& matrix);  // float64, on the CPU
  struct Shares {
    double kept = 0, lost = 0;  // NaN where g is zero
  };
  // Singular values up to rtol times the largest are none. g float64 [n].
  Shares shares(const at::Tensor& gradient, double rtol) const;
  // ||M^T g|| / (sigma_max ||g||).
  double transferred(const at::Tensor& gradient) const;

 private:
  at::Tensor left_, values_;  // [n, k], [k] falling
};

}  // namespace cplm
