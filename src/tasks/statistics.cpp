// See statistics.h.
#include "tasks/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>

#include "runs/json_number.h"

namespace cplm {
namespace {

void drop_nan(std::vector<double>& numbers) {
  std::erase_if(numbers, [](double x) { return std::isnan(x); });
}

// sorted, not empty.
double quantile(const std::vector<double>& sorted, double share) {
  const double place = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], place - static_cast<double>(below));
}

}  // namespace

double mean_of(const std::vector<double>& numbers) {
  std::vector<double> known = numbers;
  drop_nan(known);
  if (known.empty()) return std::numeric_limits<double>::quiet_NaN();
  return std::accumulate(known.begin(), known.end(), 0.0) / static_cast<double>(known.size());
}

nlohmann::ordered_json distribution_json(std::vector<double> numbers) {
  drop_nan(numbers);
  if (numbers.empty()) return nullptr;
  std::sort(numbers.begin(), numbers.end());
  nlohmann::ordered_json json = {{"mean", json_number(mean_of(numbers))}};
  for (const auto& [name, share] :
       {std::pair{"q05", 0.05}, {"q25", 0.25}, {"q50", 0.5}, {"q75", 0.75}, {"q95", 0.95}}) {
    json[name] = json_number(quantile(numbers, share));
  }
  json["count"] = numbers.size();
  return json;
}

}  // namespace cplm
