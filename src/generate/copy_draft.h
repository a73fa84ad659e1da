// What a copy head's commitment lets guess: where a token was copied from, the tokens that followed
// there come next.
#pragma once

#include <optional>
#include <vector>

#include "cplm/generate.h"

namespace cplm {

// Of one row: the position pointed at the most among those that hold the chosen token, when their
// alpha together, over the context alone, is at least kCommitted. (A piece that has come several
// times shares its alpha among the places. How far the gates follow the head does not matter: a
// text that repeats itself is often known to the LM head too.)
inline constexpr double kCommitted = 0.5;
std::optional<int64_t> committed_position(const NextTokens& row, int64_t chosen);

// How many tokens to draft for one text: more while drafts hold, none for a while when they do not,
// so that a text without repeats costs little.
class DraftLength {
 public:
  explicit DraftLength(int64_t max) : max_(max) {}
  int64_t next();  // for a commitment; 0: leave it
  void checked(int64_t drafted, int64_t accepted);

 private:
  int64_t max_, length_ = 4;
  int64_t failures_ = 0, pause_ = 0;  // in a row; commitments still to leave
};

}  // namespace cplm
