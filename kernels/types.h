// The types that kernel headers share with their callers: no CUDA header, no LibTorch.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace cplm::kernels {

// A bfloat16 by its bits: the layout of __nv_bfloat16 and c10::BFloat16.
struct Bf16 {
  std::uint16_t bits;
};

// cudaStream_t under its own name; null: the default stream.
using Stream = CUstream_st*;

}  // namespace cplm::kernels
