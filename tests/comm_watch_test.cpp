// The watch over a run's processes, and how they find each other, on a store in memory: who is
// blamed, who waits for whom, and what all do when one is told to stop. Several ranks are threads.
#include <gmock/gmock.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <map>
#include <thread>

#include "comm/peer_watch.h"
#include "comm/rendezvous.h"

namespace cplm::test {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;

// What all ranks share; `answers` off is a machine that does not answer, and breaks no connection.
struct Shared {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, std::string> values;
  bool answers = true;
};

class MemoryStore : public KeyValues {
 public:
  explicit MemoryStore(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
  void set(const std::string& key, const std::string& value) override {
    const auto lock = locked();
    shared_->values[key] = value;
  }
  std::optional<std::string> get(const std::string& key) override {
    const auto lock = locked();
    const auto found = shared_->values.find(key);
    return found == shared_->values.end() ? std::nullopt : std::optional(found->second);
  }
  std::string set_if_absent(const std::string& key, const std::string& value) override {
    const auto lock = locked();
    return shared_->values.emplace(key, value).first->second;
  }

 private:
  std::unique_lock<std::mutex> locked() {
    std::unique_lock lock(shared_->mutex);
    shared_->changed.wait(lock, [this] { return shared_->answers; });
    return lock;
  }
  std::shared_ptr<Shared> shared_;
};

class CommWatch : public testing::Test {
 protected:
  // Its end, once it has come, is in `ends`.
  std::unique_ptr<PeerWatch> watch(int64_t rank, int64_t size, PeerLimits limits = kLimits) {
    return std::make_unique<PeerWatch>(std::make_unique<MemoryStore>(shared_), rank, size, limits,
                                       [this, rank](const RunEnd& end) {
                                         const std::lock_guard lock(ends_mutex_);
                                         ends_[rank] = end;
                                       });
  }
  RunEnd end_of(int64_t rank) {
    for (int tries = 0; tries < 2000; ++tries) {
      {
        const std::lock_guard lock(ends_mutex_);
        if (ends_.count(rank) != 0) return ends_[rank];
      }
      std::this_thread::sleep_for(milliseconds(5));
    }
    return {"rank " + std::to_string(rank) + " never ended"};
  }
  void set_answers(bool answers) {
    const std::lock_guard lock(shared_->mutex);
    shared_->answers = answers;
    shared_->changed.notify_all();
  }

  static constexpr PeerLimits kLimits{milliseconds(10), milliseconds(400), milliseconds(60000),
                                      milliseconds(20)};
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  std::mutex ends_mutex_;
  std::map<int64_t, RunEnd> ends_;
};

TEST_F(CommWatch, AllHaveComeOnceEachIsThere) {
  const auto first = watch(0, 3), last = watch(2, 3);
  EXPECT_FALSE(first->all_came());
  EXPECT_EQ(first->missing_ranks(), std::vector<int64_t>{1});
  EXPECT_FALSE(last->all_came());
  const auto middle = watch(1, 3);
  EXPECT_TRUE(first->all_came());
  EXPECT_TRUE(middle->all_came());
  EXPECT_TRUE(last->all_came());
}

TEST_F(CommWatch, OneThatDiesWhileOthersAreAwaitedIsMissed) {
  const auto first = watch(0, 3);
  shared_->values["beat/1"] = "0 0 1";  // came, and shows no life again
  EXPECT_THAT(end_of(0).reason, HasSubstr("rank 1 has shown no sign of life"));
}

TEST_F(CommWatch, OneThatHasYetToComeIsNotLost) {
  const auto first = watch(0, 2);
  std::this_thread::sleep_for(2 * kLimits.silence);
  EXPECT_FALSE(first->heard());
}

TEST_F(CommWatch, TheFirstFailureStandsForAll) {
  const auto first = watch(0, 2), second = watch(1, 2);
  second->announce("the disk is full");
  second->announce("and then this");
  EXPECT_EQ(end_of(0).reason, "rank 1: the disk is full");
  EXPECT_EQ(end_of(0).code, ExitCode::kPeerLost);
}

// A machine that is cut off breaks no connection: requests wait.
TEST_F(CommWatch, AStoreThatDoesNotAnswerEndsTheProcess) {
  const auto first = watch(0, 2), second = watch(1, 2);
  set_answers(false);
  for (const int64_t rank : {0, 1}) {
    EXPECT_THAT(end_of(rank).reason, HasSubstr("key-value store: no answer for 0.4 s"));
  }
  set_answers(true);
}

TEST_F(CommWatch, TheOthersWaitForTheLeadersWorkAsLongAsItGetsOn) {
  PeerLimits limits = kLimits;
  limits.no_progress = milliseconds(1000);
  const auto first = watch(0, 2, limits), second = watch(1, 2, limits);
  auto waiting = std::async(std::launch::async, [&] { second->wait_for_leader(1); });
  for (int i = 0; i < 25; ++i) {  // more than twice as long as the limit
    std::this_thread::sleep_for(milliseconds(100));
    first->makes_progress();
  }
  EXPECT_FALSE(first->heard());
  EXPECT_FALSE(second->heard());
  first->leader_is_done(1);
  waiting.get();
}

TEST_F(CommWatch, ALeaderThatHangsInItsWorkEndsTheOthers) {
  PeerLimits limits = kLimits, shorter = kLimits;
  limits.no_progress = milliseconds(300);
  shorter.no_progress = milliseconds(200);  // the one that waits is not to blame, ever so early
  const auto first = watch(0, 2, limits), second = watch(1, 2, shorter);
  try {
    second->wait_for_leader(1);
    ADD_FAILURE() << "nobody finished it";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 0 made no progress for 0.3 s"));
  }
}

// Rank 0 takes the store along: it waits for the others, but not for one that died meanwhile.
TEST_F(CommWatch, LeavingEndsThoughAnotherNeverLeaves) {
  auto first = watch(0, 2);
  shared_->values["beat/1"] = "0 0 1";
  first->leave();
  EXPECT_EQ(shared_->values.count("left/0"), 1U);
}

// Told to one while ranks are still joining: all end, as stopped. In a process of its own, since a
// request to stop stays.
TEST_F(CommWatch, ASignalWhileJoiningStopsAll) {
  const auto told = [this] {
    install_stop_signals();
    const auto first = watch(0, 3), second = watch(1, 3);
    std::raise(SIGTERM);
    const RunEnd ends[] = {end_of(0), end_of(1)};
    for (const RunEnd& end : ends) std::fprintf(stderr, "%s\n", end.reason.c_str());
    std::_Exit(static_cast<int>(std::min(ends[0].code, ends[1].code)));
  };
  EXPECT_EXIT(told(), testing::ExitedWithCode(75), "told to stop while ranks were joining");
}

TEST_F(CommWatch, OnceJoinedASignalIsTheTrainersToAnswer) {
  const auto told = [this] {
    install_stop_signals();
    const auto first = watch(0, 2), second = watch(1, 2);
    first->joined();
    second->joined();
    std::raise(SIGTERM);
    std::this_thread::sleep_for(milliseconds(300));
    std::_Exit(first->heard() || second->heard() ? 1 : 0);
  };
  EXPECT_EXIT(told(), testing::ExitedWithCode(0), "");
}

// ---- finding each other

Launch launch_of(int64_t rank, int64_t size, const std::string& job) {
  Launch launch;
  launch.rank = rank;
  launch.size = size;
  launch.job = job;
  launch.address = "head";
  launch.port = 77;
  return launch;
}

class CommRendezvous : public CommWatch {
 protected:
  std::string refusal_of(const Launch& launch) {
    try {
      MemoryStore store(shared_);
      find_own_run(store, launch, Joining(launch, milliseconds(200)));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kPeerLost);
      return error.what();
    }
    return "joined";
  }
};

TEST_F(CommRendezvous, AnotherJobsStoreIsLeftAlone) {
  EXPECT_EQ(refusal_of(launch_of(0, 4, "blue")), "joined");
  EXPECT_EQ(refusal_of(launch_of(3, 4, "blue")), "joined");
  EXPECT_THAT(refusal_of(launch_of(1, 4, "red")),
              AllOf(HasSubstr("rank 1 of 4 found another run at head port 77"),
                    HasSubstr("4 ranks of job red, found 4 ranks of job blue")));
  EXPECT_THAT(refusal_of(launch_of(1, 2, "blue")),
              HasSubstr("rank 1 of 2 found rank 0 of 4 at head port 77"));
  EXPECT_NE(run_prefix(launch_of(1, 4, "blue")), run_prefix(launch_of(1, 4, "red")));
  EXPECT_NE(run_prefix(launch_of(1, 4, "blue")), run_prefix(launch_of(1, 2, "blue")));
}

TEST_F(CommRendezvous, AnElasticRestartWaitsForItsOwnRankZero) {
  EXPECT_EQ(refusal_of(launch_of(0, 4, "blue")), "joined");
  Launch again = launch_of(1, 2, "blue");
  again.attempt = "1";
  EXPECT_THAT(refusal_of(again), HasSubstr("could not join the others at head port 77"));
  again.rank = 0;
  EXPECT_EQ(refusal_of(again), "joined");
  again.rank = 1;
  EXPECT_EQ(refusal_of(again), "joined");
}

// Of two runs that no launcher named, one finds its places taken, and both end.
TEST_F(CommRendezvous, APlaceIsTakenOnce) {
  const Launch launch = launch_of(1, 2, "");
  MemoryStore store(shared_);
  take_place(store, launch);
  const auto first = watch(0, 2);
  try {
    take_place(store, launch);
    ADD_FAILURE() << "taken twice";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 1 has come twice to head port 77: process "));
  }
  EXPECT_THAT(end_of(0).reason, HasSubstr("two runs share the port"));
}

}  // namespace
}  // namespace cplm::test
