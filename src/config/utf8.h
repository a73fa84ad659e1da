// UTF-8, one character at a time: checks what is read and decides what is escaped when written.
#pragma once

#include <cstdint>
#include <string_view>

namespace cplm {

struct Utf8Char {
  uint32_t code_point = 0;
  size_t size_bytes = 0;  // 0: the text does not start with a valid sequence
};

// The first character of a text that is not empty; overlong forms and surrogates are invalid.
Utf8Char read_utf8(std::string_view text);

}  // namespace cplm
