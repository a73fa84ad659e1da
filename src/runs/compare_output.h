// A comparison as a person's table and as files for programs.
#pragma once

#include <string>

#include "runs/compare.h"

namespace cplm {

std::string comparison_table(const Comparison& comparison);  // plain ASCII, several paragraphs
std::string comparison_json(const Comparison& comparison);   // every number, curves included
std::string comparison_csv(const Comparison& comparison);    // one validation of a run a line

}  // namespace cplm
