// Copy caches as commands take them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cplm/copy_cache.h"
#include "cplm/saved_model.h"

namespace cplm {

// sha256 of the model's tokenizer.json; empty where there is none.
std::string tokenizer_hash(const SavedModel& saved);
// "notes.h5: 3 documents, 1,234 tokens, 4.8 MiB of copy keys"
std::string describe(const CopyCache& cache, const std::string& name);
// --documents FILE...: the caches of these files, joined, in the model's precision and on its
// device; nothing without files. Errors as load_copy_cache().
std::optional<CopyCache> read_documents(const std::vector<std::string>& files,
                                        const SavedModel& saved, const LanguageModel& model);

}  // namespace cplm
