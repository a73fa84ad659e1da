// See document_cache.h.
#include "cli/document_cache.h"

#include <cstdio>

#include "cplm/base.h"
#include "cplm/copy_cache_file.h"

namespace cplm {

std::string tokenizer_hash(const SavedModel& saved) {
  return saved.tokenizer.empty() ? std::string() : sha256_file(saved.tokenizer);
}

std::string describe(const CopyCache& cache, const std::string& name) {
  char size[32];
  std::snprintf(size, sizeof size, "%.1f MiB",
                static_cast<double>(cache.keys().nbytes()) / (1 << 20));
  return str(name, ": ", with_commas(cache.documents()), " document(s), ",
             with_commas(cache.tokens()), " tokens, ", size, " of copy keys");
}

std::optional<CopyCache> read_documents(const std::vector<std::string>& files,
                                        const SavedModel& saved, const LanguageModel& model) {
  if (files.empty()) return std::nullopt;
  if (model.config().head != HeadKind::kCplm) {
    throw Error("--documents: expected a model with a copy head, found model.head: vanilla",
                ExitCode::kBadConfig);
  }
  const CopyCacheOrigin reader = copy_cache_origin(model, std::nullopt, tokenizer_hash(saved));
  std::vector<CopyCache> caches;
  for (const std::string& file : files) {
    const std::filesystem::path path = expand_tilde(file);
    if (!std::filesystem::exists(path)) {
      throw Error(str(path.string(), ": no such file"), ExitCode::kBadData);
    }
    caches.push_back(load_copy_cache(path, reader));
  }
  CopyCache all = CopyCache::concatenate(caches).to(model.options().tensor);
  log::info(describe(all, "documents"));
  return all;
}

}  // namespace cplm
