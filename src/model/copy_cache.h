// The copy cache: one copy key and one token id for every position (SPEC.md section 4).
#pragma once

#include "model/decode_pass.h"

namespace cplm {

class CopyCache : public DecodeCache {
 public:
  CopyCache(int64_t sequences, int64_t width, const at::TensorOptions& options);
  // The pass's rows: copy keys [R, D] and ids int64 [R].
  void remember(const at::Tensor& keys, const at::Tensor& ids, const DecodePass& pass);
  // The first `positions` of all sequences: keys [sequences, n, D], ids int32 [sequences, n].
  at::Tensor keys(int64_t positions) const { return keys_.narrow(1, 0, positions); }
  at::Tensor ids(int64_t positions) const { return ids_.narrow(1, 0, positions); }

  int64_t key_bytes() const;
  int64_t id_bytes() const;
  int64_t bytes() const override { return key_bytes() + id_bytes(); }
  void reserve(int64_t positions) override;
  void rewind(int64_t, int64_t) override {}  // what lies behind a sequence's end is never read
  void select(const at::Tensor& index) override;

 private:
  at::Tensor keys_, ids_;
};

}  // namespace cplm
