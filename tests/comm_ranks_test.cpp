// Real processes that join, reduce, and lose one of them in every way.
#include <gmock/gmock.h>

#include <chrono>

#include "support/ranks.h"
#include "support/temp_dir.h"

namespace cplm::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
constexpr int kPeerLost = 6;

std::vector<ProcessResult> run(int size, const std::vector<std::string>& arguments) {
  return run_ranks(CPLM_COMM_RANK, size, {.arguments = arguments, .timeout_s = 60});
}

TEST(CommRanks, CollectivesGiveEveryRankTheSameBits) {
  for (const int size : {1, 2, 3, 4}) {
    for (const ProcessResult& rank : run(size, {"collectives"})) {
      EXPECT_EQ(rank.exit_code, 0) << size << " ranks: " << rank.err;
    }
  }
}

TEST(CommRanks, GradientsAreReducedWhileTheBackwardRuns) {
  for (const int size : {2, 3}) {
    for (const ProcessResult& rank : run_ranks(CPLM_REDUCE_RANK, size, {.timeout_s = 60})) {
      EXPECT_EQ(rank.exit_code, 0) << size << " ranks: " << rank.err;
    }
  }
}

// How all others end when rank `culprit` of three does `what`.
void expect_all_end(const std::string& what, int culprit, const std::string& reason) {
  const auto results = run(3, {what, std::to_string(culprit)});
  for (int rank = 0; rank < 3; ++rank) {
    if (rank == culprit) continue;
    const ProcessResult& result = results[static_cast<size_t>(rank)];
    EXPECT_FALSE(result.timed_out) << what << " " << culprit << ", rank " << rank;
    EXPECT_EQ(result.exit_code, kPeerLost) << result.err;
    EXPECT_THAT(result.err, HasSubstr(reason)) << what << " " << culprit << ", rank " << rank;
  }
}

TEST(CommRanks, AKilledRankEndsTheOthersByName) { expect_all_end("kill", 1, "rank 1 was lost"); }

TEST(CommRanks, AKilledStoreEndsTheOthers) { expect_all_end("kill", 0, "rank 0"); }

TEST(CommRanks, AFailureIsToldToTheOthers) {
  for (const int culprit : {0, 2}) {
    const auto results = run(3, {"fail", std::to_string(culprit)});
    for (int rank = 0; rank < 3; ++rank) {
      const ProcessResult& result = results[static_cast<size_t>(rank)];
      EXPECT_THAT(result.err, HasSubstr("the disk is full"));
      EXPECT_EQ(result.exit_code, rank == culprit ? 3 : kPeerLost) << result.err;
    }
  }
}

TEST(CommRanks, AFrozenProcessIsMissed) {
  const auto results = run_ranks(CPLM_COMM_RANK, 3, {.arguments = {"stop", "1"}, .timeout_s = 30},
                                 [](int rank, ProcessOptions& options) {
                                   if (rank == 1)
                                     options.timeout_s = 11;  // it never ends by itself
                                 });
  for (const int rank : {0, 2}) {
    const ProcessResult& result = results[static_cast<size_t>(rank)];
    EXPECT_EQ(result.exit_code, kPeerLost) << result.err;
    EXPECT_THAT(result.err, HasSubstr("rank 1 has shown no sign of life"));
  }
}

// The store is on rank 0: it does not answer, and no connection breaks.
TEST(CommRanks, AFrozenStoreEndsTheOthersToo) {
  const auto results =
      run_ranks(CPLM_COMM_RANK, 2, {.arguments = {"stop", "0", "3"}, .timeout_s = 40},
                [](int rank, ProcessOptions& options) {
                  if (rank == 0) options.timeout_s = 20;  // it never ends by itself
                });
  EXPECT_FALSE(results[1].timed_out);
  EXPECT_EQ(results[1].exit_code, kPeerLost) << results[1].err;
}

TEST(CommRanks, AHungThreadIsMissed) {
  const auto results = run(3, {"hang", "1", "3"});
  for (int rank = 0; rank < 3; ++rank) {
    const ProcessResult& result = results[static_cast<size_t>(rank)];
    EXPECT_EQ(result.exit_code, kPeerLost) << result.err;
  }
  EXPECT_THAT(results[0].err, HasSubstr("made no progress for 3 s"));
}

TEST(CommRanks, ARankThatNeverComesIsToldWithAddressAndPort) {
  const auto results =
      run_ranks(CPLM_COMM_RANK, 2, {.arguments = {"kill", "1", "2"}, .timeout_s = 40},
                [](int rank, ProcessOptions& options) {
                  if (rank == 1)
                    options.environment["WORLD_SIZE"] = options.environment["RANK"] = "";
                });
  EXPECT_EQ(results[0].exit_code, kPeerLost) << results[0].err;
  EXPECT_THAT(results[0].err, HasSubstr("rank 0 of 2 could not join the others at 127.0.0.1 port"));
  EXPECT_THAT(results[0].err, HasSubstr("not there yet: rank 1;"));
  EXPECT_EQ(results[1].exit_code, 2) << results[1].err;
  EXPECT_THAT(results[1].err, HasSubstr("WORLD_SIZE"));
}

// One of three never comes; the others would wait for a minute.
TEST(CommRanks, ASignalEndsAWaitForOthers) {
  const auto results = run_ranks(CPLM_COMM_RANK, 3, {.arguments = {"collectives"}, .timeout_s = 40},
                                 [](int rank, ProcessOptions& options) {
                                   if (rank == 2) options.environment["WORLD_SIZE"] = "";
                                   options.signal_at_marker = "joining";
                                   options.signal = SIGTERM;
                                 });
  for (const int rank : {0, 1}) {
    const ProcessResult& result = results[static_cast<size_t>(rank)];
    EXPECT_FALSE(result.timed_out);
    EXPECT_EQ(result.exit_code, 75) << result.err;
    EXPECT_THAT(result.err, AllOf(HasSubstr("told to stop while"), HasSubstr("127.0.0.1 port ")));
  }
}

// Three processes: two ranks of one run, and one of another run that was given the same port.
std::vector<ProcessResult> run_intruded(const std::string& own_job, const std::string& other_job,
                                        const std::string& mode) {
  const TempDir folder;
  ProcessOptions options;
  options.working_dir = folder.path();
  options.timeout_s = 40;
  return run_ranks("/bin/sh", 3, options, [&](int process, ProcessOptions& own) {
    const std::string program = "'" CPLM_COMM_RANK "' " + mode;
    const std::string after_the_other = "until [ -e ended ]; do sleep 0.05; done; exec " + program;
    const std::string other = program + "; code=$?; touch ended; exit $code";
    const bool waits = process == 1 && own_job != other_job;
    own.arguments = {"-c", process == 2 ? other : waits ? after_the_other : "exec " + program};
    own.environment["WORLD_SIZE"] = own.environment["LOCAL_WORLD_SIZE"] = "2";
    own.environment["RANK"] = own.environment["LOCAL_RANK"] = process == 0 ? "0" : "1";
    own.environment["TORCHELASTIC_RUN_ID"] = process == 2 ? other_job : own_job;
  });
}

TEST(CommRanks, ARankOfAnotherRunIsTurnedAway) {
  const auto results = run_intruded("blue", "red", "collectives");
  EXPECT_EQ(results[0].exit_code, 0) << results[0].err;
  EXPECT_EQ(results[1].exit_code, 0) << results[1].err;
  EXPECT_EQ(results[2].exit_code, kPeerLost) << results[2].err;
  EXPECT_THAT(results[2].err, HasSubstr("rank 1 of 2 found another run at 127.0.0.1 port"));
}

TEST(CommRanks, TwoRunsThatNobodyToldApartEnd) {
  for (const ProcessResult& result : run_intruded("", "", "kill 9")) {
    EXPECT_FALSE(result.timed_out);
    EXPECT_EQ(result.exit_code, kPeerLost) << result.err;
    EXPECT_THAT(result.err, HasSubstr("rank 1 has come twice"));
  }
}

TEST(CommRanks, APortThatIsTakenIsTold) {
  const auto results =
      run_ranks(CPLM_COMM_RANK, 2, {.arguments = {"kill", "9", "5"}, .timeout_s = 40},
                [](int, ProcessOptions& options) { options.environment["RANK"] = "0"; });
  const bool first_came_first = results[1].err.find("cannot listen") != std::string::npos;
  const ProcessResult& late = results[first_came_first ? 1 : 0];
  EXPECT_EQ(late.exit_code, kPeerLost) << late.err;
  EXPECT_THAT(late.err, HasSubstr("rank 0 of 2 cannot listen at port"));
}

// Longer than the time limit of collectives, which starts only when all wait for each other.
TEST(CommRanks, TheLeadersOwnWorkMayTakeLong) {
  for (const ProcessResult& result : run(3, {"lead", "0", "3"})) {
    EXPECT_EQ(result.exit_code, 0) << result.err;
  }
  for (const ProcessResult& result : run(3, {"lead-hang", "0", "3"})) {
    EXPECT_EQ(result.exit_code, kPeerLost) << result.err;
    EXPECT_THAT(result.err, HasSubstr("rank 0 made no progress for 3 s"));
  }
}

}  // namespace
}  // namespace cplm::test
