// Keys and values of an attention layer: of all positions, or a ring of the window's last and as
// many more as may be taken back.
#pragma once

#include "model/decode_pass.h"

namespace cplm {

class AttentionCache : public DecodeCache {
 public:
  // window 0: all positions. options: of the keys and values.
  AttentionCache(int64_t sequences, int64_t key_heads, int64_t head_dim, int64_t window,
                 const at::TensorOptions& options);
  // The attention of the pass's rows over what they see, themselves included: q [R, H, C]; k, v
  // [R, K, C], which it remembers; all rotated. Returns [R, H, C].
  at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                    const DecodePass& pass);

  // Keys and values [P, K, C] that every row of every sequence sees besides, whatever the window.
  void set_documents(const at::Tensor& keys, const at::Tensor& values);

  int64_t bytes() const override;  // without the documents'
  void reserve(int64_t positions) override;
  void set_rewind_room(int64_t positions) override;
  // What lies behind a sequence's end is never read, and no run that may be taken back overwrites
  // what the window still needs.
  void rewind(int64_t, int64_t) override {}
  void select(const at::Tensor& index) override;

 private:
  int64_t slots() const { return keys_.size(2); }
  int64_t first_seen(int64_t position, int64_t document_start) const;
  at::Tensor attend_batch(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const DecodePass& pass);
  bool is_short(const NewRun& run) const;
  at::Tensor attend_short_run(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              const NewRun& run, OpsKind ops);
  at::Tensor attend_run(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                        const NewRun& run, OpsKind ops);
  // What a run, which is remembered here, sees of its sequence in order: [K, S, C] each.
  KeysValues seen_by(const NewRun& run, const at::Tensor& new_keys, const at::Tensor& new_values);
  at::Tensor attend_with_documents(const at::Tensor& q, const KeysValues& own,
                                   const NewRun& run) const;
  at::Tensor hidden_keys(const NewRun& run, int64_t begin, int64_t rows, int64_t seen) const;
  // Positions [begin, end) of a sequence in order, [K, n, C]; a view where they do not wrap.
  at::Tensor in_order(const at::Tensor& ring, int64_t sequence, int64_t begin, int64_t end) const;
  // x [K, n, C] to positions from `begin` on; of more than the ring holds, the last.
  void write(const at::Tensor& ring, int64_t sequence, int64_t begin, const at::Tensor& x) const;
  void remember(const NewRun& run, const at::Tensor& k, const at::Tensor& v);

  int64_t window_;
  at::Tensor keys_, values_;  // [sequences, K, slots, C]; position p in slot p mod slots
  at::Tensor document_keys_, document_values_;  // [K, P, C]; undefined: none
};

}  // namespace cplm
