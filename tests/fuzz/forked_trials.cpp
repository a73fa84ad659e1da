// See forked_trials.h. A child runs many trials and notes its seed in shared memory: a fork for
// each would cost more than the trials.
#include "fuzz/forked_trials.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <thread>

#include "cplm/base.h"

namespace cplm::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kTrialsOfAChild = 250;
constexpr size_t kMaxFailures = 20;

int64_t trials = 2000;
uint64_t first_seed = 0;

// What a child leaves behind, however it ends.
struct Progress {
  std::atomic<uint64_t> seed{0};
  std::atomic<int64_t> accepted{0}, refused{0};
  char wrong[4096] = {};
};

class SharedProgress {
 public:
  SharedProgress() {
    void* memory = ::mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::runtime_error("mmap failed");
    progress_ = new (memory) Progress;
  }
  ~SharedProgress() { ::munmap(progress_, sizeof(Progress)); }
  SharedProgress(const SharedProgress&) = delete;
  SharedProgress& operator=(const SharedProgress&) = delete;
  Progress* operator->() const { return progress_; }

 private:
  Progress* progress_;
};

[[noreturn]] void run_child(const SharedProgress& progress, uint64_t begin, uint64_t end,
                            const std::function<TrialResult(uint64_t)>& trial) {
  for (uint64_t seed = begin; seed < end; ++seed) {
    progress->seed = seed;
    TrialResult result;
    try {
      result = trial(seed);
    } catch (const std::exception& error) {
      result.wrong = std::string("an exception that is no cplm::Error: ") + error.what();
    }
    if (!result.wrong.empty()) {
      std::strncpy(progress->wrong, result.wrong.c_str(), sizeof progress->wrong - 1);
      ::_exit(1);
    }
    ++(result.accepted ? progress->accepted : progress->refused);
  }
  ::_exit(0);
}

// Waits for the child; why it failed, or "".
std::string watch(pid_t child, const SharedProgress& progress, double hang_s) {
  uint64_t seed = progress->seed;
  Clock::time_point since = Clock::now();
  int status = 0;
  while (::waitpid(child, &status, WNOHANG) == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    if (seed != progress->seed) {
      seed = progress->seed;
      since = Clock::now();
    }
    if (std::chrono::duration<double>(Clock::now() - since).count() < hang_s) continue;
    ::kill(child, SIGKILL);
    ::waitpid(child, &status, 0);
    return str("hung for ", hang_s, " s");
  }
  if (WIFSIGNALED(status)) {
    return str("ended by signal ", WTERMSIG(status), " (", ::strsignal(WTERMSIG(status)), ")");
  }
  if (WEXITSTATUS(status) == 0) return "";
  return progress->wrong[0] != '\0' ? progress->wrong : str("exit code ", WEXITSTATUS(status));
}

}  // namespace

int64_t num_trials() { return trials; }

TrialSummary run_forked_trials(const TrialPlan& plan) {
  const SharedProgress progress;
  TrialSummary summary;
  const uint64_t end = first_seed + static_cast<uint64_t>(plan.count);
  for (uint64_t begin = first_seed; begin < end && summary.failures.size() < kMaxFailures;) {
    const uint64_t stop = std::min(end, begin + static_cast<uint64_t>(kTrialsOfAChild));
    progress->seed = begin;
    progress->wrong[0] = '\0';
    const pid_t child = ::fork();
    if (child < 0) throw std::runtime_error("fork failed");
    if (child == 0) run_child(progress, begin, stop, plan.trial);
    const std::string failure = watch(child, progress, plan.hang_s);
    begin = failure.empty() ? stop : progress->seed + 1;
    if (failure.empty()) continue;
    const uint64_t seed = progress->seed;
    summary.failures.push_back(str("seed ", seed, ": ", failure, ": ", plan.describe(seed)));
  }
  summary.accepted = progress->accepted;
  summary.refused = progress->refused;
  return summary;
}

TEST(ForkedTrials, CrashesHangsAndWrongResultsAreNamedAndTheOthersGoOn) {
  const auto trial = [](uint64_t seed) -> TrialResult {
    if (seed % 1000 == 3) std::abort();
    if (seed % 1000 == 5) ::pause();
    if (seed % 1000 == 7) throw std::length_error("too long");
    return {seed % 2 == 0, seed % 1000 == 9 ? "nine" : ""};
  };
  const TrialSummary summary = run_forked_trials(
      {trial, [](uint64_t seed) { return str("trial ", seed); }, /*count=*/300, /*hang_s=*/2});
  if (first_seed % 1000 != 0) GTEST_SKIP() << "needs seeds from a multiple of 1000";
  using testing::HasSubstr;
  EXPECT_THAT(summary.failures,
              testing::ElementsAre(HasSubstr("3: ended by signal 6"), HasSubstr("5: hung for 2 s"),
                                   HasSubstr("too long"), HasSubstr("9: nine: trial ")));
  EXPECT_EQ(summary.accepted, 150);
  EXPECT_EQ(summary.refused, 146);
}

}  // namespace cplm::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--trials") {
      cplm::test::trials = std::stoll(argv[i + 1]);
    } else if (name == "--first-seed") {
      cplm::test::first_seed = std::stoull(argv[i + 1]);
    } else {
      throw std::invalid_argument("expected --trials N or --first-seed N, found " + name);
    }
  }
  return RUN_ALL_TESTS();
}
