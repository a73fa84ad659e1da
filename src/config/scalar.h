// The spelling rules of scalars (README, "Config"): 1e-4 and integral 10e9 are numbers; 010, 0x10,
// 1_000, yes and no are refused with the right spelling; nan and inf are refused.
#pragma once

#include <cstdint>
#include <string>

#include "config/node.h"

namespace cplm {

// What a value is for, to say so when it does not fit.
struct Wanted {
  std::string key;       // "model.hidden_size"
  std::string expected;  // "a whole number of at least 1"
};

// "PLACE: KEY: expected WHAT, found ...; HINT", Error(kBadConfig).
[[noreturn]] void fail_value(const Node& node, const Wanted& wanted, const std::string& hint = "");

int64_t integer_of(const Node& node, const Wanted& wanted);
uint64_t unsigned_of(const Node& node, const Wanted& wanted);
double number_of(const Node& node, const Wanted& wanted);
bool boolean_of(const Node& node, const Wanted& wanted);
std::string text_of(const Node& node, const Wanted& wanted);

}  // namespace cplm
