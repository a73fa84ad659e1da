// The fields of each kind of line in metrics.jsonl, named once for the writer, the reader and
// compare.csv. Order is the order in the file.
#pragma once

#include <concepts>
#include <type_traits>

#include "cplm/runs.h"

namespace cplm {

template <class Record, class Visitor>
requires std::same_as<std::remove_const_t<Record>, TrainRecord>
void visit_fields(Record& record, Visitor&& visit) {
  visit("step", record.step);
  visit("tokens", record.tokens);
  visit("loss", record.loss);
  visit("lr", record.lr);
  visit("grad_norm", record.grad_norm);
  visit("tokens_per_s", record.tokens_per_s);
  visit("step_ms", record.step_ms);
  visit("data_wait_ms", record.data_wait_ms);
  visit("mfu", record.mfu);
  visit("peak_memory_mb", record.peak_memory_mb);
}

template <class Record, class Visitor>
requires std::same_as<std::remove_const_t<Record>, ValidationRecord>
void visit_fields(Record& record, Visitor&& visit) {
  visit("step", record.step);
  visit("tokens", record.tokens);
  visit("loss", record.loss);
  visit("perplexity", record.perplexity);
  visit("counted_tokens", record.counted_tokens);
}

template <class Record, class Visitor>
requires std::same_as<std::remove_const_t<Record>, CopyMeans>
void visit_fields(Record& record, Visitor&& visit) {
  visit("loss_no_copy", record.loss_no_copy);
  visit("copy_gate", record.copy_gate);
  visit("sink_mass", record.sink_mass);
  visit("copy_weight", record.copy_weight);
}

}  // namespace cplm
