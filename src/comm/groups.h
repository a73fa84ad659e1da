// The store and the groups of c10d that a communicator stands on: made once, while joining.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <string>

#include "comm/rendezvous.h"

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace cplm {

using StorePointer = c10::intrusive_ptr<c10d::Store>;
using GroupPointer = c10::intrusive_ptr<c10d::Backend>;

std::string first_line(const std::string& text);

// The launch's key-value store, which rank 0 opens unless the launcher has. Tries until `joining`
// is overdue, and heeds its signals. `timeout`: of requests that wait.
StorePointer open_store(const Launch& launch, const Joining& joining,
                        std::chrono::milliseconds timeout);
// The same with keys of the run alone, over a connection of its own.
StorePointer own_connection(const StorePointer& store, const Launch& launch);
StorePointer run_store(const StorePointer& store, const Launch& launch);
std::unique_ptr<KeyValues> key_values(StorePointer store);

GroupPointer make_gloo(const StorePointer& store, const std::string& prefix, const Launch& launch,
                       std::chrono::milliseconds timeout);
GroupPointer make_nccl(const StorePointer& store, const Launch& launch, at::Device device,
                       std::chrono::milliseconds timeout);

}  // namespace cplm
