// Which backend answers for a tensor.
#include "ops/backend.h"

#include "cplm/base.h"

namespace cplm::ops {
namespace {

const Backend* override_of_cpu = nullptr;

const Backend* find_backend(const at::Tensor& x) {
  if (x.is_cpu()) return override_of_cpu != nullptr ? override_of_cpu : &cpu_backend();
  return x.is_cuda() ? cuda_backend() : nullptr;
}

}  // namespace

const Backend* rows_of(const at::Tensor& x, OpsKind path) {
  if (path != OpsKind::kFused) return nullptr;
  const Backend* backend = find_backend(x);
  return backend != nullptr && backend->has_rows(x.scalar_type()) ? backend : nullptr;
}

const Backend& backend_of(const at::Tensor& x) {
  const Backend* backend = find_backend(x);
  CPLM_CHECK(backend != nullptr, "[ops] no backend for a tensor on ", x.device().str(),
             "; this program was built without it");
  return *backend;
}

CpuBackendOverride::CpuBackendOverride(const Backend* backend) : previous_(override_of_cpu) {
  override_of_cpu = backend;
}

CpuBackendOverride::~CpuBackendOverride() { override_of_cpu = previous_; }

}  // namespace cplm::ops
