// See result_table.h.
#include "tasks/result_table.h"

#include <cmath>
#include <cstdio>

#include "cplm/base.h"
#include "runs/csv.h"
#include "runs/text_table.h"

namespace cplm {
namespace {

template <class... Visitors>
struct Overloaded : Visitors... {
  using Visitors::operator()...;
};
template <class... Visitors>
Overloaded(Visitors...) -> Overloaded<Visitors...>;

bool holds_text(const std::vector<std::vector<ResultTable::Cell>>& rows, size_t column) {
  for (const auto& row : rows) {
    if (std::holds_alternative<std::string>(row[column])) return true;
  }
  return false;
}

}  // namespace

std::string shown_number(double value, int digits) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[64];
  const bool large = std::abs(value) >= 1e9;
  std::snprintf(buffer, sizeof buffer, large ? "%.*e" : "%.*f", large ? 4 : digits, value);
  return buffer;
}

std::string shown_share(double share) {
  if (share == 0) return "0";
  return share < 1 ? "1/" + shown_number(1 / share, 2) : shown_number(share, 2);
}

void ResultTable::add_row(std::vector<Cell> cells) {
  CPLM_CHECK(cells.size() == columns_.size(), "a table of ", columns_.size(),
             " columns was given a row of ", cells.size(), " cells");
  rows_.push_back(std::move(cells));
}

std::string ResultTable::text() const {
  std::vector<TextTable::Column> columns;
  for (size_t i = 0; i < columns_.size(); ++i) {
    columns.push_back({columns_[i].title, holds_text(rows_, i) ? Align::kLeft : Align::kRight});
  }
  TextTable table(columns);
  for (const auto& row : rows_) {
    std::vector<std::string> cells;
    for (size_t i = 0; i < row.size(); ++i) {
      const int digits = columns_[i].digits;
      cells.push_back(
          std::visit(Overloaded{[](std::monostate) { return std::string("-"); },
                                [](const std::string& text) { return text; },
                                [](int64_t value) { return with_commas(value); },
                                [&](double value) { return shown_number(value, digits); }},
                     row[i]));
    }
    table.add_row(cells);
  }
  return table.text();
}

std::string ResultTable::csv() const {
  std::vector<std::string> names;
  names.reserve(columns_.size());
  for (const Column& column : columns_) names.push_back(csv_text(column.name));
  std::string text = join(names, ",") + "\n";
  for (const auto& row : rows_) {
    std::vector<std::string> cells;
    cells.reserve(row.size());
    for (const Cell& cell : row) {
      cells.push_back(
          std::visit(Overloaded{[](std::monostate) { return std::string(); },
                                [](const std::string& value) { return csv_text(value); },
                                [](auto value) { return csv_number(value); }},
                     cell));
    }
    text += join(cells, ",") + "\n";
  }
  return text;
}

}  // namespace cplm
