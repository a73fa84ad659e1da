// See groups.h.
#include "comm/groups.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#ifdef CPLM_CUDA
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

#include <cstdlib>

#include "comm/own_address.h"

namespace cplm {

using std::chrono::milliseconds;

namespace {

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

c10d::TCPStoreOptions store_options(const Launch& launch) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(launch.port);
  options.waitWorkers = false;
  options.timeout = milliseconds(1000);  // of one attempt
  return options;
}

// Connects to itself, so that a wrong address keeps nobody from hearing that the port is taken.
StorePointer listen(const Launch& launch) try {
  c10d::TCPStoreOptions options = store_options(launch);
  options.isServer = true;
  return c10::make_intrusive<c10d::TCPStore>("localhost", options);
} catch (const std::exception& error) {
  throw Error(str("rank 0 of ", launch.size, " cannot listen at port ", launch.port, ": ",
                  first_line(error.what()),
                  "; see that no other run has the port, or set another MASTER_PORT"),
              ExitCode::kPeerLost);
}

StorePointer connect(const Launch& launch, const Joining& joining) {
  while (true) {
    try {
      return c10::make_intrusive<c10d::TCPStore>(launch.address, store_options(launch));
    } catch (const std::exception& error) {
      if (joining.overdue()) throw joining.failed(first_line(error.what()));
    }
    joining.pause();  // heeds a signal only now: a rank that gets in tells the others of it
  }
}

}  // namespace

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

StorePointer open_store(const Launch& launch, const Joining& joining, milliseconds timeout) {
  const bool listens = launch.rank == 0 && !launch.launcher_listens;
  StorePointer store = listens ? listen(launch) : connect(launch, joining);
  store->setTimeout(timeout);
  return store;
}

StorePointer run_store(const StorePointer& store, const Launch& launch) {
  return c10::make_intrusive<c10d::PrefixStore>(run_prefix(launch), store);
}

StorePointer own_connection(const StorePointer& store, const Launch& launch) {
  return run_store(store->clone(), launch);
}

std::unique_ptr<KeyValues> key_values(StorePointer store) {
  return std::make_unique<StoreKeyValues>(std::move(store));
}

GroupPointer make_gloo(const StorePointer& store, const std::string& prefix, const Launch& launch,
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

GroupPointer make_nccl(const StorePointer& store, const Launch& launch, at::Device device,
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

}  // namespace cplm
