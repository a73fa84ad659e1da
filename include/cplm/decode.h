// Decoding with caches: new tokens of several sequences of different lengths go through the model
// together, and each remembers what SPEC.md section 4 says: keys and values of all positions (full
// attention) or of the window's last (sliding), a state of fixed size (linear attention), and one
// copy key and token id for every position.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "cplm/model.h"

namespace cplm {

class CopyCache;        // cplm/copy_cache.h
struct LastLayerCache;  //

struct DecoderOptions {
  int64_t sequences = 1;
  int64_t prefill_chunk = 512;  // new tokens that go through the model at once
  int64_t rewind_room = 0;  // new tokens that may be taken back at once; windows keep as many more
  // With intra_document_mask: behind this token a document starts, and nothing looks before it.
  std::optional<int64_t> document_end;
  // Documents before every sequence, which take none of its positions and are shared: read by the
  // copy head alone, or by the last layer alone. Null: none. They must outlive the decoder.
  const CopyCache* documents = nullptr;
  const LastLayerCache* last_layer_documents = nullptr;
};

// New tokens of one sequence. Its last `outputs` positions ask what comes next.
struct NewTokens {
  int64_t sequence = 0;
  std::vector<int64_t> ids;
  int64_t outputs = 1;
  bool may_rewind = false;  // at most rewind_room of them
};

// What comes after some positions. P(v), in any mode, is next_token_distribution(input). With
// DecoderOptions::documents of P tokens, key j < P of `input` is theirs and key P + j the
// sequence's position j.
struct NextTokens {
  std::vector<int64_t> sequences, positions;  // by row of `input`
  ops::NextTokenInput input;
};

struct CacheBytes {
  int64_t keys_and_values = 0;  // of attention layers
  int64_t states = 0;           // of linear-attention layers, whatever the length
  int64_t copy_keys = 0, copy_ids = 0;
  int64_t total() const { return keys_and_values + states + copy_keys + copy_ids; }
};
// The caches of one sequence of `positions`, by arithmetic: bytes_per_number for everything but the
// ids (int32) and the recurrent states (at least float32).
CacheBytes cache_bytes(const ModelConfig& config, int64_t positions, int64_t bytes_per_number);

class Decoder {
 public:
  // The model must outlive it. Error(kBadConfig) for documents that the model cannot read.
  Decoder(LanguageModel& model, const DecoderOptions& options);
  ~Decoder();

  int64_t sequences() const;
  int64_t length(int64_t sequence) const;  // positions so far
  // Room for so many positions a sequence, taken at once; else caches grow by half when full.
  void reserve(int64_t positions);
  // Each sequence at most once; rows come in the order of `tokens`, in one or several groups.
  // Error for an id outside the vocabulary.
  std::vector<NextTokens> advance(const std::vector<NewTokens>& tokens);
  // Takes back positions from `length` on, all of the last advance() and with may_rewind set.
  void rewind(int64_t sequence, int64_t length);
  // Goes on with these sequences alone, numbered anew in this order; one may come twice.
  void select(const std::vector<int64_t>& sequences);
  CacheBytes bytes() const;  // as allocated, without documents

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cplm
