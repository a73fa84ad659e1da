// The CUDA backend on a real device: streams, shared memory and cuBLAS. Built with CPLM_CUDA only.
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <mutex>

#include "cplm/base.h"
#include "cplm/device.h"
#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/gemm_layout.h"

namespace cplm::ops {
namespace {

void check(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_ALLOC_FAILED) {
    throw Error(
        str("[ops.cublas] ", call, ": out of device memory; take a smaller train.micro_batch"),
        ExitCode::kOutOfMemory);
  }
  CPLM_CHECK(status == CUBLAS_STATUS_SUCCESS, "[ops.cublas] ", call, ": ",
             cublasGetStatusString(status));
}

// One handle a device with a workspace of a fixed size: cuBLAS then takes the same algorithm in
// every run, without an environment variable.
class CublasHandle {
 public:
  explicit CublasHandle(at::Device device)
      : workspace_(
            at::empty({kWorkspaceBytes}, at::TensorOptions().dtype(at::kByte).device(device))) {
    check(cublasCreate(&handle_), "cublasCreate");
    check(cublasSetMathMode(handle_, CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION),
          "cublasSetMathMode");
  }
  cublasHandle_t on_stream(cudaStream_t stream) {
    if (!bound_ || stream != stream_) {  // a new stream drops the workspace
      check(cublasSetStream(handle_, stream), "cublasSetStream");
      check(cublasSetWorkspace(handle_, workspace_.mutable_data_ptr(), kWorkspaceBytes),
            "cublasSetWorkspace");
      stream_ = stream;
      bound_ = true;
    }
    return handle_;
  }

 private:
  static constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;
  at::Tensor workspace_;
  cublasHandle_t handle_ = nullptr;  // lives as long as the process
  cudaStream_t stream_ = nullptr;
  bool bound_ = false;
};

cublasHandle_t handle_for(const at::Tensor& x) {
  static std::mutex mutex;
  static auto* handles = new std::map<int, std::unique_ptr<CublasHandle>>;  // outlives the driver
  const std::lock_guard lock(mutex);
  auto& handle = (*handles)[x.get_device()];
  if (!handle) handle = std::make_unique<CublasHandle>(x.device());
  return handle->on_stream(c10::cuda::getCurrentCUDAStream(x.get_device()).stream());
}

cudaDataType_t type_of(const at::Tensor& x) {
  switch (x.scalar_type()) {
    case at::kBFloat16:
      return CUDA_R_16BF;
    case at::kFloat:
      return CUDA_R_32F;
    default:
      break;
  }
  throw Error(str("[ops.cublas] expected float32 or bfloat16, got ", x.toString()));
}

cublasOperation_t operation(const GemmOperand& x) {
  return x.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
}

void matmul(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, double alpha,
            double beta) {
  if (out.numel() == 0) return;
  if (a.size(-1) == 0) {
    beta == 0 ? out.zero_() : out.mul_(beta);
    return;
  }
  const GemmCall call = gemm_call(out, a, b);
  const float scale = static_cast<float>(alpha), keep = static_cast<float>(beta);
  check(cublasGemmStridedBatchedEx_64(
            handle_for(out), operation(call.first), operation(call.second), call.m, call.n, call.k,
            &scale, call.first.data, type_of(b), call.first.leading, call.first.batch_stride,
            call.second.data, type_of(a), call.second.leading, call.second.batch_stride, &keep,
            call.out, type_of(out), call.out_leading, call.out_batch_stride, call.batch,
            CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
        "cublasGemmStridedBatchedEx_64");
}

kernels::Stream current_stream(const at::Tensor& on) {
  return c10::cuda::getCurrentCUDAStream(on.get_device()).stream();
}

int32_t shared_memory_limit(const at::Tensor& on) {
  static std::mutex mutex;
  static std::map<int, int32_t> limits;
  const std::lock_guard lock(mutex);
  const auto [limit, is_new] = limits.try_emplace(on.get_device(), 0);
  if (is_new) {
    int bytes = 0;
    const cudaError_t error =
        cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, on.get_device());
    CPLM_CHECK(error == cudaSuccess,
               "[ops.cuda] cudaDeviceGetAttribute: ", cudaGetErrorString(error));
    limit->second = bytes;
  }
  return limit->second;
}

}  // namespace

const Backend* cuda_backend() {
  static const std::unique_ptr<Backend> backend =
      make_cuda_backend({current_stream, shared_memory_limit, matmul});
  return backend.get();
}

}  // namespace cplm::ops

namespace cplm {

std::string device_name(at::Device device) {
  if (device.is_cpu()) return "";
  cudaDeviceProp properties;
  const cudaError_t error = cudaGetDeviceProperties(&properties, device.index());
  CPLM_CHECK(error == cudaSuccess, "[ops.cuda] cudaGetDeviceProperties: ", cudaGetErrorString(error));
  return properties.name;
}

}  // namespace cplm
