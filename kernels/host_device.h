// Marks a function that host and device share: the same source serves g++ and nvcc.
#pragma once

#if defined(__CUDACC__)
#define CPLM_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define CPLM_HOST_DEVICE inline
#endif
