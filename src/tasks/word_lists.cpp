// See word_lists.h.
#include "tasks/word_lists.h"

#include <string_view>
#include <vector>

namespace cplm {
namespace {

constexpr std::string_view kAdjectives =
    "amber ample arctic autumn bashful basic blue bold brave brief bright brisk broad bronze calm "
    "careful cheerful clean clear clever cloudy cold copper coral cosmic crimson crisp curious "
    "daring dark deep distant dusty eager early earnest easy empty fair famous fearless fine firm "
    "fluent fragile fresh friendly frosty gentle giant glad golden grand green happy hasty heavy "
    "hidden hollow honest humble icy ivory jolly keen kind large lively lofty lucky mellow mild "
    "misty modest narrow noble olive patient plain polite proud quick quiet rapid rare ready rosy "
    "rustic scarlet secret silent silver simple slow smooth solid steady stormy sunny swift tidy";
constexpr std::string_view kNouns =
    "acorn anchor apple arrow badger barrel basket beacon beaver bell bishop bottle bridge bucket "
    "button cabin candle canyon castle cedar cellar chapel cherry circle clover comet cottage "
    "cricket crown desert dolphin dragon eagle ember engine falcon feather ferry fiddle finch "
    "flute forest fountain garden glacier goblet hammer harbor heron hornet island jacket jungle "
    "kettle kitten ladder lantern lemon lizard magnet maple marble meadow mirror monkey mountain "
    "needle oasis orchard otter oyster palace panther parrot pebble pencil pepper pillow planet "
    "pocket prairie puzzle rabbit ribbon rocket saddle salmon sparrow spider statue temple thunder "
    "ticket tiger tunnel turtle valley violin wagon walnut window";
constexpr std::string_view kConsonants = "bdfgklmnprstvz", kVowels = "aeiou";
constexpr int kSyllables = 3;

std::vector<std::string> words_of(std::string_view list) {
  std::vector<std::string> words;
  while (!list.empty()) {
    const size_t end = list.find(' ');
    words.emplace_back(list.substr(0, end));
    list.remove_prefix(end == std::string_view::npos ? list.size() : end + 1);
  }
  return words;
}

const std::vector<std::string>& adjectives() {
  static const std::vector<std::string> words = words_of(kAdjectives);
  return words;
}
const std::vector<std::string>& nouns() {
  static const std::vector<std::string> words = words_of(kNouns);
  return words;
}

}  // namespace

int64_t num_word_pairs() { return static_cast<int64_t>(adjectives().size() * nouns().size()); }

std::string word_pair(int64_t i) {
  const auto index = static_cast<size_t>(i);
  return adjectives()[index / nouns().size()] + "-" + nouns()[index % nouns().size()];
}

int64_t num_made_up_words() {
  int64_t count = 1;
  for (int s = 0; s < kSyllables; ++s) {
    count *= static_cast<int64_t>(kConsonants.size() * kVowels.size());
  }
  return count;
}

std::string made_up_word(int64_t i) {
  auto rest = static_cast<size_t>(i);
  std::string word;
  for (int s = 0; s < kSyllables; ++s) {
    word += kConsonants[rest % kConsonants.size()];
    rest /= kConsonants.size();
    word += kVowels[rest % kVowels.size()];
    rest /= kVowels.size();
  }
  return word;
}

}  // namespace cplm
