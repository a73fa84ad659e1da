// From tensors to the row kernels: one lambda, called with the element type.
#pragma once

#include "ops/cpu/row_kernels.h"

namespace cplm::ops::cpu {

// body(T{}) with T the tensor's element type; has_body() has been asked before.
template <class Body>
void with_type(const at::Tensor& x, const Body& body) {
  if (x.scalar_type() == at::kFloat) {
    body(float{});
  } else {
    body(double{});
  }
}

}  // namespace cplm::ops::cpu
