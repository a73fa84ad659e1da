// What command-line arguments must be, as CLI11 takes checks: the text -> what is wrong, or "". Its
// own ranges tell the limits of a double, and take nan; its own whole numbers take 010 for 8, and
// what is too large for the largest.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace CLI {
class App;
}

namespace cplm {

using ArgumentCheck = std::function<std::string(const std::string&)>;
ArgumentCheck whole_from(int64_t least);
ArgumentCheck whole_between(int64_t least, int64_t most);
ArgumentCheck number_between(double least, double most);
std::string seed_problem(const std::string& text);
// Gives its check to every option of the command and of those below that CLI11 reads as a whole
// number. To be called once all are added.
void check_whole_numbers(CLI::App& command);

// The number that all of the text spells in plain digits: as in configs no leading zero, no
// separators, no other base; nothing for those and for what Number (int64_t, uint64_t) cannot hold.
template <class Number>
std::optional<Number> read_whole_number(std::string_view text);
// The end of a message: "found 010; write 10". The text may end with `suffix`, a unit.
std::string found_number(std::string_view text, std::string_view suffix = "");

}  // namespace cplm
