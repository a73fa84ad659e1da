// UTF-8 by the table of the Unicode standard (3-7): no overlong forms, no surrogates, no value
// above U+10FFFF.
#include "cplm/tokenizer.h"

namespace cplm {
namespace {

struct LeadByte {
  size_t length;                // of the character, 0 for a byte that leads none
  unsigned char second_lowest;  // of its second byte
  unsigned char second_highest;
};

LeadByte classify(unsigned char lead) {
  if (lead < 0x80) return {1, 0, 0};
  if (lead < 0xC2) return {0, 0, 0};
  if (lead < 0xE0) return {2, 0x80, 0xBF};
  if (lead == 0xE0) return {3, 0xA0, 0xBF};
  if (lead == 0xED) return {3, 0x80, 0x9F};
  if (lead < 0xF0) return {3, 0x80, 0xBF};
  if (lead == 0xF0) return {4, 0x90, 0xBF};
  if (lead < 0xF4) return {4, 0x80, 0xBF};
  if (lead == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

bool is_between(unsigned char byte, unsigned char lowest, unsigned char highest) {
  return lowest <= byte && byte <= highest;
}

}  // namespace

std::optional<size_t> find_invalid_utf8(std::string_view text) {
  const auto byte = [&](size_t index) { return static_cast<unsigned char>(text[index]); };
  for (size_t begin = 0; begin < text.size();) {
    const LeadByte lead = classify(byte(begin));
    if (lead.length == 0 || begin + lead.length > text.size()) return begin;
    for (size_t i = 1; i < lead.length; ++i) {
      const unsigned char lowest = i == 1 ? lead.second_lowest : 0x80;
      const unsigned char highest = i == 1 ? lead.second_highest : 0xBF;
      if (!is_between(byte(begin + i), lowest, highest)) return begin;
    }
    begin += lead.length;
  }
  return std::nullopt;
}

}  // namespace cplm
