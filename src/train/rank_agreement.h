// What must be the same on all ranks: the program and how it was started, the data, and later on
// the weights.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "cplm/comm.h"
#include "cplm/config.h"
#include "cplm/train.h"

namespace cplm {

// Ranks of another version, with other options or another config would train something else, or
// wait for each other for ever. Error(kBadConfig) on the rank that is not as rank 0 is.
void check_same_start(const Config& config, const TrainOptions& options, Communicator& ranks);
// Error(kBadData) naming `key` on the rank whose shards are not rank 0's.
void check_same_shards(const std::string& key, const std::string& sha256, Communicator& ranks);
// Whether the bits of `flat` are the same on all ranks, by a sum of its words; all get the answer.
bool equal_on_all_ranks(const at::Tensor& flat, Communicator& ranks);

}  // namespace cplm
