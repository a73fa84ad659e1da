// Whole numbers on the command line are taken as they are written, or refused: 010 is not 8.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "cplm/base.h"
#include "support/checks.h"
#include "support/training_folder.h"

namespace cplm::test {
namespace {

using testing::HasSubstr;

struct Refused {
  Texts arguments;
  std::string message;
};

void expect_refused(const TrainingFolder& folder, const std::vector<Refused>& cases) {
  for (const auto& [arguments, message] : cases) {
    SCOPED_TRACE(join(arguments, " "));
    expect_error(folder.cplm(arguments), ExitCode::kBadConfig, HasSubstr(message));
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "x"));
}

TEST(CliWholeNumbers, OtherSpellingsAreRefused) {
  expect_refused(
      TrainingFolder(),
      {{{"train", "config.yaml", "--set", "run.dir=x", "--stop-after", "010"},
        "--stop-after: expected a whole number from 1, found 010; write 10"},
       {{"generate", "x", "--max-new-tokens", "010"},
        "--max-new-tokens: expected a whole number from 0, found 010; write 10"},
       {{"check", "config.yaml", "--ranks", "010"},
        "--ranks: expected a whole number from 1 to 1048576, found 010; write 10"},
       {{"eval", "long-context", "x", "--length", "0x10"},
        "--length: expected a whole number from 1, found 0x10; write 16"},
       {{"eval", "recall", "x", "--pairs", "1e3"},
        "--pairs: expected a whole number, found 1e3; write 1000"},
       {{"bench", "decode", "config.yaml", "--tokens", "+5"},
        "--tokens: expected a whole number from 1, found +5; write 5"},
       {{"bench", "loader", "--rows", " 5"},
        "--rows: expected a whole number from 1, found  5; write 5"},
       {{"data", "inspect", "x", "--samples", "1_000"},
        "--samples: expected a whole number from 0 to 1073741824, found 1_000; write 1000"},
       {{"data", "make", "spamlang", "--output", "x", "--held-out", "1'000"},
        "--held-out: expected a whole number, found 1'000; write 1000"},
       {{"data", "make", "repeat", "--output", "x", "--seed", "010"},
        "--seed: expected a whole number from 0 to 2^64 - 1, found 010; write 10"}});
}

TEST(CliWholeNumbers, ListsAndRangesToo) {
  expect_refused(
      TrainingFolder(),
      {{{"eval", "memory", "x", "--lengths", "512,0100"},
        "--lengths: expected a whole number from 1, found 0100; write 100"},
       {{"eval", "needle", "x", "--lengths", "1k,02k"}, "found 02k; write 2k"},
       {{"bench", "ops", "--length", "512,0x10"}, "found 0x10; write 16"},
       {{"bench", "ops", "--size", "08192x256"}, "such as 8192x256, found 08192x256"},
       {{"bench", "ops", "--size", "8192x256y"}, "such as 8192x256, found 8192x256y"},
       {{"data", "make", "repeat", "--output", "x", "--repeat-length", "04:30"},
        "--repeat-length: expected a whole number, or two as FROM:TO, found 04; write 4"},
       {{"generate", "x", "--ids", "1,02"},
        "--ids: expected a whole number from 0, found 02; write 2"},
       {{"generate", "x", "--mode", "natural,040:no_copy"},
        "--mode: expected a whole number from 0, found 040; write 40"},
       {{"export", "x", "x", "--max-shard-size", "05GB"},
        "--max-shard-size: expected a size as 5GB, found 05GB; write 5GB"}});
}

TEST(CliWholeNumbers, WhatIsTooLargeOrNegativeIsNotClamped) {
  const std::string huge = "99999999999999999999999";
  expect_refused(
      TrainingFolder(),
      {{{"data", "make", "repeat", "--output", "x", "--shard-tokens", huge},
        "--shard-tokens: expected a whole number up to 9223372036854775807, found " + huge},
       {{"generate", "x", "--batch", huge},
        "--batch: expected a whole number from 1 to 9223372036854775807, found " + huge},
       {{"data", "inspect", "x", "--seed", huge},
        "--seed: expected a whole number from 0 to 2^64 - 1, found " + huge},
       {{"data", "inspect", "x", "--seed", "-1"},
        "--seed: expected a whole number from 0 to 2^64 - 1, found -1"}});
}

TEST(CliWholeNumbers, TasksInALineOfArgumentsToo) {
  const std::string task = "long-context --length 010";
  const std::string message = "--length: expected a whole number from 1, found 010; write 10";
  expect_refused(
      TrainingFolder(),
      {{{"check", "config.yaml", "--set", "validation.tasks=[\"" + task + "\"]"}, message},
       {{"report", "a", "b", "--out", "x", "--task", task}, message}});
}

}  // namespace
}  // namespace cplm::test
