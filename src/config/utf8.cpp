// UTF-8 decoding by the table of the Unicode standard (3.9, D92).
#include "config/utf8.h"

namespace cplm {

Utf8Char read_utf8(std::string_view text) {
  const auto byte = [&](size_t i) {
    return static_cast<uint32_t>(static_cast<unsigned char>(text[i]));
  };
  const uint32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const size_t size = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < size) return {};
  uint32_t code_point = lead & (0xffU >> (size + 1));
  for (size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    code_point = code_point << 6 | (byte(i) & 0x3f);
  }
  constexpr uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code_point >= 0xd800 && code_point <= 0xdfff;
  if (code_point < kSmallest[size] || code_point > 0x10ffff || surrogate) return {};
  return {code_point, size};
}

}  // namespace cplm
