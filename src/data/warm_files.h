// Fetches what opening many shards will read, several files at a time: from a cold network file
// system each read waits a round trip or more, and the HDF5 library opens one file after the other.
#pragma once

#include <filesystem>
#include <vector>

namespace cplm {

// Leaves the structures of the files in the system's cache. Says nothing of files that cannot be
// read: opening them does.
void warm_headers(const std::vector<std::filesystem::path>& paths);

}  // namespace cplm
