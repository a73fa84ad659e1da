// Damages bytes as disks, crashes, editors and careless copies do; a function of its seed.
#pragma once

#include <cstdint>
#include <cstring>
#include <random>
#include <string>

#include "cplm/base.h"

namespace cplm::test {

class ByteMutator {
 public:
  explicit ByteMutator(uint64_t seed) : random_(seed * 2 + 1) {}

  uint64_t below(uint64_t bound) { return random_() % bound; }

  // 1 to 3 changes.
  std::string mutate(std::string bytes) {
    for (uint64_t times = 1 + below(3); times > 0; --times) mutate_once(bytes);
    return bytes;
  }
  // What was done, for messages.
  const std::string& done() const { return done_; }

 private:
  template <class... Args>
  void note(const Args&... args) {
    done_ += str(done_.empty() ? "" : "; ", args...);
  }

  void mutate_once(std::string& bytes) {
    if (bytes.empty()) bytes = "\n";
    const size_t at = below(bytes.size());
    const size_t length = std::min(bytes.size() - at, static_cast<size_t>(1 + below(64)));
    switch (below(9)) {
      case 0:
        note("flip a bit of byte ", at);
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
        break;
      case 1:
        note("another byte at ", at);
        bytes[at] = static_cast<char>(random_());
        break;
      case 2:
        note("fill ", length, " bytes at ", at);
        bytes.replace(at, length, length, static_cast<char>(below(2) == 0 ? 0 : random_()));
        break;
      case 3:
        note("cut off at ", at);
        bytes.resize(at);
        break;
      case 4:
        note("erase ", length, " bytes at ", at);
        bytes.erase(at, length);
        break;
      case 5:
        note("double ", length, " bytes at ", at);
        bytes.insert(at, bytes.substr(at, length));
        break;
      case 6:
        copy_elsewhere(bytes, at, length);
        break;
      case 7:
        zero_a_page(bytes, at);
        break;
      default:
        hostile_number(bytes, at);
    }
  }

  void copy_elsewhere(std::string& bytes, size_t at, size_t length) {
    const size_t to = below(bytes.size());
    note("copy ", length, " bytes from ", at, " over ", to);
    bytes.replace(to, std::min(length, bytes.size() - to), bytes.substr(at, length));
  }

  // As after a power cut: the size is right, a page was never written.
  void zero_a_page(std::string& bytes, size_t at) {
    const size_t page = 512, begin = at / page * page;
    note("zeros from ", begin);
    const size_t length = std::min(page, bytes.size() - begin);
    bytes.replace(begin, length, length, '\0');
  }

  void hostile_number(std::string& bytes, size_t at) {
    static constexpr uint64_t kNumbers[] = {
        0, 1, 0x7fffffff, 0x80000000, 0xffffffff, 0x7fffffffffffffff, 1ULL << 63, ~0ULL};
    const uint64_t number = kNumbers[below(std::size(kNumbers))];
    const size_t width = std::min<size_t>(bytes.size() - at, below(2) == 0 ? 4 : 8);
    note("the number ", number, " in ", width, " bytes at ", at);
    std::memcpy(bytes.data() + at, &number, width);
  }

  std::mt19937_64 random_;
  std::string done_;
};

}  // namespace cplm::test
