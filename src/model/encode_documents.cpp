// See cplm/copy_cache.h: documents through the model, each by itself, and what a model's keys
// depend on.
#include <ATen/ops/cat.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "cplm/base.h"
#include "cplm/copy_cache.h"
#include "model/backbone.h"
#include "model/head.h"

namespace cplm {
namespace {

at::Tensor id_tensor(const std::vector<int64_t>& ids) {
  return at::from_blob(const_cast<int64_t*>(ids.data()), {static_cast<int64_t>(ids.size())},
                       at::TensorOptions().dtype(at::kLong))
      .clone();
}

void check_documents(const Documents& documents, int64_t vocab_size) {
  for (size_t d = 0; d < documents.size(); ++d) {
    CPLM_CHECK(!documents[d].empty(), "document ", d, ": expected at least one token, found none");
    for (size_t i = 0; i < documents[d].size(); ++i) {
      const int64_t id = documents[d][i];
      if (id >= 0 && id < vocab_size) continue;
      throw Error(str("document ", d, ", token ", i, ": expected an id below the vocabulary of ",
                      vocab_size, ", found ", id),
                  ExitCode::kBadData);
    }
  }
}

// Documents [begin, end) side by side, padded behind: what comes later changes nothing before.
at::Tensor side_by_side(const Documents& documents, size_t begin, size_t end) {
  size_t longest = 0;
  for (size_t d = begin; d < end; ++d) longest = std::max(longest, documents[d].size());
  at::Tensor ids =
      at::zeros({static_cast<int64_t>(end - begin), static_cast<int64_t>(longest)}, at::kLong);
  for (size_t d = begin; d < end; ++d) {
    ids.select(0, static_cast<int64_t>(d - begin))
        .narrow(0, 0, static_cast<int64_t>(documents[d].size()))
        .copy_(id_tensor(documents[d]));
  }
  return ids;
}

// As many documents from `begin` on as fit, at least one.
size_t batch_end(const Documents& documents, size_t begin, int64_t batch_tokens) {
  size_t end = begin + 1, longest = documents[begin].size();
  for (; end < documents.size(); ++end) {
    longest = std::max(longest, documents[end].size());
    if (static_cast<int64_t>(longest * (end + 1 - begin)) > batch_tokens) break;
  }
  return end;
}

}  // namespace

std::string model_hash(const LanguageModel& model) {
  Config config;
  config.model = model.config();
  std::string settings;
  for (const auto& [key, value] : flatten_config(config)) {
    if (key.starts_with("model.")) settings += str(key, " ", value, "\n");
  }
  Sha256 hash;
  hash.update(settings.data(), settings.size());
  for (const Parameter& parameter : model.parameters().all()) {
    const at::Tensor numbers = parameter.master.to(at::kCPU, at::kFloat).contiguous();
    const std::string header = str(parameter.name, " ", parameter.numel, "\n");
    hash.update(header.data(), header.size());
    hash.update(numbers.const_data_ptr<float>(),
                static_cast<size_t>(numbers.numel()) * sizeof(float));
  }
  return hash.hex();
}

CopyCacheOrigin copy_cache_origin(const LanguageModel& model, std::optional<int64_t> document_end,
                                  const std::string& tokenizer_sha256) {
  const ModelConfig& config = model.config();
  return {model_hash(model), tokenizer_sha256, config.vocab_size, config.hidden_size, document_end};
}

CopyCache encode_documents(LanguageModel& model, const Documents& documents,
                           const CopyCacheOrigin& origin, int64_t batch_tokens) {
  if (model.config().copy.rope) {
    throw Error(
        "documents by copy keys: expected model.copy.rope: false, found true; keys with "
        "positions cannot be joined",
        ExitCode::kBadConfig);
  }
  check_documents(documents, model.config().vocab_size);
  const at::TensorOptions& options = model.options().tensor;
  CopyCache cache(origin, options);
  for (size_t begin = 0; begin < documents.size();) {
    const size_t end = batch_end(documents, begin, batch_tokens);
    ModelInput input;
    input.ids = side_by_side(documents, begin, end).to(options.device());
    const at::Tensor keys = model.head().copy_keys(model.hidden(input));
    for (size_t d = begin; d < end; ++d) {
      const auto row = static_cast<int64_t>(d - begin),
                 count = static_cast<int64_t>(documents[d].size());
      cache.append(input.ids.select(0, row).narrow(0, 0, count),
                   keys.select(0, row).narrow(0, 0, count));
    }
    begin = end;
  }
  return cache;
}

LastLayerCache encode_last_layer(LanguageModel& model, const Documents& documents,
                                 std::optional<int64_t> document_end) {
  check_documents(documents, model.config().vocab_size);
  std::vector<LastLayerCache> caches;
  for (const std::vector<int64_t>& document : documents) {
    const at::Tensor ids = id_tensor(document).to(model.options().tensor.device());
    const KeysValues all =
        model.backbone().last_keys_values_before(ids.unsqueeze(0), model.options());
    at::Tensor keys = all.keys.squeeze(0), values = all.values.squeeze(0);
    if (document_end) {
      const at::Tensor kept = ids.ne(*document_end).nonzero().squeeze(1);
      keys = keys.index_select(0, kept);
      values = values.index_select(0, kept);
    }
    caches.push_back({keys, values});
  }
  return concatenate(caches);
}

}  // namespace cplm
