// What a task found, cell by cell: shown as a text table, and written as CSV.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace cplm {

class ResultTable {
 public:
  // Nothing, text, a whole number, or one that is shown with its column's digits.
  using Cell = std::variant<std::monostate, std::string, int64_t, double>;
  struct Column {
    std::string name;   // of the CSV
    std::string title;  // on the console
    int digits = 4;     // behind the point, on the console
  };
  explicit ResultTable(std::vector<Column> columns) : columns_(std::move(columns)) {}
  void add_row(std::vector<Cell> cells);  // one a column
  std::string text() const;
  std::string csv() const;  // doubles as their shortest exact decimal

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<Cell>> rows_;
};

// 12.3457 with 4 digits; exp(700.1) or inf for what is too large to read.
std::string shown_number(double value, int digits);
// A quotient as people say it: 1/12.00, 1.51, 0.
std::string shown_share(double share);

}  // namespace cplm
