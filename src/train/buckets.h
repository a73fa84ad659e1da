// The flat buffers cut into buckets, and what of them belongs to a rank when the optimizer's state
// is spread over the ranks (ZeRO stage 1). One layout for gradients, weights and optimizer state.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "cplm/comm.h"
#include "cplm/train.h"

namespace cplm {

class Buckets {
 public:
  // Of about `bucket_elements`, but for the last, which holds at least the first `last_elements`:
  // the embedding, whose gradients are final only when the backward ends. When `sharded` each is a
  // multiple of the ranks, and flat_size must be one too (ModelOptions::flat_multiple).
  Buckets(int64_t flat_size, int64_t bucket_elements, int64_t last_elements,
          const Communicator& ranks, bool sharded);

  // The buffer's end first, in the order of a backward.
  const std::vector<FlatRange>& all() const { return all_; }
  bool sharded() const { return sharded_; }
  // This rank's part of each bucket, in the same order; whole buckets when not sharded.
  const std::vector<FlatRange>& owned() const { return owned_; }
  int64_t owned_elements() const { return owned_elements_; }

 private:
  std::vector<FlatRange> all_, owned_;
  bool sharded_;
  int64_t owned_elements_ = 0;
};

// Sums the flat gradient buffer over the ranks, bucket by bucket, while the backward still computes
// the rest. The order is fixed, whatever the graph.
class GradientReducer {
 public:
  // rounds_to_bfloat16: on the wire; half of float32's bytes, no longer exact.
  GradientReducer(Communicator& ranks, const at::Tensor& flat_grad, const Buckets& buckets,
                  bool rounds_to_bfloat16);

  // Gradients at `offset` and behind are final on this rank: sends every bucket in there.
  void ready(int64_t offset);
  // Sends what is left, waits for all, and begins anew. Then every rank has the same sums: of all
  // gradients, or of its own parts when sharded.
  void finish();
  size_t num_sent() const { return sent_; }

 private:
  struct Transfer {
    int64_t begin;
    at::Tensor grad, own;  // views; own is the part that this rank needs
    at::Tensor rounded;    // bfloat16 on the wire
    PendingCollective pending;
  };
  void send(Transfer& transfer);

  Communicator& ranks_;
  const bool sharded_, rounds_;
  std::vector<Transfer> transfers_;
  size_t sent_ = 0;
};

// Every rank's part of each bucket of `flat` to all ranks, in one collective however many buckets
// there are: among hundreds of ranks each one costs a round of hops. `room`, whose contents are
// lost, holds what travels; of flat's size in bytes at least.
void gather_parts(Communicator& ranks, const Buckets& buckets, const at::Tensor& flat,
                  const at::Tensor& room);
// The parts as one buffer, in the buckets' order; and back into their places of `flat`.
at::Tensor take_owned(const Buckets& buckets, const at::Tensor& flat);
// This rank's parts of a whole buffer that rank 0 holds on its host.
void spread_from_host(Communicator& ranks, const Buckets& buckets, const at::Tensor& flat,
                      const at::Tensor& owned);
// The whole buffer that everyone's `owned` parts make: on rank 0's host; undefined on the others.
at::Tensor gather_on_host(Communicator& ranks, const Buckets& buckets, const at::Tensor& owned,
                          int64_t flat_size);

}  // namespace cplm
