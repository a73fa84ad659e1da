// Collectives by c10d: Gloo among hosts and for tensors on a CPU, NCCL for tensors on GPUs. The
// only file that sees c10d.
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#ifdef CPLM_CUDA
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

#include <ATen/ops/from_blob.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <thread>

#include "comm/own_address.h"
#include "comm/peer_watch.h"
#include "cplm/comm.h"

namespace cplm {
namespace {

using std::chrono::milliseconds;
using Work = c10::intrusive_ptr<c10d::Work>;

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

class StoreKeyValues : public KeyValues {
 public:
  explicit StoreKeyValues(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}
  void set(const std::string& key, const std::string& value) override { store_->set(key, value); }
  std::optional<std::string> get(const std::string& key) override {
    if (!store_->check({key})) return std::nullopt;
    return store_->get_to_str(key);
  }
  std::string set_if_absent(const std::string& key, const std::string& value) override {
    return store_->compareSet(key, std::string(), value);
  }

 private:
  c10::intrusive_ptr<c10d::Store> store_;
};

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

c10::intrusive_ptr<c10d::Store> connect(const Launch& launch, milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(launch.port);
  options.isServer = launch.rank == 0 && !launch.launcher_listens;
  options.waitWorkers = false;
  options.timeout = timeout;
  return c10::make_intrusive<c10d::TCPStore>(launch.address, options);
}

c10::intrusive_ptr<c10d::Backend> make_gloo(const c10::intrusive_ptr<c10d::Store>& store,
                                            const std::string& prefix, const Launch& launch,
                                            milliseconds timeout) {
  const auto options = c10d::ProcessGroupGloo::Options::create(timeout);
  const std::string address = own_address(launch);
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
  if (interface != nullptr && *interface != '\0') {
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForInterface(interface));
  } else if (!address.empty()) {
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(address));
  } else {
    options->devices.push_back(c10d::ProcessGroupGloo::createDefaultDevice());
  }
  return c10::make_intrusive<c10d::ProcessGroupGloo>(
      c10::make_intrusive<c10d::PrefixStore>(prefix, store), static_cast<int>(launch.rank),
      static_cast<int>(launch.size), options);
}

c10::intrusive_ptr<c10d::Backend> make_nccl(const c10::intrusive_ptr<c10d::Store>& store,
                                            const Launch& launch, at::Device device,
                                            milliseconds timeout) {
#ifdef CPLM_CUDA
  // Its own watchdog would end the process with a stack trace; ours ends it with a reason.
  ::setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", 0);
  const auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  auto group = c10::make_intrusive<c10d::ProcessGroupNCCL>(
      c10::make_intrusive<c10d::PrefixStore>("nccl", store), static_cast<int>(launch.rank),
      static_cast<int>(launch.size), options);
  group->setBoundDeviceId(device);
  return group;
#else
  (void)store, (void)launch, (void)timeout;
  throw Error(str("this build has no CUDA, so no collectives on ", device.str()),
              ExitCode::kBadConfig);
#endif
}

// After a failure nothing may wait for ever: neither a store whose machine is silent, nor threads
// that are joined at exit.
void end_soon(int64_t rank, int64_t size) {
  std::thread([rank, size] {
    std::this_thread::sleep_for(std::chrono::seconds(15));
    const std::string line =
        str("error: rank ", rank, " of ", size,
            " lost a peer, and the launch's key-value store does not answer\n");
    if (::write(STDERR_FILENO, line.data(), line.size()) < 0) std::_Exit(1);
    std::_Exit(static_cast<int>(ExitCode::kPeerLost));
  }).detach();
}

}  // namespace

struct Communicator::Impl {
  int64_t rank = 0, size = 1;
  c10::intrusive_ptr<c10d::Store> store;
  c10::intrusive_ptr<c10d::Backend> tensors, hosts;
  std::unique_ptr<PeerWatch> watch;
  std::atomic<bool> failed = false;  // read by the watch's thread

  // Runs `call` and turns what c10d throws into an Error that says which rank is to blame.
  template <class Call>
  auto guarded(Call&& call) -> decltype(call()) {
    try {
      return call();
    } catch (const std::exception& error) {
      failed = true;
      end_soon(rank, size);
      throw Error(str("rank ", rank, " of ", size, ": ", watch->explain(), " (",
                      first_line(error.what()), ")"),
                  ExitCode::kPeerLost);
    }
  }
  template <class Call>
  PendingCollective start(std::vector<at::Tensor> operands, Call&& call);
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

Communicator::Communicator(const Launch& launch, at::Device device, std::chrono::seconds timeout)
    : impl_(std::make_unique<Impl>()) {
  impl_->rank = launch.rank;
  impl_->size = launch.size;
  if (launch.alone()) return;
  // What c10d tells of a lost connection is a stack trace; the reason is ours to tell.
  if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) FLAGS_caffe2_log_level = c10::GLOG_FATAL;
  try {
    const auto base = connect(launch, timeout);
    impl_->store = c10::make_intrusive<c10d::PrefixStore>(str("cplm/", launch.attempt), base);
    impl_->hosts = make_gloo(impl_->store, "hosts", launch, timeout);
    impl_->tensors = device.is_cpu() ? make_gloo(impl_->store, "tensors", launch, timeout)
                                     : make_nccl(impl_->store, launch, device, timeout);
    // A connection of its own: the watch speaks while this thread may wait inside the store.
    auto watched = std::make_unique<StoreKeyValues>(
        c10::make_intrusive<c10d::PrefixStore>(str("cplm/", launch.attempt), base->clone()));
    PeerLimits limits;
    limits.no_progress = timeout;
    Impl* impl = impl_.get();  // outlives this object after a failure
    impl_->watch = std::make_unique<PeerWatch>(
        std::move(watched), launch.rank, launch.size, limits, [impl](const std::string& reason) {
          if (impl->failed) return;  // the main thread is about to end, and tells why
          log::error(str("rank ", impl->rank, " of ", impl->size, " ends: ", reason));
          log::flush();
          std::_Exit(static_cast<int>(ExitCode::kPeerLost));
        });
  } catch (const std::exception& error) {
    throw Error(str("rank ", launch.rank, " of ", launch.size, " could not join the others at ",
                    launch.address, " port ", launch.port, " within ", timeout.count(),
                    " s: ", first_line(error.what()),
                    "; see that all ranks were started, and that the port is free and reachable"),
                ExitCode::kPeerLost);
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

void Communicator::announce_failure(const std::string& message) noexcept {
  if (impl_->watch == nullptr || impl_->failed) return;
  impl_->failed = true;
  impl_->watch->announce(message);
}

}  // namespace cplm
