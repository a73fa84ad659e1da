// A tensor in pieces of bounded size, so that copying one never needs its size in memory again.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>

namespace cplm::checkpoint {

constexpr int64_t kPieceBytes = int64_t{32} << 20;

// Calls visit(piece, first_element) for views that cover `tensor` in row-major order: flat runs of
// a contiguous tensor, else groups of rows along its first dimension.
template <class Visit>
void for_each_piece(const at::Tensor& tensor, const Visit& visit) {
  if (tensor.numel() == 0) return;
  const at::Tensor rows = tensor.is_contiguous() ? tensor.view({-1}) : tensor;
  const int64_t num_rows = rows.size(0);
  const int64_t row_elements = rows.numel() / num_rows;
  const int64_t row_bytes = row_elements * static_cast<int64_t>(rows.element_size());
  const int64_t rows_at_once = std::max<int64_t>(1, kPieceBytes / row_bytes);
  for (int64_t row = 0; row < num_rows; row += rows_at_once) {
    visit(rows.narrow(0, row, std::min(rows_at_once, num_rows - row)), row * row_elements);
  }
}

}  // namespace cplm::checkpoint
