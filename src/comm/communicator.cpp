// Collectives by c10d: Gloo among hosts and for tensors on a CPU, NCCL for tensors on GPUs. With
// groups.cpp the only file that sees c10d.
#include <ATen/ops/from_blob.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "comm/groups.h"
#include "comm/peer_watch.h"
#include "cplm/comm.h"

namespace cplm {
namespace {

using std::chrono::milliseconds;
using Work = c10::intrusive_ptr<c10d::Work>;

c10d::ReduceOp::RedOpType library_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return c10d::ReduceOp::SUM;
    case ReduceOp::kMin:
      return c10d::ReduceOp::MIN;
    case ReduceOp::kMax:
      return c10d::ReduceOp::MAX;
  }
  return c10d::ReduceOp::SUM;
}

// After a failure nothing may wait for ever: neither a store whose machine is silent, nor threads
// that are joined at exit, nor a save under way.
void end_within(std::chrono::seconds limit, const std::string& who, ExitCode code) {
  std::thread([limit, who, code] {
    std::this_thread::sleep_for(limit);
    const std::string line =
        str("error: ", who, " was still not at its end ", limit.count(), " s after its failure\n");
    if (::write(STDERR_FILENO, line.data(), line.size()) < 0) std::_Exit(1);
    std::_Exit(static_cast<int>(code));
  }).detach();
}

constexpr std::chrono::seconds kEndAfterLoss{8};

// "1, 3, 4 and 12 more"
std::string list_of(const std::vector<int64_t>& ranks) {
  constexpr size_t kNamed = 8;
  std::string text;
  for (size_t i = 0; i < std::min(kNamed, ranks.size()); ++i) {
    text += str(i == 0 ? "" : ", ", ranks[i]);
  }
  return ranks.size() <= kNamed ? text : str(text, " and ", ranks.size() - kNamed, " more");
}

}  // namespace

struct Communicator::Impl {
  int64_t rank = 0, size = 1;
  std::chrono::seconds timeout{0};
  GroupPointer tensors, hosts;
  std::unique_ptr<PeerWatch> watch;
  std::atomic<bool> failed = false;  // read by the watch's threads
  int64_t num_led = 0;               // leader_works() so far

  std::string who() const { return str("rank ", rank, " of ", size); }

  // Runs `call` and turns what c10d throws into an Error that says which rank is to blame.
  template <class Call>
  auto guarded(Call&& call) -> decltype(call()) {
    try {
      return call();
    } catch (const std::exception& error) {
      failed = true;
      end_within(kEndAfterLoss, who(), ExitCode::kPeerLost);
      const RunEnd end = watch->explain();
      const std::string what = first_line(error.what());
      throw Error(str(who(), ": ", end.reason, what == end.reason ? "" : " (" + what + ")"),
                  end.code);
    }
  }
  template <class Call>
  PendingCollective start(std::vector<at::Tensor> operands, Call&& call);

  void join(const Launch& launch, at::Device device);
  void start_watch(std::unique_ptr<KeyValues> store);
  void wait_for_all(const Joining& joining);
};

struct PendingCollective::Impl {
  Communicator::Impl* owner;
  Work work;
  std::vector<at::Tensor> tensors;  // alive until it is done
};

PendingCollective::PendingCollective() = default;
PendingCollective::~PendingCollective() = default;
PendingCollective::PendingCollective(PendingCollective&&) noexcept = default;
PendingCollective& PendingCollective::operator=(PendingCollective&&) noexcept = default;

void PendingCollective::wait() {
  if (impl_ == nullptr) return;
  impl_->owner->guarded([&] { return impl_->work->wait(); });
  impl_.reset();
}

Communicator::Communicator() : impl_(std::make_unique<Impl>()) {}

void Communicator::Impl::start_watch(std::unique_ptr<KeyValues> store) {
  PeerLimits limits;
  limits.no_progress = timeout;
  // This outlives the communicator after a failure.
  watch =
      std::make_unique<PeerWatch>(std::move(store), rank, size, limits, [this](const RunEnd& end) {
        if (failed) return;  // the main thread is about to end, and tells why
        log::error(str(who(), " ends: ", end.reason));
        log::flush();
        std::_Exit(static_cast<int>(end.code));
      });
}

// The watch answers signals here: it tells the others.
void Communicator::Impl::wait_for_all(const Joining& joining) {
  while (!watch->all_came()) {
    if (const auto end = watch->heard()) {
      watch->let_others_hear();
      throw joining.ended(end->reason, end->code);
    }
    if (joining.overdue()) {
      throw joining.failed(str("not there yet: rank ", list_of(watch->missing_ranks())));
    }
    watch->makes_progress();
    std::this_thread::sleep_for(milliseconds(50));
  }
}

void Communicator::Impl::join(const Launch& launch, at::Device device) {
  const Joining joining(launch, timeout);
  try {
    const StorePointer store = open_store(launch, joining, timeout);
    find_own_run(*key_values(store), launch, joining);
    // A connection of its own: the watch speaks while this thread may wait inside the store.
    auto watched = key_values(own_connection(store, launch));
    take_place(*watched, launch);
    start_watch(std::move(watched));
    wait_for_all(joining);
    const StorePointer keys = run_store(store, launch);
    hosts = make_gloo(keys, "hosts", launch, timeout);
    tensors = device.is_cpu() ? make_gloo(keys, "tensors", launch, timeout)
                              : make_nccl(keys, launch, device, timeout);
    watch->joined();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    const auto end = watch ? watch->heard() : std::nullopt;
    throw end ? joining.ended(end->reason, end->code) : joining.failed(first_line(error.what()));
  }
}

Communicator::Communicator(const Launch& launch, at::Device device, std::chrono::seconds timeout)
    : impl_(std::make_unique<Impl>()) {
  impl_->rank = launch.rank;
  impl_->size = launch.size;
  impl_->timeout = timeout;
  if (launch.alone()) return;
  // What c10d tells of a lost connection is a stack trace; the reason is ours to tell.
  if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) FLAGS_caffe2_log_level = c10::GLOG_FATAL;
  try {
    impl_->join(launch, device);
  } catch (const Error& error) {
    announce_failure(error.what(), error.code());
    if (impl_->watch != nullptr) static_cast<void>(impl_.release());  // as ~Communicator
    throw;
  }
}

// After a failure a group's threads may wait for a peer that will never come: they are left behind
// for the process's end instead of being joined.
Communicator::~Communicator() {
  if (impl_->size == 1) return;
  if (!impl_->failed) {
    impl_->watch->leave();
    return;
  }
  static_cast<void>(impl_.release());
}

int64_t Communicator::rank() const { return impl_->rank; }
int64_t Communicator::size() const { return impl_->size; }

template <class Call>
PendingCollective Communicator::Impl::start(std::vector<at::Tensor> operands, Call&& call) {
  PendingCollective pending;
  if (size == 1) return pending;
  Work work = guarded([&] { return call(operands); });
  pending.impl_ = std::make_unique<PendingCollective::Impl>(
      PendingCollective::Impl{this, std::move(work), std::move(operands)});
  return pending;
}

PendingCollective Communicator::all_reduce(const at::Tensor& tensor, ReduceOp op) {
  return impl_->start({tensor}, [&](std::vector<at::Tensor>& tensors) {
    c10d::AllreduceOptions options;
    options.reduceOp = library_op(op);
    return impl_->tensors->allreduce(tensors, options);
  });
}

PendingCollective Communicator::host_all_reduce(const at::Tensor& tensor, ReduceOp op) {
  return impl_->start({tensor}, [&](std::vector<at::Tensor>& tensors) {
    c10d::AllreduceOptions options;
    options.reduceOp = library_op(op);
    return impl_->hosts->allreduce(tensors, options);
  });
}

PendingCollective Communicator::broadcast(const at::Tensor& tensor) {
  return impl_->start({tensor}, [&](std::vector<at::Tensor>& tensors) {
    return impl_->tensors->broadcast(tensors);
  });
}

PendingCollective Communicator::reduce_scatter(const at::Tensor& own, const at::Tensor& whole) {
  if (impl_->size == 1) own.copy_(whole);
  return impl_->start({own, whole}, [&](std::vector<at::Tensor>& tensors) {
    return impl_->tensors->_reduce_scatter_base(tensors[0], tensors[1]);
  });
}

PendingCollective Communicator::all_gather(const at::Tensor& whole, const at::Tensor& own) {
  if (impl_->size == 1) whole.copy_(own);
  return impl_->start({whole, own}, [&](std::vector<at::Tensor>& tensors) {
    return impl_->tensors->_allgather_base(tensors[0], tensors[1]);
  });
}

std::string Communicator::host_broadcast(std::string_view bytes) {
  if (impl_->size == 1) return std::string(bytes);
  const auto send = [&](const at::Tensor& tensor) {
    impl_
        ->start({tensor},
                [&](std::vector<at::Tensor>& tensors) { return impl_->hosts->broadcast(tensors); })
        .wait();
  };
  int64_t length = static_cast<int64_t>(bytes.size());
  send(at::from_blob(&length, {1}, at::kLong));
  std::string received = leads() ? std::string(bytes) : std::string(static_cast<size_t>(length), 0);
  if (length > 0) send(at::from_blob(received.data(), {length}, at::kByte));
  return received;
}

void Communicator::barrier() {
  int64_t nothing = 0;
  host_all_reduce(at::from_blob(&nothing, {1}, at::kLong)).wait();
}

void Communicator::at_step(int64_t step) {
  if (impl_->watch) impl_->watch->at_step(step);
}

void Communicator::makes_progress() {
  if (impl_->watch) impl_->watch->makes_progress();
}

void Communicator::leader_works(const std::function<void()>& work) {
  if (impl_->size == 1) return work();
  const int64_t number = ++impl_->num_led;
  if (leads()) work();
  impl_->guarded([&] {
    leads() ? impl_->watch->leader_is_done(number) : impl_->watch->wait_for_leader(number);
  });
}

void Communicator::announce_failure(const std::string& message, ExitCode code) noexcept {
  if (impl_->watch == nullptr || impl_->failed) return;
  impl_->failed = true;
  end_within(impl_->timeout + kEndAfterLoss, impl_->who(), code);
  impl_->watch->announce(first_line(message));
}

}  // namespace cplm
