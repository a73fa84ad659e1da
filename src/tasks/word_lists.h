// Words for generated texts: pairs from two short lists, and made-up ones without end.
#pragma once

#include <cstdint>
#include <string>

namespace cplm {

// "amber-otter" for i below num_word_pairs(); all different.
int64_t num_word_pairs();
std::string word_pair(int64_t i);

// "bolami": three syllables, for i below num_made_up_words(); all different, none part of another.
int64_t num_made_up_words();
std::string made_up_word(int64_t i);

}  // namespace cplm
