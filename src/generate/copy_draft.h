// What a copy head's commitment lets guess: where a token was copied from, the tokens that followed
// there come next.
#pragma once

#include <optional>
#include <vector>

#include "cplm/copy_cache.h"
#include "cplm/generate.h"

namespace cplm {

// Of row `row`: the key pointed at the most among those that hold the chosen token, when their
// alpha together, over the context alone, is at least kCommitted. (A piece that has come several
// times shares its alpha among the places. How far the gates follow the head does not matter: a
// text that repeats itself is often known to the LM head too.)
inline constexpr double kCommitted = 0.5;
std::optional<int64_t> committed_position(const ops::NextTokenInput& next, int64_t row,
                                          int64_t chosen);

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

// How many tokens to draft for one text: as many as, by its last guesses, hold together at least as
// likely as not. A row that is checked costs less than half a pass, so that such a draft pays.
// Guesses that were not drafted count too, and comparing them with the text costs nothing: a text
// without repeats has no more drafts, and has them again as soon as it repeats something.
class DraftLength {
 public:
  explicit DraftLength(int64_t max) : max_(max) {}
  int64_t next() const;
  // Of one guessed token, where those before it held.
  void compared(bool holds);

 private:
  int64_t max_;
  double chance_ = 0.5;  // that a guessed token holds
};

}  // namespace cplm
