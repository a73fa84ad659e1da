// What `cplm data inspect` found, for people and for programs.
#pragma once

#include <string>

#include "cplm/shard_tools.h"

namespace cplm {

std::string report_text(const DataReport& report, const InspectOptions& options);
std::string report_json(const DataReport& report, const InspectOptions& options);

}  // namespace cplm
