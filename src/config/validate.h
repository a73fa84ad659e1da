// The rules that span several keys, and the layer kinds that follow from the backbone.
#pragma once

#include "config/read.h"
#include "cplm/config.h"

namespace cplm {

// Fills model.layer_types. Error(kBadConfig) with the place of the key that does not fit.
void validate(Config& config, const Places& places);

}  // namespace cplm
