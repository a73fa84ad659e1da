// All that `cplm check` knows about a config, as JSON; the text form prints the same.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "cli/check_start.h"
#include "cplm/config.h"

namespace cplm {

nlohmann::ordered_json check_report(const Config& config, const StartCheck& start);

}  // namespace cplm
