// HDF5 leaves bytes between its structures that no checksum covers. The format wants them to be
// zero, so that damage is seen wherever it strikes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace cplm {

// The place of the first byte that no structure of the file claims and that is not zero; nothing
// when there is none, or when the file has structures that our writers do not make and whose extent
// is therefore not known. For files that the library has found sound: no checksum is looked at.
std::optional<int64_t> first_stray_byte(const std::filesystem::path& path);

// Reads every structure of the file once, as far as they are known, and none of its chunks. Needs
// no lock of the library's.
void read_structures(const std::filesystem::path& path);

}  // namespace cplm
