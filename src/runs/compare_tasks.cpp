// Evaluations during training, as numbers of an arm.
#include <algorithm>
#include <map>

#include "runs/compare.h"

namespace cplm {
namespace {

using CurveKey = std::pair<std::string, std::string>;  // task, number

// By step, the value of each run that has it.
struct Values {
  std::map<int64_t, std::vector<double>> values, tokens;
};

}  // namespace

std::vector<TaskCurve> task_curves(const std::vector<const ComparedRun*>& runs) {
  std::vector<CurveKey> keys;  // in the order of the files
  std::map<CurveKey, Values> found;
  for (const ComparedRun* run : runs) {
    for (const TaskRecord& record : run->tasks) {
      for (const auto& [name, value] : record.numbers) {
        const CurveKey key{record.task, name};
        if (!found.contains(key)) keys.push_back(key);
        found[key].values[record.step].push_back(value);
        found[key].tokens[record.step].push_back(static_cast<double>(record.tokens));
      }
    }
  }
  std::vector<TaskCurve> curves;
  for (const CurveKey& key : keys) {
    TaskCurve curve{key.first, key.second, {}};
    for (const auto& [step, values] : found[key].values) {
      if (values.size() != runs.size()) continue;
      curve.points.push_back({step, spread_of(found[key].tokens[step]).mean, spread_of(values)});
    }
    if (!curve.points.empty()) curves.push_back(std::move(curve));
  }
  return curves;
}

}  // namespace cplm
