// Conversions by way of contiguous CPU tensors.
#include "support/tensors.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <cstring>
#include <limits>
#include <stdexcept>

namespace cplm::test {
namespace {

at::TensorOptions options(const OpCase& c) {
  return at::TensorOptions().dtype(c.dtype).device(c.device);
}

template <class To, class From>
at::Tensor filled(const std::vector<From>& from, const Shape& shape, at::ScalarType dtype) {
  const at::Tensor out = at::empty(shape, at::TensorOptions().dtype(dtype));
  if (out.numel() != static_cast<int64_t>(from.size())) {
    throw std::invalid_argument("tensor: wrong number of values for the shape");
  }
  To* data = out.mutable_data_ptr<To>();
  for (size_t i = 0; i < from.size(); ++i) data[i] = static_cast<To>(from[i]);
  return out;
}

}  // namespace

at::Tensor tensor(const std::vector<double>& from, const Shape& shape, at::ScalarType dtype,
                  at::DeviceType device) {
  return filled<double>(from, shape, at::kDouble)
      .to(at::TensorOptions().dtype(dtype).device(device));
}

at::Tensor wide_tensor(const std::vector<double>& from, const Shape& shape, const OpCase& c) {
  return tensor(from, shape, c.wide(), c.device);
}

at::Tensor wide_zeros(const Shape& shape, const OpCase& c) {
  return at::zeros(shape, options(c).dtype(c.wide()));
}

at::Tensor tensor(const std::vector<double>& from, const Shape& shape, const OpCase& c) {
  return tensor(from, shape, c.dtype, c.device);
}

at::Tensor id_tensor(const std::vector<int>& ids, const Shape& shape, at::DeviceType device) {
  return filled<int64_t>(ids, shape, at::kLong).to(at::TensorOptions().device(device));
}

at::Tensor zeros(const Shape& shape, const OpCase& c) { return at::zeros(shape, options(c)); }

at::Tensor poisoned(const Shape& shape, at::ScalarType dtype) {
  return at::full(shape, std::numeric_limits<double>::quiet_NaN(),
                  at::TensorOptions().dtype(dtype));
}

at::Tensor poisoned(const Shape& shape, const OpCase& c) {
  return poisoned(shape, c.dtype).to(c.device);
}

std::vector<double> values(const at::Tensor& x) {
  const at::Tensor flat =
      x.to(at::TensorOptions().dtype(at::kDouble).device(at::kCPU)).contiguous();
  const double* data = flat.const_data_ptr<double>();
  return {data, data + flat.numel()};
}

std::vector<double> rounded(const std::vector<double>& from, const OpCase& c) {
  return values(tensor(from, {static_cast<int64_t>(from.size())}, c));
}

at::Tensor with_gaps(const at::Tensor& x) {
  Shape wide = x.sizes().vec();
  wide.back() += 3;
  const at::Tensor out = at::full(wide, std::numeric_limits<double>::quiet_NaN(), x.options())
                             .narrow(-1, 1, x.size(-1));
  out.copy_(x);
  return out;
}

bool equal_bits(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor left = a.cpu().contiguous(), right = b.cpu().contiguous();
  return left.sizes() == right.sizes() && left.scalar_type() == right.scalar_type() &&
         (left.nbytes() == 0 ||
          std::memcmp(left.const_data_ptr(), right.const_data_ptr(), left.nbytes()) == 0);
}

}  // namespace cplm::test
