// What a kernel's device code includes: the platform (nvcc, or the tests' host emulator), bf16 and
// float arithmetic, vector access. The same sources compile on both sides.
#pragma once

#include "kernels/math.cuh"
#include "kernels/platform.cuh"
#include "kernels/types.h"
#include "kernels/vec.cuh"
