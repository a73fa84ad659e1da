// Widths count UTF-8 characters, so that names in any language align.
#include "runs/text_table.h"

#include <algorithm>

#include "cplm/base.h"

namespace cplm {
namespace {

size_t width_of(const std::string& text) {
  const auto begins_character = [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  };
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), begins_character));
}

std::string trimmed_end(std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

}  // namespace

void TextTable::add_row(std::vector<std::string> cells) {
  CPLM_CHECK(cells.size() == columns_.size(), "a table of ", columns_.size(),
             " columns was given a row of ", cells.size(), " cells");
  rows_.push_back(std::move(cells));
}

std::string TextTable::text() const {
  std::vector<std::string> titles;
  std::vector<size_t> widths;
  for (size_t c = 0; c < columns_.size(); ++c) {
    titles.push_back(columns_[c].title);
    widths.push_back(width_of(columns_[c].title));
    for (const auto& row : rows_) widths[c] = std::max(widths[c], width_of(row[c]));
  }
  const auto line = [&](const std::vector<std::string>& cells) {
    std::string out;
    for (size_t c = 0; c < cells.size(); ++c) {
      const std::string padding(widths[c] - width_of(cells[c]), ' ');
      if (c > 0) out += "  ";
      out += columns_[c].align == Align::kLeft ? cells[c] + padding : padding + cells[c];
    }
    return trimmed_end(out) + "\n";
  };
  std::vector<std::string> rule;
  rule.reserve(widths.size());
  for (const size_t width : widths) rule.emplace_back(width, '-');
  std::string text = line(titles) + line(rule);
  for (const auto& row : rows_) text += line(row);
  return text;
}

}  // namespace cplm
