// Where the copy head points, and how far it is trusted, for the rows of a decoding pass.
#pragma once

#include "cplm/decode.h"

namespace cplm {

struct CopyView {
  at::Tensor log_alpha;     // [R, S] over the context alone; -inf outside the range
  ops::MixtureGates gates;  // [R] each
};
// For a model with a copy head.
CopyView copy_view(const ops::NextTokenInput& next);

}  // namespace cplm
