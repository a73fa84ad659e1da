// What the copy head keeps of every sequence, one copy key and one token id a position (SPEC.md
// section 4), and the documents that stand before all of them.
#pragma once

#include "model/decode_pass.h"

namespace cplm {

// Shared by all sequences; undefined tensors: no documents.
struct CopyDocuments {
  at::Tensor ids;     // int32 [1, P]
  at::Tensor keys;    // [P, D]
  at::Tensor hidden;  // bool [P]: never pointed at
};

class HeadCopyCache : public DecodeCache {
 public:
  HeadCopyCache(int64_t sequences, int64_t width, const at::TensorOptions& options);
  // The pass's rows: copy keys [R, D] and ids int64 [R].
  void remember(const at::Tensor& keys, const at::Tensor& ids, const DecodePass& pass);
  // The first `positions` of all sequences: keys [sequences, n, D], ids int32 [sequences, n].
  at::Tensor keys(int64_t positions) const { return keys_.narrow(1, 0, positions); }
  at::Tensor ids(int64_t positions) const { return ids_.narrow(1, 0, positions); }
  void set_documents(const CopyDocuments& documents) { documents_ = documents; }
  const CopyDocuments& documents() const { return documents_; }

  // Without the documents'.
  int64_t key_bytes() const;
  int64_t id_bytes() const;
  int64_t bytes() const override { return key_bytes() + id_bytes(); }
  void reserve(int64_t positions) override;
  void rewind(int64_t, int64_t) override {}  // what lies behind a sequence's end is never read
  void select(const at::Tensor& index) override;

 private:
  at::Tensor keys_, ids_;
  CopyDocuments documents_;
};

// Puts the documents' scores q k^T / sqrt(D), ids and M in front of a sequence's own: keys 0 to P -
// 1 of `next` are the documents', key P + j is the sequence's j. Own keys before a row's range get
// the score -inf. q [R, D].
void put_documents_before(const at::Tensor& q, const CopyDocuments& documents,
                          ops::NextTokenInput& next);

}  // namespace cplm
