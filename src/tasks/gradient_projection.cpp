// See gradient_projection.h.
#include "tasks/gradient_projection.h"

#include <ATen/ops/linalg_cholesky.h>
#include <ATen/ops/linalg_eigh.h>
#include <ATen/ops/linalg_solve_triangular.h>
#include <ATen/ops/linalg_svd.h>

#include <algorithm>
#include <limits>

namespace cplm {
namespace {

at::Tensor row_norms(const at::Tensor& x) { return x.square().sum(-1).sqrt_(); }

// 1 - K^2 cancels where most is kept: there the rest itself is taken.
constexpr double kMostlyKept = 0.5;

}  // namespace

TallColumnSpace::TallColumnSpace(const at::Tensor& weight) {
  const auto size = static_cast<double>(std::max(weight.size(0), weight.size(1)));
  const double noise = std::numeric_limits<double>::epsilon() * size;
  // On the host: a GPU's solvers order their sums anew each time.
  const auto [squares, vectors] = at::linalg_eigh(weight.t().mm(weight).cpu());
  const double least = noise * std::max(0.0, squares.max().item<double>());
  const int64_t rank = squares.gt(least).sum().item<int64_t>();  // squares rise
  const at::Tensor kept = squares.narrow(0, squares.size(0) - rank, rank);
  const at::Tensor whitening =
      vectors.narrow(1, squares.size(0) - rank, rank).div(kept.sqrt().unsqueeze(0));
  basis_ = weight.mm(whitening.to(weight.device()));
  const at::Tensor factor = at::linalg_cholesky(basis_.t().mm(basis_), /*upper=*/true);
  basis_ = at::linalg_solve_triangular(factor, basis_, /*upper=*/true, /*left=*/false);
}

TallColumnSpace::Shares TallColumnSpace::shares(const at::Tensor& gradients) const {
  const at::Tensor coordinates = gradients.mm(basis_), norm = row_norms(gradients);
  Shares shares;
  shares.kept = row_norms(coordinates).div_(norm);
  if (shares.kept.gt(kMostlyKept).any().item<bool>()) {
    shares.lost = row_norms(gradients.sub(coordinates.mm(basis_.t()))).div_(norm);
  } else {
    shares.lost = shares.kept.square().neg_().add_(1.0).sqrt_();
  }
  return shares;
}

ColumnSpace::ColumnSpace(const at::Tensor& matrix) {
  auto [left, values, right] = at::linalg_svd(matrix, /*full_matrices=*/false);
  left_ = left;
  values_ = values;
}

ColumnSpace::Shares ColumnSpace::shares(const at::Tensor& gradient, double rtol) const {
  const int64_t rank = values_.gt(values_.select(0, 0).mul(rtol)).sum().item<int64_t>();
  const at::Tensor left = left_.narrow(1, 0, rank);
  const at::Tensor coordinates = left.t().mv(gradient);
  const double norm = row_norms(gradient).item<double>();
  return {row_norms(coordinates).item<double>() / norm,
          row_norms(gradient.sub(left.mv(coordinates))).item<double>() / norm};
}

double ColumnSpace::transferred(const at::Tensor& gradient) const {
  const at::Tensor passed = left_.t().mv(gradient).mul_(values_);
  return row_norms(passed).item<double>() /
         (values_.select(0, 0).item<double>() * row_norms(gradient).item<double>());
}

}  // namespace cplm
