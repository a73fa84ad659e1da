// What the sources of the training data give to a run, and whether they can.
#include "cplm/base.h"
#include "cplm/train.h"

namespace cplm {
namespace {

double total_weight(const std::vector<WindowSource>& sources) {
  double total = 0;
  for (const WindowSource& source : sources) total += source.weight;
  return total;
}

}  // namespace

std::vector<SourceShare> source_shares(const TrainingOrder& order, int64_t num_sequences) {
  const std::vector<int64_t> taken = order.taken(num_sequences);
  const double total = total_weight(order.sources());
  std::vector<SourceShare> shares;
  for (size_t i = 0; i < taken.size(); ++i) {
    const WindowSource& source = order.sources()[i];
    const auto sequences = static_cast<double>(taken[i]);
    shares.push_back({source.path, source.weight / total,
                      num_sequences > 0 ? sequences / static_cast<double>(num_sequences) : 0,
                      sequences / static_cast<double>(source.num_windows)});
  }
  return shares;
}

void check_enough_windows(const std::vector<WindowSource>& sources, const Config& config) {
  const double total = total_weight(sources);
  for (const WindowSource& source : sources) {
    const double needed = source.weight / total * static_cast<double>(config.batch_sequences());
    if (static_cast<double>(source.num_windows) >= needed) continue;
    const bool is_whole = sources.size() == 1;
    throw Error(str("data.train: ", source.num_windows, " windows of ", config.data.sequence_length,
                    " tokens", is_whole ? "" : " in " + source.path, ", fewer than ",
                    is_whole ? "" : str(needed, ", its share of "), "one batch of ",
                    config.batch_sequences(), " sequences; take more data",
                    is_whole ? "" : ", a smaller weight", " or a smaller train.batch_tokens"),
                ExitCode::kBadData);
  }
}

}  // namespace cplm
