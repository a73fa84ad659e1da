// The end of a run, as the watch tells it to the others or finds it out. See peer_watch.h.
#include <exception>

#include "comm/peer_watch_keys.h"

namespace cplm {

using std::chrono::milliseconds;

RunEnd declare_end(KeyValues& run_store, const RunEnd& end) {
  return keys::parse_end(
      run_store.set_if_absent(keys::kEnd, str(static_cast<int>(end.code), " ", end.reason)));
}

// Those that never came are not waited for.
void PeerWatch::wait_for_all(const std::string& key, milliseconds at_most) noexcept {
  const Clock::time_point end = Clock::now() + at_most;
  int64_t rank = 0;
  try {
    while (rank < size_ && Clock::now() < end) {
      if (rank == rank_ || get(keys::of_rank(key, rank)) || !get(keys::of_rank("beat", rank))) {
        rank += 1;
      } else {
        std::this_thread::sleep_for(milliseconds(20));
      }
    }
  } catch (const std::exception&) {  // the store is gone: nobody waits there
  }
}

void PeerWatch::announce(const std::string& message) noexcept {
  try {
    declare({str("rank ", rank_, ": ", message)});
    set(keys::of_rank("heard", rank_), "1");
  } catch (const std::exception&) {
    return;  // the store is gone, so the others end for that
  }
  let_others_hear();
}

void PeerWatch::let_others_hear() noexcept {
  if (rank_ == 0) wait_for_all("heard", 4 * limits_.poll);
}

// Of every rank, "left" for those that have.
std::vector<std::string> PeerWatch::signs() {
  std::vector<std::string> all;
  for (int64_t rank = 0; rank < size_; ++rank) {
    const bool left = get(keys::of_rank("left", rank)).has_value();
    all.push_back(left ? "left" : get(keys::of_rank("beat", rank)).value_or(""));
  }
  return all;
}

std::optional<RunEnd> PeerWatch::wait_for_end(milliseconds at_most) {
  const Clock::time_point until = Clock::now() + at_most;
  while (true) {
    if (const auto end = get(keys::kEnd)) return keys::parse_end(*end);
    if (Clock::now() > until) return std::nullopt;
    std::this_thread::sleep_for(milliseconds(50));
  }
}

RunEnd PeerWatch::find_lost() {
  const std::vector<std::string> before = signs();
  const std::optional<RunEnd> end = wait_for_end(4 * limits_.poll);
  const std::vector<std::string> after = signs();
  set(keys::of_rank("heard", rank_), "1");
  if (end) return *end;
  std::string names;
  for (size_t rank = 0; rank < after.size(); ++rank) {
    const bool silent = after[rank] == before[rank] && after[rank] != "left";
    if (silent && static_cast<int64_t>(rank) != rank_) {
      names += str(names.empty() ? "" : ", ", rank);
    }
  }
  if (names.empty()) return {"every rank still shows life; the network between them may be cut"};
  return declare({str("rank ", names, " was lost: its process was killed or its machine is gone")});
}

RunEnd PeerWatch::explain() noexcept {
  if (const auto end = heard()) return *end;  // the store may be gone by now
  try {
    RunEnd end = find_lost();
    let_others_hear();
    return end;
  } catch (const std::exception&) {
    return {keys::kStoreGone};
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
    set(keys::of_rank("left", rank_), "1");
    if (rank_ == 0) wait_for_all("left", limits_.silence);
  } catch (const std::exception&) {  // rank 0 has left already
  }
  {
    const std::lock_guard lock(mutex_);
    store_watch_ends_ = true;
  }
  ends_.notify_all();
  store_thread_.join();
}

}  // namespace cplm
