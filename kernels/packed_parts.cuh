// A 16-byte part of a row, kept in the row's own dtype: one load or store where the address is
// aligned and the part is whole, single elements where not. So a kernel gives each thread the same
// elements, and sums them in the same order, whatever the alignment. For kernels that keep a row,
// to write it or to pass over it twice; float_groups.cuh is for those that only read it.
#pragma once

#include "kernels/compat.cuh"

namespace cplm::kernels {

template <class T>
using RowPart = Vec<T, kVecWidth<T>>;

// `count` elements are left in the row from `address` on; those past its end read as zero.
template <class T>
CPLM_DEVICE RowPart<T> load_part(const T* address, int count) {
  constexpr int kWidth = kVecWidth<T>;
  if (count >= kWidth && reinterpret_cast<std::uintptr_t>(address) % sizeof(RowPart<T>) == 0) {
    return RowPart<T>::load(address);
  }
  RowPart<T> part;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) part[i] = i < count ? address[i] : from_float<T>(0.0f);
  return part;
}

template <class T>
CPLM_DEVICE void store_part(const RowPart<T>& part, T* address, int count) {
  constexpr int kWidth = kVecWidth<T>;
  if (count >= kWidth && reinterpret_cast<std::uintptr_t>(address) % sizeof(RowPart<T>) == 0) {
    part.store(address);
    return;
  }
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    if (i < count) address[i] = part[i];
  }
}

}  // namespace cplm::kernels
