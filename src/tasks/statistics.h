// What reports tell of many numbers: mean and quantiles.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

namespace cplm {

// {"mean", "q05", "q25", "q50", "q75", "q95", "count"} of the numbers that are not NaN, quantiles
// interpolated between neighbours; null of none.
nlohmann::ordered_json distribution_json(std::vector<double> numbers);
double mean_of(const std::vector<double>& numbers);  // of those that are not NaN; NaN of none

}  // namespace cplm
