// Token embedding. Its gradient adds rows in the order of the tokens, so equal ids always sum in
// the same order.
#include <ATen/ops/embedding_dense_backward.h>

#include "ops/backend.h"

namespace cplm::ops {

at::Tensor embedding(const at::Tensor& weight, const at::Tensor& ids) {
  return weight.index_select(0, ids.reshape(-1)).view({ids.size(0), ids.size(1), weight.size(1)});
}

void add_embedding_grad(const at::Tensor& dy, const at::Tensor& ids, const at::Tensor& dweight,
                        OpsKind path) {
  const at::Tensor rows = dy.reshape({-1, dy.size(-1)});
  const at::Tensor flat_ids = ids.reshape(-1);
  if (const Backend* fused = rows_of(rows, path)) {
    fused->add_embedding_grad(rows, flat_ids, dweight);
  } else if (dweight.is_cpu()) {
    dweight.index_add_(0, flat_ids, rows.to(dweight.scalar_type()));  // sequential over rows
  } else {  // index_add_ uses float atomics there; this one sorts
    dweight.add_(at::embedding_dense_backward(rows.to(dweight.scalar_type()), flat_ids,
                                              dweight.size(0), -1, false));
  }
}

}  // namespace cplm::ops
