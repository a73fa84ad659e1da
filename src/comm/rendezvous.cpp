// See rendezvous.h. Keys: cplm/run "SIZE ATTEMPT JOB" of the run whose store it is; then, below
// run_prefix(), place/R "process P on HOST" of each rank.
#include "comm/rendezvous.h"

#include <unistd.h>

#include <random>
#include <sstream>
#include <thread>

#include "comm/peer_watch.h"

namespace cplm {
namespace {

const std::string kRunKey = "cplm/run";

struct RunName {
  int64_t size = 0;
  std::string attempt, job;

  std::string text() const { return str(size, " ", attempt, " ", job); }
  std::string described() const {
    return job.empty() ? str(size, " ranks") : str(size, " ranks of job ", job);
  }
};

RunName parse_run(const std::string& text) {
  RunName name;
  std::istringstream in(text);
  in >> name.size >> name.attempt;
  in.get();
  std::getline(in, name.job);
  return name;
}

RunName own_run(const Launch& launch) { return {launch.size, launch.attempt, launch.job}; }

std::string who(const Launch& launch) { return str("rank ", launch.rank, " of ", launch.size); }

std::string where(const Launch& launch) { return str(launch.address, " port ", launch.port); }

void check_own(const RunName& found, const Launch& launch) {
  const RunName own = own_run(launch);
  if (found.job != own.job) {
    throw Error(
        str(who(launch), " found another run at ", where(launch), ": expected ", own.described(),
            ", found ", found.described(), "; give each run a MASTER_PORT of its own"),
        ExitCode::kPeerLost);
  }
  // An elastic launcher may start again with another number; then rank 0 has yet to say so.
  if (found.size != own.size && found.attempt == own.attempt) {
    throw Error(str(who(launch), " found rank 0 of ", found.size, " at ", where(launch),
                    "; start all ranks with the same number, or, when these are two runs, give "
                    "each a MASTER_PORT of its own"),
                ExitCode::kPeerLost);
  }
}

// Of this process alone, and readable.
std::string process_name() {
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  std::random_device random;
  return str("process ", ::getpid(), " on ", host, " (", random(), ")");
}

}  // namespace

Joining::Joining(const Launch& launch, std::chrono::milliseconds timeout)
    : launch_(launch), timeout_(timeout), deadline_(std::chrono::steady_clock::now() + timeout) {}

void Joining::pause() const {
  if (stop_requested()) {
    throw Error(str(who(launch_), " was told to stop while it waited for the others at ",
                    where(launch_), "; nothing to save"),
                ExitCode::kStopped);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
}

Error Joining::ended(const std::string& why, ExitCode code) const {
  return Error(str(who(launch_), " ends before all had joined at ", where(launch_), ": ", why),
               code);
}

Error Joining::failed(const std::string& why) const {
  return Error(str(who(launch_), " could not join the others at ", where(launch_), " within ",
                   std::chrono::duration_cast<std::chrono::seconds>(timeout_).count(), " s: ", why,
                   "; see that all ranks were started, and that the port is free and reachable"),
               ExitCode::kPeerLost);
}

std::string run_prefix(const Launch& launch) {
  return str("cplm/", launch.job, "/", launch.size, "/", launch.attempt);
}

void find_own_run(KeyValues& store, const Launch& launch, const Joining& joining) {
  const std::string own = own_run(launch).text();
  if (launch.rank == 0) return store.set(kRunKey, own);
  while (true) {
    const std::optional<std::string> found = store.get(kRunKey);
    if (found == own) return;
    if (found) check_own(parse_run(*found), launch);
    if (joining.overdue()) throw joining.failed("rank 0 has not come");
    joining.pause();
  }
}

void take_place(KeyValues& run_store, const Launch& launch) {
  const std::string own = process_name();
  const std::string first = run_store.set_if_absent(str("place/", launch.rank), own);
  if (first == own) return;
  const std::string what =
      str("rank ", launch.rank, " has come twice to ", where(launch), ": ", first, " and ", own,
          "; two runs share the port, or one rank was started twice");
  declare_end(run_store, {what, ExitCode::kPeerLost});
  throw Error(str(who(launch), ": ", what), ExitCode::kPeerLost);
}

}  // namespace cplm
