// How the processes of one run find each other in the key-value store of a launch, before any group
// exists: a store may be another run's, and a place another process's.
#pragma once

#include <chrono>
#include <string>

#include "comm/key_values.h"
#include "cplm/base.h"
#include "cplm/comm.h"

namespace cplm {

// What a rank that is still joining heeds: its time limit, and signals to stop.
class Joining {
 public:
  Joining(const Launch& launch, std::chrono::milliseconds timeout);

  bool overdue() const { return std::chrono::steady_clock::now() >= deadline_; }
  // A nap; Error(kStopped) once this process was told to stop: there is nothing to save.
  void pause() const;
  // "rank 1 of 4 ends before all had joined at HOST port 29500: WHY"
  Error ended(const std::string& why, ExitCode code) const;
  // "rank 1 of 4 could not join the others at HOST port 29500 within 600 s: WHY; see that ..."
  Error failed(const std::string& why) const;

 private:
  const Launch& launch_;
  std::chrono::milliseconds timeout_;
  std::chrono::steady_clock::time_point deadline_;
};

// Of all keys of one run: two jobs at one store never share any, nor do a job's restarts.
std::string run_prefix(const Launch& launch);
// Rank 0 writes whose the store is; the others wait until that is their own run. Error(kPeerLost)
// when it is another job's, or rank 0 was told another number of ranks.
void find_own_run(KeyValues& store, const Launch& launch, const Joining& joining);
// In the run's own keys. Error(kPeerLost) when another process is there as this rank already: two
// runs that nobody told apart share the port, or a rank was started twice. The store's failure key
// is then set, so that those that have come end, too.
void take_place(KeyValues& run_store, const Launch& launch);

}  // namespace cplm
