// Watches over the processes of a run through the key-value store of the launch: each shows signs
// of life, the first that fails says why, and all others end with that reason. Threads of its own,
// since the main one may be stuck in a collective. No LibTorch here.
#pragma once

#include <atomic>
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

#include "comm/key_values.h"
#include "cplm/base.h"

namespace cplm {

struct PeerLimits {
  std::chrono::milliseconds poll{500};
  std::chrono::milliseconds silence{6000};        // without a sign of life, or of the store: lost
  std::chrono::milliseconds no_progress{600000};  // of this process's own main thread
  std::chrono::milliseconds grace{1500};          // for the main thread to end by itself
};

// Why a run ends, and the exit code of the ranks that hear of it.
struct RunEnd {
  std::string reason;
  ExitCode code = ExitCode::kPeerLost;
};

// Sets the end of a run unless one stands already; returns the one that then stands.
RunEnd declare_end(KeyValues& run_store, const RunEnd& end);

class PeerWatch {
 public:
  // on_end ends the process; called on a thread of the watch, at most once, after the grace.
  PeerWatch(std::unique_ptr<KeyValues> run_store, int64_t rank, int64_t size,
            const PeerLimits& limits, std::function<void(const RunEnd&)> on_end);
  ~PeerWatch();  // as leave()

  // ---- joining: until joined(), a signal that tells this process to stop ends all ranks
  // Whether all have come. Cheap: rank 0 looks for them, the others ask rank 0.
  bool all_came();
  std::vector<int64_t> missing_ranks();
  void joined();

  // ---- at work
  void at_step(int64_t step);
  void makes_progress();
  // Rank 0 has done its `number`th work of its own; the others wait for that as long as it
  // makes progress. Throws what ends the run meanwhile.
  void leader_is_done(int64_t number);
  void wait_for_leader(int64_t number);

  // ---- the end
  std::optional<RunEnd> heard() const;
  // The first failure of all ranks stands; later ones change nothing. Rank 0, whose end may take
  // the store along, then waits until the others have heard of it or are gone.
  void announce(const std::string& message) noexcept;
  // After a collective failed: the reason that some rank gave, else the ranks that no longer show
  // life, else that none was found. Takes four seconds at most.
  RunEnd explain() noexcept;
  // Rank 0, before it takes the store along: waits until the others have heard, two seconds at
  // most.
  void let_others_hear() noexcept;
  // A normal end: from here on this rank's silence is no failure. Rank 0 waits for the others, but
  // no longer than for a sign of life.
  void leave() noexcept;

 private:
  using Clock = std::chrono::steady_clock;
  class Asking;
  struct Seen {
    std::string beat;
    Clock::time_point since;
  };
  void watch();
  void watch_store();
  void end_process(const RunEnd& end);
  void beat();
  std::optional<RunEnd> find_end();
  std::optional<RunEnd> own_end();
  RunEnd declare(const RunEnd& end);
  RunEnd find_lost();
  std::optional<std::string> get(const std::string& key);
  void set(const std::string& key, const std::string& value);
  std::vector<std::string> signs();
  std::optional<RunEnd> wait_for_end(std::chrono::milliseconds at_most);
  void wait_for_all(const std::string& key, std::chrono::milliseconds at_most) noexcept;
  bool sleep(std::chrono::milliseconds duration);  // false: the watch ends

  std::unique_ptr<KeyValues> store_;
  const int64_t rank_, size_;
  const PeerLimits limits_;
  const std::function<void(const RunEnd&)> on_end_;
  std::mutex store_mutex_;             // the store speaks to one thread at a time
  std::atomic<int64_t> asked_at_ = 0;  // when the request under way began; 0: none is
  mutable std::mutex mutex_;
  std::condition_variable ends_;
  bool joining_ = true, ending_ = false, left_ = false, store_watch_ends_ = false;
  bool ended_ = false;           // on_end was called
  std::optional<RunEnd> heard_;  // why the run ends, once the watch knows
  int64_t step_ = 0;
  Clock::time_point progress_;
  int64_t progress_count_ = 0;
  bool waits_for_leader_ = false;
  int64_t beats_ = 0;
  int64_t came_ = 0;  // rank 0: so many of the first ranks have come
  Seen next_;         // the last sign of the next rank
  std::thread thread_, store_thread_;
};

}  // namespace cplm
