// RULER's tasks that are no needles: variables that are set to each other, and words to count.
#pragma once

#include "tasks/needle_text.h"

namespace cplm {

// vt: a chain of five variables, each but the first set to the one before, in `units` sentences of
// filler; asked: all that have the first one's value. A solved example stands before it.
RetrievalSample variable_sample(SampleRandom random, int64_t units);
// cwe: a numbered list of made-up words: ten of them 30 times, `units` others 3 times; asked: the
// ten. A solved example stands before it.
RetrievalSample common_words_sample(SampleRandom random, int64_t units);
// fwe: `units` words, the k-th most frequent about units / (zeta(2) k^2) times, the first of them
// dots that do not count; asked: the next three. At least kLeastFrequentWords, so that these differ
// in frequency from all others.
inline constexpr int64_t kLeastFrequentWords = 73;
RetrievalSample frequent_words_sample(SampleRandom random, int64_t units);

}  // namespace cplm
