// From a tensor's dtype to the C++ type of its elements, for the rows that exist twice.
#pragma once

#include <ATen/core/Tensor.h>

namespace cplm::ops::cpu {

// body(T{}) with T float for float32, else double.
template <class Body>
void with_type(const at::Tensor& x, const Body& body) {
  if (x.scalar_type() == at::kFloat) {
    body(float{});
  } else {
    body(double{});
  }
}

}  // namespace cplm::ops::cpu
