// The processes that train one model together: who they are (by the launcher's environment), the
// few collectives that training needs, and how the failure of one ends all. One process alone needs
// no launcher and no network, and runs the same code.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "cplm/base.h"

namespace cplm {

// ---- who we are
struct Launch {
  std::string launcher;  // "torchrun", "srun", "mpirun"; empty: one process alone
  int64_t rank = 0, size = 1;
  int64_t local_rank = 0, local_size = 1;  // on this machine
  std::string address;                     // where rank 0 listens
  int64_t port = 0;
  std::string job;                // the launcher's name of it, "" where it has none
  std::string attempt = "0";      // of an elastic launcher: a restart never meets older keys
  bool launcher_listens = false;  // torchrun's agent serves the key-value store itself

  bool alone() const { return size == 1; }
};
using Environment = std::function<std::optional<std::string>(const std::string& name)>;
// From RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT (torchrun and kin), else Slurm's of a
// job step, else Open MPI's or PMI's. Error(kBadConfig) naming the variable that is missing, not a
// number, or contradicts another.
Launch read_launch(const Environment& environment);
Launch read_launch();

// ---- collectives
// A collective under way. Its tensors must live until wait() has returned; without wait() it is
// abandoned when the process ends.
class PendingCollective {
 public:
  PendingCollective();
  ~PendingCollective();
  PendingCollective(PendingCollective&&) noexcept;
  PendingCollective& operator=(PendingCollective&&) noexcept;
  // On a CPU until it is done; on a GPU the current stream waits, the host does not.
  // Error(kPeerLost) when a peer is gone or does not answer in time.
  void wait();

 private:
  friend class Communicator;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

enum class ReduceOp { kSum, kMin, kMax };

// All ranks call the same collectives in the same order. Two groups: one on the device for tensors
// of the model, one on the host for what the hosts must agree on. Of one process, everything
// returns at once. Sums have one order for a given number of ranks, and all ranks get the same
// bits.
class Communicator {
 public:
  Communicator();  // one process
  // Joins the others: NCCL for tensors on a GPU, Gloo for the rest. Error(kPeerLost) naming rank,
  // address and port when not all have come within `timeout` (that long a collective waits, too),
  // when one that had come is gone, or when another run has the port. Error(kStopped) when any of
  // them was told to stop meanwhile (stop_requested()). To be called with SIGPIPE ignored.
  Communicator(const Launch& launch, at::Device device, std::chrono::seconds timeout);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int64_t rank() const;
  int64_t size() const;
  bool leads() const { return rank() == 0; }

  // In place. `tensor` is contiguous and on the communicator's device.
  PendingCollective all_reduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::kSum);
  PendingCollective broadcast(const at::Tensor& tensor);  // rank 0's
  // whole: size() parts of own's length; own becomes the sum of everyone's part of this rank.
  PendingCollective reduce_scatter(const at::Tensor& own, const at::Tensor& whole);
  // whole becomes everyone's `own`, in rank order; own may be a view of its place in there.
  PendingCollective all_gather(const at::Tensor& whole, const at::Tensor& own);
  // Among the hosts, CPU tensors.
  PendingCollective host_all_reduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::kSum);
  std::string host_broadcast(std::string_view bytes);  // rank 0's
  void barrier();

  // Rank 0 runs `work`, on files say; the others wait until it is done, however long that takes:
  // only without progress (makes_progress() from inside) for `timeout` all end.
  void leader_works(const std::function<void()>& work);

  // Where this rank is, for messages about those that fall behind. Cheap; call it every step.
  void at_step(int64_t step);
  // Still at that step, but at work: long validations and saves call it now and then, from any
  // thread.
  void makes_progress();
  // Tells the others why this rank ends, so that they end too, with the reason. Called after an
  // error, before anything that may wait; later calls change nothing. Rank 0 waits for the others
  // to have heard, two seconds at most. This process then ends within `timeout` and a few seconds,
  // with `code`, if it has not by itself.
  void announce_failure(const std::string& message, ExitCode code = ExitCode::kFailed) noexcept;

 private:
  friend class PendingCollective;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cplm
