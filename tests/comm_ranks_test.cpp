// Real processes that join, reduce, and lose one of them in every way.
#include <gmock/gmock.h>

#include <chrono>

#include "support/ranks.h"

namespace cplm::test {
namespace {

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
                  if (rank == 0) options.timeout_s = 30;  // it never ends by itself
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
  EXPECT_EQ(results[1].exit_code, 2) << results[1].err;
  EXPECT_THAT(results[1].err, HasSubstr("WORLD_SIZE"));
}

}  // namespace
}  // namespace cplm::test
