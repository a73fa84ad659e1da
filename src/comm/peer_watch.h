// Watches over the processes of a run through the key-value store of the launch: each shows signs
// of life, the first that fails says why, and all others end with that reason. A thread of its own,
// since the main one may be stuck in a collective. No LibTorch here.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace cplm {

// The store as the watch needs it. Any call may throw when the store is gone.
class KeyValues {
 public:
  virtual ~KeyValues() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  virtual std::optional<std::string> get(const std::string& key) = 0;  // does not wait
  // Sets the key unless it is there; returns what it then holds.
  virtual std::string set_if_absent(const std::string& key, const std::string& value) = 0;
};

struct PeerLimits {
  std::chrono::milliseconds poll{500};
  std::chrono::milliseconds silence{6000};        // without a sign of life: lost
  std::chrono::milliseconds no_progress{600000};  // of this process's own main thread
  std::chrono::milliseconds grace{1500};          // for the main thread to end by itself
};

class PeerWatch {
 public:
  // on_failure ends the process; called on the watch's thread, at most once, after the grace.
  PeerWatch(std::unique_ptr<KeyValues> store, int64_t rank, int64_t size, const PeerLimits& limits,
            std::function<void(const std::string& reason)> on_failure);
  ~PeerWatch();  // as leave()

  void at_step(int64_t step);
  void makes_progress();
  // The first failure of all ranks stands; later ones change nothing. Rank 0, whose end may take
  // the store along, then waits until the others have heard of it or are gone.
  void announce(const std::string& message) noexcept;
  // After a collective failed: the reason that some rank gave, else the ranks that no longer show
  // life, else that none was found. Takes two seconds at most.
  std::string explain() noexcept;
  // A normal end: from here on this rank's silence is no failure. Rank 0 waits for the others.
  void leave() noexcept;

 private:
  struct Seen {
    std::string beat;
    std::chrono::steady_clock::time_point since;
  };
  void watch();
  void beat();
  std::optional<std::string> find_failure();
  std::optional<std::string> stuck();
  std::string find_lost();
  std::vector<std::string> signs();
  std::optional<std::string> wait_for_failure(std::chrono::milliseconds at_most);
  void wait_for_all(const std::string& key, std::chrono::milliseconds at_most) noexcept;
  std::string key_of(const std::string& what, int64_t rank) const;
  bool sleep(std::chrono::milliseconds duration);  // false: the watch ends

  std::unique_ptr<KeyValues> store_;
  const int64_t rank_, size_;
  const PeerLimits limits_;
  const std::function<void(const std::string&)> on_failure_;
  std::mutex store_mutex_;  // the store speaks to one thread at a time
  std::mutex mutex_;
  std::condition_variable ends_;
  bool ending_ = false;
  bool left_ = false;
  std::optional<std::string> heard_;  // why the run ends, once the watch knows
  int64_t step_ = 0;
  std::chrono::steady_clock::time_point progress_;
  int64_t beats_ = 0;
  Seen next_;  // the last sign of the next rank
  std::thread thread_;
};

}  // namespace cplm
