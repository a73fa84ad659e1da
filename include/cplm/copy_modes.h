// The copy modes by name, as commands take and print them.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "cplm/ops.h"

namespace cplm {

struct NamedCopyMode {
  const char* name;
  CopyMode mode;
};
// In the order of CopyMode.
inline constexpr std::array<NamedCopyMode, 3> kCopyModes = {{{"natural", CopyMode::kNatural},
                                                             {"no_copy", CopyMode::kNoCopy},
                                                             {"force_copy", CopyMode::kForceCopy}}};

constexpr const char* name_of(CopyMode mode) { return kCopyModes[static_cast<size_t>(mode)].name; }

inline std::vector<std::string> copy_mode_names() {
  std::vector<std::string> names;
  names.reserve(kCopyModes.size());
  for (const NamedCopyMode& mode : kCopyModes) names.emplace_back(mode.name);
  return names;
}

// Those that a model has: a vanilla one the first alone.
constexpr std::span<const NamedCopyMode> copy_modes_of(HeadKind head) {
  return {kCopyModes.data(), head == HeadKind::kCplm ? kCopyModes.size() : size_t{1}};
}

}  // namespace cplm
