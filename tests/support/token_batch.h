// A small batch of random tokens for tests of a step.
#pragma once

#include "cplm/config.h"
#include "cplm/data.h"
#include "support/random.h"

namespace cplm::test {

// 5 rows of 12 positions: each third target is not counted, a document begins at position 7.
inline TokenBatch make_batch(const ModelConfig& config, uint64_t seed = 8) {
  TokenBatch batch = TokenBatch::sized(5, 12);
  Random random(seed);
  for (int32_t& token : batch.tokens) token = random.below(static_cast<int>(config.vocab_size));
  for (size_t i = 0; i < batch.target_counted.size(); ++i) {
    batch.target_counted[i] = i % 3 == 0 ? 0 : 1;
    batch.counted_targets += batch.target_counted[i];
    batch.document_start[i] = i % 12 >= 7 ? 7 : 0;
  }
  batch.has_document_breaks = true;
  return batch;
}

}  // namespace cplm::test
