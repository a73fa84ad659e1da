// Copy caches on disk (docs/copy-cache-format.md): an HDF5 file with ids, keys and the documents'
// offsets, all checksummed, and whose they are.
#pragma once

#include <filesystem>

#include "cplm/copy_cache.h"

namespace cplm {

// Written aside and renamed: whole or absent. The keys keep their dtype, float32, float64 or
// bfloat16. Needs the file's size in memory.
void save_copy_cache(const CopyCache& cache, const std::filesystem::path& path);
// The cache as it was saved, bit for bit, on the CPU. Error(kBadData), one line that names the
// file, when it is damaged, no copy cache, or of another vocabulary, model or tokenizer (where both
// sides know one) than `reader`.
CopyCache load_copy_cache(const std::filesystem::path& path, const CopyCacheOrigin& reader);

}  // namespace cplm
