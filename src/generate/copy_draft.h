// What a copy head's commitment lets guess: where a token was copied from, the tokens that followed
// there come next.
#pragma once

#include <optional>
#include <vector>

#include "cplm/copy_cache.h"
#include "cplm/generate.h"

namespace cplm {

// Of one row: the key pointed at the most among those that hold the chosen token, when their
// alpha together, over the context alone, is at least kCommitted. (A piece that has come several
// times shares its alpha among the places. How far the gates follow the head does not matter: a
// text that repeats itself is often known to the LM head too.)
inline constexpr double kCommitted = 0.5;
std::optional<int64_t> committed_position(const NextTokens& row, int64_t chosen);

// The tokens that follow a key that committed_position() gave: of the text `ids`, and of documents
// before it.
class DraftSource {
 public:
  explicit DraftSource(const CopyCache* documents);  // null: none
  // At most `length`. Behind the text's end come those drafted already: a text that repeats a short
  // piece is copied from itself. A document's draft ends with the document.
  std::vector<int64_t> draft(const std::vector<int64_t>& ids, int64_t key, int64_t length) const;

 private:
  std::vector<int64_t> from_documents(int64_t key, int64_t length) const;
  std::vector<int32_t> document_ids_;
  std::vector<int64_t> document_offsets_;
  std::optional<int64_t> document_end_;
};

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
