// Between lists of double and tensors of any dtype, device and stride.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "support/tolerance.h"

namespace cplm::test {

using Shape = std::vector<int64_t>;

// Rounded to the case's dtype, on its device.
at::Tensor tensor(const std::vector<double>& values, const Shape& shape, const OpCase& c);
at::Tensor tensor(const std::vector<double>& values, const Shape& shape,
                  at::ScalarType dtype = at::kDouble, at::DeviceType device = at::kCPU);
at::Tensor id_tensor(const std::vector<int>& ids, const Shape& shape,
                     at::DeviceType device = at::kCPU);
at::Tensor zeros(const Shape& shape, const OpCase& c);
// The same in the accumulation dtype.
at::Tensor wide_tensor(const std::vector<double>& values, const Shape& shape, const OpCase& c);
at::Tensor wide_zeros(const Shape& shape, const OpCase& c);
// Filled with NaN, for outputs that must be written whole.
at::Tensor poisoned(const Shape& shape, const OpCase& c);
at::Tensor poisoned(const Shape& shape, at::ScalarType dtype = at::kDouble);

// Row by row as double, from any device and strides.
std::vector<double> values(const at::Tensor& x);
// What `values` become when rounded to the case's dtype.
std::vector<double> rounded(const std::vector<double>& values, const OpCase& c);
// Equal numbers in rows that lie apart in memory; the last dimension stays contiguous.
at::Tensor with_gaps(const at::Tensor& x);
bool equal_bits(const at::Tensor& a, const at::Tensor& b);  // NaN equals NaN

}  // namespace cplm::test
