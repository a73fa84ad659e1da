// See rank_agreement.h.
#include "train/rank_agreement.h"

#include "cplm/base.h"

namespace cplm {
namespace {

std::string describe(const TrainOptions& options) {
  return str("--resume ", options.resume, options.overwrite ? " --overwrite" : "",
             options.stop_after ? str(" --stop-after ", *options.stop_after) : "");
}

void check_same_text(const std::string& what, const std::string& own, Communicator& ranks) {
  const std::string first = ranks.host_broadcast(own);
  if (own == first) return;
  throw Error(str("rank ", ranks.rank(), "'s ", what, " is not rank 0's: ", first, " there, ", own,
                  " here; start all ranks alike"),
              ExitCode::kBadConfig);
}

}  // namespace

void check_same_start(const Config& config, const TrainOptions& options, Communicator& ranks) {
  if (ranks.size() == 1) return;
  check_same_text("program", str("cplm ", CPLM_VERSION), ranks);
  check_same_text("command line", describe(options), ranks);
  const std::string own = dump_config(config), first = ranks.host_broadcast(own);
  if (own == first) return;
  std::vector<std::string> differences;
  for (const ConfigChange& change :
       compare_configs(parse_config(first, "rank 0's config"), config)) {
    differences.push_back(str(change.key, ": ", change.before, " there, ", change.now, " here"));
  }
  throw Error(str("rank ", ranks.rank(), "'s config is not rank 0's: ", join(differences, "; "),
                  "; start all ranks with the same file and options"),
              ExitCode::kBadConfig);
}

void check_same_shards(const std::string& key, const std::string& sha256, Communicator& ranks) {
  if (ranks.host_broadcast(sha256) == sha256) return;
  throw Error(str(key, ": rank ", ranks.rank(),
                  " sees other shards than rank 0; all machines need the same files"),
              ExitCode::kBadData);
}

bool equal_on_all_ranks(const at::Tensor& flat, Communicator& ranks) {
  const at::ScalarType word = flat.element_size() == 2   ? at::kShort
                              : flat.element_size() == 4 ? at::kInt
                                                         : at::kLong;
  const at::Tensor sum = flat.view(word).sum(at::kLong).cpu().view({1});
  const at::Tensor least = sum.clone(), most = sum.clone();
  ranks.host_all_reduce(least, ReduceOp::kMin).wait();
  ranks.host_all_reduce(most, ReduceOp::kMax).wait();
  return *least.const_data_ptr<int64_t>() == *most.const_data_ptr<int64_t>();
}

}  // namespace cplm
