// What mixers and heads see of a decoding pass: new tokens of several sequences packed into one row
// [1, R], and what each part of the model remembers of the positions before them.
#pragma once

#include <algorithm>
#include <vector>

#include "model/mixer.h"

namespace cplm {

// Neighbouring new positions of one sequence and one document.
struct NewRun {
  int64_t sequence = 0;        // of the caches
  int64_t begin = 0;           // its first row of the pass
  int64_t count = 0;           //
  int64_t past = 0;            // positions of the sequence before it
  int64_t document_start = 0;  // the first position that it may see
  int64_t outputs = 0;         // of its last rows what comes next is asked for
  bool may_rewind = false;     // its positions may be taken back
  int64_t end() const { return past + count; }
};

struct DecodePass {
  SequenceContext context;  // RoPE rows by row of the pass
  std::vector<NewRun> runs;
  // One new row of every sequence of the caches, in order, and outputs of all: they go through as a
  // batch.
  bool is_batch = false;
  // int64 [R] on the device, each row's position; int32 [R], its document's first.
  at::Tensor positions, document_starts;
  int64_t longest() const {  // positions of the longest sequence, the new ones included
    int64_t longest = 0;
    for (const NewRun& run : runs) longest = std::max(longest, run.end());
    return longest;
  }
};

// What one mixer or head keeps of every sequence. Positions of a sequence are contiguous from 0.
class DecodeCache {
 public:
  virtual ~DecodeCache() = default;
  virtual int64_t bytes() const = 0;
  // Room for so many positions of each sequence.
  virtual void reserve(int64_t positions) = 0;
  // Runs that may be taken back have at most so many positions. Called while empty.
  virtual void set_rewind_room(int64_t /*positions*/) {}
  // Forgets the positions of a sequence from `length` on: of its last run, with may_rewind set.
  virtual void rewind(int64_t sequence, int64_t length) = 0;
  // Keeps the sequences of `index` (int64, on the device), in its order; one may come twice.
  virtual void select(const at::Tensor& index) = 0;
};

}  // namespace cplm
