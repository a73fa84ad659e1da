// See peer_watch.h. Keys: beat/R "step progress count", end "code why", left/R, heard/R, all (all
// ranks have come), led (rank 0's last finished work). The end of a run is in peer_end.cpp.
#include "comm/peer_watch.h"

#include <exception>
#include <utility>

#include "comm/peer_watch_keys.h"

namespace cplm {

using std::chrono::milliseconds;

PeerWatch::PeerWatch(std::unique_ptr<KeyValues> run_store, int64_t rank, int64_t size,
                     const PeerLimits& limits, std::function<void(const RunEnd&)> on_end)
    : store_(std::move(run_store)),
      rank_(rank),
      size_(size),
      limits_(limits),
      on_end_(std::move(on_end)),
      progress_(Clock::now()),
      next_{"", Clock::now()} {
  beat();
  thread_ = std::thread([this] { watch(); });
  store_thread_ = std::thread([this] { watch_store(); });
}

PeerWatch::~PeerWatch() { leave(); }

// Holds the store; the store's watch sees how long its answer takes.
class PeerWatch::Asking {
 public:
  explicit Asking(PeerWatch& watch) : watch_(watch), lock_(watch.store_mutex_) {
    watch_.asked_at_ = Clock::now().time_since_epoch().count();
  }
  ~Asking() { watch_.asked_at_ = 0; }
  Asking(const Asking&) = delete;
  Asking& operator=(const Asking&) = delete;

 private:
  PeerWatch& watch_;
  std::lock_guard<std::mutex> lock_;
};

std::optional<std::string> PeerWatch::get(const std::string& key) {
  const Asking asking(*this);
  return store_->get(key);
}

void PeerWatch::set(const std::string& key, const std::string& value) {
  const Asking asking(*this);
  store_->set(key, value);
}

RunEnd PeerWatch::declare(const RunEnd& end) {
  const Asking asking(*this);
  return declare_end(*store_, end);
}

bool PeerWatch::sleep(milliseconds duration) {
  std::unique_lock lock(mutex_);
  return !ends_.wait_for(lock, duration, [this] { return ending_; });
}

bool PeerWatch::all_came() {
  if (rank_ != 0) return get(keys::kAll).has_value();
  while (came_ < size_) {
    if (!get(keys::of_rank("beat", came_))) return false;
    came_ += 1;
  }
  set(keys::kAll, "1");
  return true;
}

std::vector<int64_t> PeerWatch::missing_ranks() {
  std::vector<int64_t> missing;
  for (int64_t rank = 0; rank < size_; ++rank) {
    if (!get(keys::of_rank("beat", rank))) missing.push_back(rank);
  }
  return missing;
}

void PeerWatch::joined() {
  const std::lock_guard lock(mutex_);
  joining_ = false;
  progress_ = Clock::now();
}

void PeerWatch::at_step(int64_t step) {
  const std::lock_guard lock(mutex_);
  step_ = step;
  progress_ = Clock::now();
  progress_count_ += 1;
}

void PeerWatch::makes_progress() {
  const std::lock_guard lock(mutex_);
  progress_ = Clock::now();
  progress_count_ += 1;
}

void PeerWatch::leader_is_done(int64_t number) { set(keys::kLed, str(number)); }

// Asks less often the longer it takes, since all ranks ask one store.
void PeerWatch::wait_for_leader(int64_t number) {
  const auto set_waiting = [&](bool waits) {
    const std::lock_guard lock(mutex_);
    waits_for_leader_ = waits;
  };
  set_waiting(true);
  std::string seen;
  milliseconds pause(2);
  while (true) {
    if (const auto end = heard()) throw Error(end->reason, end->code);
    const std::string done = get(keys::kLed).value_or("0");
    if (std::stoll(done) >= number) {
      set_waiting(false);
      return makes_progress();
    }
    const std::string sign = keys::progress_of(get(keys::of_rank("beat", 0)).value_or(""));
    if (sign != std::exchange(seen, sign)) makes_progress();
    std::this_thread::sleep_for(pause);
    pause = std::min(pause + pause / 4 + milliseconds(1), limits_.poll);
  }
}

std::optional<RunEnd> PeerWatch::heard() const {
  const std::lock_guard lock(mutex_);
  return heard_;
}

void PeerWatch::beat() {
  std::string value;
  {
    const std::lock_guard lock(mutex_);
    value = str(step_, " ", progress_count_, " ", ++beats_);
  }
  set(keys::of_rank("beat", rank_), value);
}

// Why the run cannot go on, if so. Each rank looks after the next one, so that the store sees a few
// requests a second from each, whatever their number.
std::optional<RunEnd> PeerWatch::find_end() {
  if (const auto end = get(keys::kEnd)) return keys::parse_end(*end);
  const int64_t next = (rank_ + 1) % size_;
  const std::string sign = get(keys::of_rank("beat", next)).value_or("");
  if (sign != next_.beat || sign.empty()) {  // empty: it has yet to come
    next_ = {sign, Clock::now()};
  } else if (Clock::now() - next_.since > limits_.silence && !get(keys::of_rank("left", next))) {
    return declare(
        {str("rank ", next, " has shown no sign of life for ", keys::seconds(limits_.silence),
             " s: its process or machine is gone, or the network to it")});
  }
  const auto own = own_end();
  return own ? std::optional(declare(*own)) : std::nullopt;
}

// What this process itself has to tell.
std::optional<RunEnd> PeerWatch::own_end() {
  const std::lock_guard lock(mutex_);
  if (joining_ && stop_requested()) {
    return RunEnd{
        str("rank ", rank_, " was told to stop while ranks were joining; nothing to save"),
        ExitCode::kStopped};
  }
  // It is the leader that gets nowhere, then, and has its own watch tell so first.
  const auto allowed = (waits_for_leader_ ? 2 : 1) * limits_.no_progress;
  if (Clock::now() - progress_ < allowed) return std::nullopt;
  return RunEnd{str("rank ", rank_, " made no progress for ", keys::seconds(limits_.no_progress),
                    " s, at step ", step_)};
}

void PeerWatch::watch() {
  std::optional<RunEnd> end;
  while (!end && sleep(limits_.poll)) {
    try {
      beat();
      end = find_end();
    } catch (const std::exception&) {
      end = RunEnd{keys::kStoreGone};
    }
  }
  if (!end) return;
  {
    const std::lock_guard lock(mutex_);
    heard_ = end;
  }
  try {
    set(keys::of_rank("heard", rank_), "1");
  } catch (const std::exception&) {  // the store is gone: nobody waits there
  }
  if (sleep(limits_.grace)) end_process(*end);
}

// A store whose machine is silent, or cut off, answers never: whoever asks it waits for ever.
void PeerWatch::watch_store() {
  const auto is_over = [this] { return store_watch_ends_; };
  while (true) {
    {
      std::unique_lock lock(mutex_);
      if (ends_.wait_for(lock, limits_.poll, is_over)) return;
    }
    const int64_t asked_at = asked_at_;
    if (asked_at == 0) continue;
    const Clock::time_point since{Clock::duration(asked_at)};
    if (Clock::now() - since > limits_.silence) break;
  }
  const RunEnd end{str(keys::kStoreGone, ": no answer for ", keys::seconds(limits_.silence), " s")};
  std::unique_lock lock(mutex_);
  if (!heard_) heard_ = end;
  if (ends_.wait_for(lock, limits_.grace, is_over)) return;
  lock.unlock();
  end_process(end);
}

void PeerWatch::end_process(const RunEnd& end) {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(ended_, true)) return;
  }
  on_end_(end);
}

}  // namespace cplm
