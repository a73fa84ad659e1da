// Packs new tokens into passes of bounded size and keeps every sequence's length and documents.
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "cplm/base.h"
#include "cplm/copy_cache.h"
#include "cplm/decode.h"
#include "model/attention_cache.h"
#include "model/backbone.h"
#include "model/gated_delta_cache.h"
#include "model/head.h"
#include "model/head_copy_cache.h"

namespace cplm {
namespace {

template <class T>
at::Tensor to_device(std::vector<T>& numbers, at::ScalarType dtype, at::Device device) {
  return at::from_blob(numbers.data(), {static_cast<int64_t>(numbers.size())},
                       at::TensorOptions().dtype(dtype))
      .clone()
      .to(device);
}

// Rows of a pass while it is filled.
struct Rows {
  std::vector<int64_t> ids, positions;
  std::vector<int32_t> document_starts;
  std::vector<NewRun> runs;
};

}  // namespace

struct Decoder::Impl {
  Impl(LanguageModel& model_in, const DecoderOptions& options_in)
      : model(model_in),
        options(options_in),
        device(model.options().tensor.device()),
        layers(model.backbone().make_caches(options.sequences, model.options().tensor)),
        copy(model.head().make_cache(options.sequences, model.options().tensor)),
        sequences(static_cast<size_t>(options.sequences)) {
    for_each_cache([&](DecodeCache& cache) { cache.set_rewind_room(options.rewind_room); });
  }

  struct Sequence {
    int64_t length = 0;
    int64_t rewindable_from = 0;                 // the shortest that rewind() may make it
    std::vector<int64_t> document_starts = {0};  // ascending
  };

  void set_documents(const CopyCache& documents);
  void set_last_layer_documents(const LastLayerCache& documents);
  void check(const std::vector<NewTokens>& tokens) const;
  void add(const NewTokens& tokens, size_t from, int64_t count, Rows& rows);
  void run(Rows& rows, std::vector<NextTokens>& results);
  void reserve(int64_t positions);

  template <class Visit>
  void for_each_cache(const Visit& visit) const {
    for (const auto& layer : layers) visit(*layer);
    if (copy) visit(*copy);
  }

  LanguageModel& model;
  DecoderOptions options;
  at::Device device;
  std::vector<std::unique_ptr<DecodeCache>> layers;
  std::unique_ptr<DecodeCache> copy;
  std::vector<Sequence> sequences;
  int64_t capacity = 0;
};

void Decoder::Impl::set_documents(const CopyCache& documents) {
  auto* const cache = dynamic_cast<HeadCopyCache*>(copy.get());
  const CopyCacheOrigin& origin = documents.origin();
  const ModelConfig& config = model.config();
  if (cache == nullptr || config.copy.rope || origin.width != config.hidden_size ||
      origin.vocab_size != config.vocab_size) {
    throw Error(str("documents by copy keys: expected a model with a copy head without rope, of ",
                    "width ", origin.width, " and ", origin.vocab_size, " tokens, found width ",
                    config.hidden_size, " and ", config.vocab_size, " tokens, model.head: ",
                    name_of(config.head), config.copy.rope ? " with model.copy.rope" : ""),
                ExitCode::kBadConfig);
  }
  if (documents.tokens() == 0) return;
  const at::Tensor ids = documents.ids().to(device);
  const at::Tensor hidden = origin.document_end
                                ? ids.eq(*origin.document_end)
                                : at::zeros(ids.sizes(), ids.options().dtype(at::kBool));
  cache->set_documents({ids.unsqueeze(0),
                        documents.keys().to(device, model.options().tensor.dtype().toScalarType()),
                        hidden});
}

void Decoder::Impl::set_last_layer_documents(const LastLayerCache& documents) {
  auto* const cache = dynamic_cast<AttentionCache*>(layers.back().get());
  const ModelConfig& config = model.config();
  if (documents.tokens() == 0) return;
  if (cache == nullptr || documents.keys.size(1) != config.num_key_value_heads ||
      documents.keys.size(2) != config.head_dim()) {
    throw Error(
        str("documents by the last layer: expected an attention layer of ", documents.keys.size(1),
            " key heads of ", documents.keys.size(2), ", found another"),
        ExitCode::kBadConfig);
  }
  const at::ScalarType dtype = model.options().tensor.dtype().toScalarType();
  cache->set_documents(documents.keys.to(device, dtype), documents.values.to(device, dtype));
}

void Decoder::Impl::check(const std::vector<NewTokens>& tokens) const {
  std::vector<bool> seen(sequences.size(), false);
  for (const NewTokens& each : tokens) {
    const auto count = static_cast<int64_t>(each.ids.size());
    CPLM_CHECK(each.sequence >= 0 && each.sequence < static_cast<int64_t>(sequences.size()),
               "[decode] expected a sequence below ", sequences.size(), ", got ", each.sequence);
    CPLM_CHECK(!seen[static_cast<size_t>(each.sequence)], "[decode] sequence ", each.sequence,
               " comes twice");
    seen[static_cast<size_t>(each.sequence)] = true;
    CPLM_CHECK(count > 0 && each.outputs >= 0 && each.outputs <= count,
               "[decode] expected outputs for 0 to ", count, " new tokens, got ", each.outputs);
    CPLM_CHECK(!each.may_rewind || count <= options.rewind_room, "[decode] at most ",
               options.rewind_room, " new tokens can be taken back, got ", count);
    for (size_t i = 0; i < each.ids.size(); ++i) {
      CPLM_CHECK(each.ids[i] >= 0 && each.ids[i] < model.config().vocab_size, "token ", i,
                 ": expected an id below ", model.config().vocab_size, ", found ", each.ids[i]);
    }
  }
}

// tokens.ids[from, from + count) to the pass; a run ends where a document does.
void Decoder::Impl::add(const NewTokens& tokens, size_t from, int64_t count, Rows& rows) {
  Sequence& sequence = sequences[static_cast<size_t>(tokens.sequence)];
  const auto silent =
      static_cast<int64_t>(tokens.ids.size()) - tokens.outputs;  // the first so many
  for (size_t i = from; i < from + static_cast<size_t>(count); ++i) {
    const int64_t id = tokens.ids[i], start = sequence.document_starts.back();
    const bool starts_run = i == from || start != rows.document_starts.back();
    if (starts_run) {
      rows.runs.push_back({tokens.sequence, static_cast<int64_t>(rows.ids.size()), 0,
                           sequence.length, start, 0, tokens.may_rewind});
    }
    NewRun& current = rows.runs.back();
    current.count += 1;
    current.outputs += static_cast<int64_t>(i) >= silent ? 1 : 0;
    rows.ids.push_back(id);
    rows.positions.push_back(sequence.length);
    rows.document_starts.push_back(static_cast<int32_t>(start));
    sequence.length += 1;
    if (options.document_end == id) sequence.document_starts.push_back(sequence.length);
  }
}

void Decoder::Impl::reserve(int64_t positions) {
  if (positions <= capacity) return;
  for_each_cache([&](DecodeCache& cache) { cache.reserve(positions); });
  capacity = positions;
}

void Decoder::Impl::run(Rows& rows, std::vector<NextTokens>& results) {
  if (rows.ids.empty()) return;
  DecodePass pass;
  pass.context.ops = model.options().ops;
  pass.context.deterministic = model.options().deterministic;
  pass.runs = std::move(rows.runs);
  pass.is_batch = pass.runs.size() == sequences.size();
  for (size_t r = 0; r < pass.runs.size(); ++r) {
    const NewRun& run = pass.runs[r];
    pass.is_batch = pass.is_batch && run.sequence == static_cast<int64_t>(r) && run.count == 1 &&
                    run.outputs == 1;
  }
  const int64_t longest = pass.longest();
  if (longest > capacity) reserve((std::max(longest, capacity + capacity / 2) + 63) / 64 * 64);
  pass.positions = to_device(rows.positions, at::kLong, device);
  pass.document_starts = to_device(rows.document_starts, at::kInt, device);
  const at::Tensor ids = to_device(rows.ids, at::kLong, device);
  const at::Tensor h = model.backbone().decode(ids.unsqueeze(0), pass, layers).squeeze(0);
  std::vector<ops::NextTokenInput> next = model.head().decode(h, ids, pass, copy.get());
  size_t group = 0;
  for_each_group(pass, [&](const NewRun* run, int64_t count) {
    NextTokens result;
    for (int64_t i = 0; i < count; ++i) {
      const NewRun& of = run != nullptr ? *run : pass.runs[static_cast<size_t>(i)];
      result.sequences.push_back(of.sequence);
      result.positions.push_back(run != nullptr ? of.end() - count + i : of.past);
    }
    result.input = std::move(next[group++]);
    results.push_back(std::move(result));
  });
  rows = Rows();
}

Decoder::Decoder(LanguageModel& model, const DecoderOptions& options) {
  CPLM_CHECK(options.sequences > 0 && options.prefill_chunk > 0,
             "[decode] expected at least one sequence and a chunk of at least one token, got ",
             options.sequences, " and ", options.prefill_chunk);
  CPLM_CHECK(options.rewind_room >= 0 && options.rewind_room <= options.prefill_chunk,
             "[decode] expected room to take back 0 to ", options.prefill_chunk, " tokens, got ",
             options.rewind_room);
  impl_ = std::make_unique<Impl>(model, options);
  if (options.documents != nullptr) impl_->set_documents(*options.documents);
  if (options.last_layer_documents != nullptr) {
    impl_->set_last_layer_documents(*options.last_layer_documents);
  }
}

Decoder::~Decoder() = default;

int64_t Decoder::sequences() const { return static_cast<int64_t>(impl_->sequences.size()); }

int64_t Decoder::length(int64_t sequence) const {
  return impl_->sequences.at(static_cast<size_t>(sequence)).length;
}

void Decoder::reserve(int64_t positions) { impl_->reserve(positions); }

std::vector<NextTokens> Decoder::advance(const std::vector<NewTokens>& tokens) {
  impl_->check(tokens);
  std::vector<NextTokens> results;
  Rows rows;
  const auto room = [&] {
    return impl_->options.prefill_chunk - static_cast<int64_t>(rows.ids.size());
  };
  for (const NewTokens& each : tokens) {
    Impl::Sequence& sequence = impl_->sequences[static_cast<size_t>(each.sequence)];
    const auto total = static_cast<int64_t>(each.ids.size());
    if (each.may_rewind && total > room()) impl_->run(rows, results);
    const int64_t before = sequence.length;
    for (int64_t done = 0; done < total;) {
      if (room() == 0) impl_->run(rows, results);
      const int64_t count = std::min(room(), total - done);
      impl_->add(each, static_cast<size_t>(done), count, rows);
      done += count;
    }
    sequence.rewindable_from = each.may_rewind ? before : sequence.length;
  }
  impl_->run(rows, results);
  return results;
}

void Decoder::rewind(int64_t sequence, int64_t length) {
  Impl::Sequence& of = impl_->sequences.at(static_cast<size_t>(sequence));
  CPLM_CHECK(length >= of.rewindable_from && length <= of.length, "[decode] sequence ", sequence,
             ": expected a length of ", of.rewindable_from, " to ", of.length, ", got ", length);
  impl_->for_each_cache([&](DecodeCache& cache) { cache.rewind(sequence, length); });
  of.length = length;
  of.rewindable_from = length;
  while (of.document_starts.back() > length) of.document_starts.pop_back();
}

void Decoder::select(const std::vector<int64_t>& sequences) {
  std::vector<Impl::Sequence> kept;
  for (const int64_t index : sequences) {
    kept.push_back(impl_->sequences.at(static_cast<size_t>(index)));
    kept.back().rewindable_from = kept.back().length;
  }
  CPLM_CHECK(!kept.empty(), "[decode] expected at least one sequence to go on with");
  std::vector<int64_t> index = sequences;
  const at::Tensor on_device = to_device(index, at::kLong, impl_->device);
  impl_->for_each_cache([&](DecodeCache& cache) { cache.select(on_device); });
  impl_->sequences = std::move(kept);
}

CacheBytes Decoder::bytes() const {
  CacheBytes bytes;
  for (const auto& layer : impl_->layers) {
    const bool is_state = dynamic_cast<const GatedDeltaCache*>(layer.get()) != nullptr;
    (is_state ? bytes.states : bytes.keys_and_values) += layer->bytes();
  }
  if (const auto* copy = dynamic_cast<const HeadCopyCache*>(impl_->copy.get())) {
    bytes.copy_keys = copy->key_bytes();
    bytes.copy_ids = copy->id_bytes();
  }
  return bytes;
}

}  // namespace cplm
