// See peer_watch.h. Keys: beat/R "step count", failure "rank R: why", left/R, heard/R.
#include "comm/peer_watch.h"

#include <exception>
#include <utility>

#include "cplm/base.h"

namespace cplm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

const std::string kFailure = "failure";
const std::string kStoreGone =
    "rank 0 or the launcher is gone, and with it the launch's key-value store";

double seconds(milliseconds duration) { return static_cast<double>(duration.count()) / 1000.0; }

}  // namespace

PeerWatch::PeerWatch(std::unique_ptr<KeyValues> store, int64_t rank, int64_t size,
                     const PeerLimits& limits,
                     std::function<void(const std::string& reason)> on_failure)
    : store_(std::move(store)),
      rank_(rank),
      size_(size),
      limits_(limits),
      on_failure_(std::move(on_failure)),
      progress_(Clock::now()),
      next_{"", Clock::now()} {
  beat();
  thread_ = std::thread([this] { watch(); });
}

PeerWatch::~PeerWatch() { leave(); }

std::string PeerWatch::key_of(const std::string& what, int64_t rank) const {
  return str(what, "/", rank);
}

bool PeerWatch::sleep(milliseconds duration) {
  std::unique_lock lock(mutex_);
  return !ends_.wait_for(lock, duration, [this] { return ending_; });
}

void PeerWatch::at_step(int64_t step) {
  const std::lock_guard lock(mutex_);
  step_ = step;
  progress_ = Clock::now();
}

void PeerWatch::makes_progress() {
  const std::lock_guard lock(mutex_);
  progress_ = Clock::now();
}

void PeerWatch::beat() {
  int64_t step = 0;
  {
    const std::lock_guard lock(mutex_);
    step = step_;
  }
  const std::lock_guard lock(store_mutex_);
  store_->set(key_of("beat", rank_), str(step, " ", ++beats_));
}

// Why the run cannot go on, if so. Each rank looks after the next one, so that the store sees a few
// requests a second from each, whatever their number.
std::optional<std::string> PeerWatch::find_failure() {
  const int64_t next = (rank_ + 1) % size_;
  const std::lock_guard lock(store_mutex_);
  if (const auto failure = store_->get(kFailure)) return failure;
  const std::string sign = store_->get(key_of("beat", next)).value_or("");
  if (sign != next_.beat) {
    next_ = {sign, Clock::now()};
  } else if (Clock::now() - next_.since > limits_.silence && !store_->get(key_of("left", next))) {
    return store_->set_if_absent(
        kFailure, str("rank ", next, " has shown no sign of life for ", seconds(limits_.silence),
                      " s: its process or machine is gone, or the network to it"));
  }
  return std::nullopt;
}

std::optional<std::string> PeerWatch::stuck() {
  const std::lock_guard lock(mutex_);
  if (Clock::now() - progress_ < limits_.no_progress) return std::nullopt;
  return str("rank ", rank_, " made no progress for ", seconds(limits_.no_progress), " s, at step ",
             step_);
}

void PeerWatch::watch() {
  std::optional<std::string> reason;
  while (!reason && sleep(limits_.poll)) {
    try {
      beat();
      reason = find_failure();
      if (reason) break;
      reason = stuck();
      if (!reason) continue;
      const std::lock_guard lock(store_mutex_);
      reason = store_->set_if_absent(kFailure, *reason);
    } catch (const std::exception&) {
      reason = kStoreGone;
    }
  }
  if (!reason) return;
  {
    const std::lock_guard lock(mutex_);
    heard_ = reason;
  }
  try {
    const std::lock_guard lock(store_mutex_);
    store_->set(key_of("heard", rank_), "1");
  } catch (const std::exception&) {  // the store is gone: nobody waits there
  }
  if (sleep(limits_.grace)) on_failure_(*reason);
}

void PeerWatch::wait_for_all(const std::string& key, milliseconds at_most) noexcept {
  const Clock::time_point end = Clock::now() + at_most;
  int64_t rank = 0;
  while (rank < size_ && Clock::now() < end) {
    try {
      const std::lock_guard lock(store_mutex_);
      if (rank == rank_ || store_->get(key_of(key, rank))) {
        rank += 1;
        continue;
      }
    } catch (const std::exception&) {
      return;
    }
    std::this_thread::sleep_for(milliseconds(20));
  }
}

void PeerWatch::announce(const std::string& message) noexcept {
  try {
    const std::lock_guard lock(store_mutex_);
    store_->set_if_absent(kFailure, str("rank ", rank_, ": ", message));
    store_->set(key_of("heard", rank_), "1");
  } catch (const std::exception&) {
    return;  // the store is gone, so the others end for that
  }
  if (rank_ == 0) wait_for_all("heard", 8 * limits_.poll);
}

// Of every rank, "left" for those that have.
std::vector<std::string> PeerWatch::signs() {
  const std::lock_guard lock(store_mutex_);
  std::vector<std::string> all;
  for (int64_t rank = 0; rank < size_; ++rank) {
    const bool left = store_->get(key_of("left", rank)).has_value();
    all.push_back(left ? "left" : store_->get(key_of("beat", rank)).value_or(""));
  }
  return all;
}

std::optional<std::string> PeerWatch::wait_for_failure(milliseconds at_most) {
  const Clock::time_point end = Clock::now() + at_most;
  while (true) {
    {
      const std::lock_guard lock(store_mutex_);
      if (const auto failure = store_->get(kFailure)) return failure;
    }
    if (Clock::now() > end) return std::nullopt;
    std::this_thread::sleep_for(milliseconds(50));
  }
}

std::string PeerWatch::find_lost() {
  const std::vector<std::string> before = signs();
  const std::optional<std::string> failure = wait_for_failure(4 * limits_.poll);
  const std::vector<std::string> after = signs();
  const std::lock_guard lock(store_mutex_);
  store_->set(key_of("heard", rank_), "1");
  if (failure) return *failure;
  std::string names;
  for (size_t rank = 0; rank < after.size(); ++rank) {
    const bool silent = after[rank] == before[rank] && after[rank] != "left";
    if (silent && static_cast<int64_t>(rank) != rank_) {
      names += str(names.empty() ? "" : ", ", rank);
    }
  }
  if (names.empty()) return "every rank still shows life; the network between them may be cut";
  return store_->set_if_absent(
      kFailure, str("rank ", names, " was lost: its process was killed or its machine is gone"));
}

std::string PeerWatch::explain() noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (heard_) return *heard_;  // the store may be gone by now
  }
  try {
    const std::string reason = find_lost();
    if (rank_ == 0) wait_for_all("heard", 4 * limits_.poll);
    return reason;
  } catch (const std::exception&) {
    return kStoreGone;
  }
}

void PeerWatch::leave() noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (left_) return;
    left_ = ending_ = true;
  }
  ends_.notify_all();
  thread_.join();
  try {
    const std::lock_guard lock(store_mutex_);
    store_->set(key_of("left", rank_), "1");
  } catch (const std::exception&) {
    return;  // rank 0 has left already
  }
  if (rank_ == 0) wait_for_all("left", 4 * limits_.silence);
}

}  // namespace cplm
