// Stop requests: the first SIGINT or SIGTERM sets a flag that the training loop reads between
// steps; the next one, of either kind, kills as usual.
#include <atomic>
#include <csignal>

#include "cplm/base.h"

namespace cplm {
namespace {

constexpr int kStopSignals[] = {SIGINT, SIGTERM};
std::atomic<bool> stop_flag{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler may not take a lock");

void on_stop_signal(int) {
  stop_flag.store(true);
  for (int signal_number : kStopSignals) std::signal(signal_number, SIG_DFL);
}

}  // namespace

void install_stop_signals() {
  struct sigaction action {};
  action.sa_handler = on_stop_signal;
  action.sa_flags = SA_RESTART;  // a read or write in flight goes on
  sigemptyset(&action.sa_mask);
  for (int signal_number : kStopSignals) {
    if (sigaction(signal_number, &action, nullptr) != 0) {
      throw Error(str("cannot install the handler of signal ", signal_number));
    }
  }
}

bool stop_requested() { return stop_flag.load(std::memory_order_relaxed); }

}  // namespace cplm
