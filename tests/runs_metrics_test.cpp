// metrics.jsonl: exact numbers, whole lines whatever fails, trimming on resume, damage named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <csignal>
#include <limits>
#include <random>

#include "cplm/base.h"
#include "cplm/runs.h"
#include "support/temp_dir.h"

namespace cplm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TrainRecord train_record(int64_t step) {
  return {.step = step,
          .tokens = step * 8192,
          .loss = 5.1 + 1.0 / static_cast<double>(step + 1),
          .lr = 1e-3,
          .grad_norm = 0.1,
          .tokens_per_s = 12345.678,
          .step_ms = 81.25,
          .data_wait_ms = 0.0,
          .mfu = std::nullopt,
          .peak_memory_mb = 512.5};
}

std::string error_of(const std::filesystem::path& run_dir, ExitCode code = ExitCode::kBadData) {
  try {
    read_metrics(run_dir);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    return error.what();
  }
  return "no error";
}

class MetricsTest : public ::testing::Test {
 protected:
  MetricsTest() { log::set_level("error"); }  // every trimming logs a line
  ~MetricsTest() override { log::set_level("info"); }

  test::TempDir dir_;
  std::string text() const { return read_file(dir_ / "metrics.jsonl"); }
  std::string stale() const { return read_file(dir_ / "metrics.stale.jsonl"); }
  void write_text(std::string_view text) const { dir_.write("metrics.jsonl", text); }
};

TEST_F(MetricsTest, WritesTheDocumentedLines) {
  MetricsWriter writer(dir_.path(), -1);
  writer.write(TrainRecord{10, 81920, 5.25, 0.001, 0.1, 1000.5, 80.0, 0.5, std::nullopt, 512.25});
  writer.write(ValidationRecord{10, 81920, 5.0, 148.4, 4096, std::nullopt});
  writer.write(ValidationRecord{20, 163840, 4.5, 90.0, 4096, CopyMeans{4.75, 0.25, 0.5, 0.125}});
  writer.write_nonfinite(21, {7, 9});
  writer.write(
      DataRecord{30, 245760, {{"web/*.h5", 0.75, 0.7501, 0.5}, {"b \"", 0.25, 0.2499, 2}}});
  writer.sync();
  EXPECT_EQ(
      text(),
      R"({"kind":"train","step":10,"tokens":81920,"loss":5.25,"lr":0.001,"grad_norm":0.1,)"
      R"("tokens_per_s":1000.5,"step_ms":80.0,"data_wait_ms":0.5,"mfu":null,"peak_memory_mb":512.25})"
      "\n"
      R"({"kind":"validation","step":10,"tokens":81920,"loss":5.0,"perplexity":148.4,)"
      R"("counted_tokens":4096})"
      "\n"
      R"({"kind":"validation","step":20,"tokens":163840,"loss":4.5,"perplexity":90.0,)"
      R"("counted_tokens":4096,"loss_no_copy":4.75,"copy_gate":0.25,"sink_mass":0.5,)"
      R"("copy_weight":0.125})"
      "\n"
      R"({"kind":"nonfinite","step":21,"windows":[7,9]})"
      "\n"
      R"({"kind":"data","step":30,"tokens":245760,"sources":[)"
      R"({"path":"web/*.h5","weight":0.75,"share":0.7501,"epochs":0.5},)"
      R"({"path":"b \"","weight":0.25,"share":0.2499,"epochs":2.0}]})"
      "\n");
  EXPECT_EQ(read_metrics(dir_.path()).validation.size(), 2u);
}

TEST_F(MetricsTest, GradientsComeBack) {
  MetricsWriter writer(dir_.path(), -1);
  writer.write(GradientsRecord{10, 640, {1.5, 0.25, kInfinity}, 2.5, {0.5, 0.125, 0.0}, 0.75});
  writer.write(GradientsRecord{20, 1280, {1.5, {}, {}}, 2.5, {0.5, {}, {}}, 0.5});
  EXPECT_EQ(text(), R"({"kind":"gradients","step":10,"tokens":640,"weights":{"lm_head":1.5,)"
                    R"("copy_token":0.25,"cp_head":"inf","backbone":2.5},"hidden":{"lm_head":0.5,)"
                    R"("copy_token":0.125,"cp_head":0.0},"copyable_targets":0.75})"
                    "\n"
                    R"({"kind":"gradients","step":20,"tokens":1280,"weights":{"lm_head":1.5,)"
                    R"("backbone":2.5},"hidden":{"lm_head":0.5},"copyable_targets":0.5})"
                    "\n");
  const Metrics metrics = read_metrics(dir_.path());
  ASSERT_EQ(metrics.gradients.size(), 2u);
  EXPECT_EQ(metrics.gradients[0].weights.cp_head, kInfinity);
  EXPECT_EQ(metrics.gradients[0].hidden.copy_token, 0.125);
  EXPECT_EQ(metrics.gradients[1].backbone, 2.5);
  EXPECT_FALSE(metrics.gradients[1].hidden.cp_head.has_value());
  write_text(R"({"kind":"gradients","step":1,"tokens":2,"weights":3})"
             "\n");
  EXPECT_THAT(error_of(dir_.path()), HasSubstr("field 'weights': expected an object, found 3"));
}

TEST_F(MetricsTest, NumbersComeBackBitForBit) {
  const double values[] = {1.0 / 3.0, 5e-324, 1.7976931348623157e308, 0.1, -0.0, 123456789.0};
  MetricsWriter writer(dir_.path(), -1);
  for (const double value : values) {
    TrainRecord record = train_record(1);
    record.loss = value;
    record.mfu = value;
    writer.write(record);
  }
  const Metrics metrics = read_metrics(dir_.path());
  ASSERT_EQ(metrics.train.size(), std::size(values));
  for (size_t i = 0; i < std::size(values); ++i) {
    EXPECT_EQ(std::bit_cast<uint64_t>(metrics.train[i].loss), std::bit_cast<uint64_t>(values[i]));
    EXPECT_EQ(metrics.train[i].mfu.value(), values[i]);
  }
}

TEST_F(MetricsTest, NumbersThatAreNotFiniteComeBack) {
  MetricsWriter writer(dir_.path(), -1);
  writer.write(ValidationRecord{1, 2, std::nan(""), kInfinity, 3, CopyMeans{-kInfinity, 0, 0, 0}});
  EXPECT_THAT(text(), AllOf(HasSubstr(R"("loss":"nan")"), HasSubstr(R"("perplexity":"inf")"),
                            HasSubstr(R"("loss_no_copy":"-inf")")));
  const ValidationRecord record = read_metrics(dir_.path()).validation.at(0);
  EXPECT_TRUE(std::isnan(record.loss));
  EXPECT_EQ(record.perplexity, kInfinity);
  EXPECT_EQ(record.copy.value().loss_no_copy, -kInfinity);
}

TEST_F(MetricsTest, ResumeMovesLaterLinesAndKeepsTheRestByteForByte) {
  const std::string kept =
      "{\"kind\":\"train\", \"step\":10}\n{\"step\":20,\"kind\":\"validation\"}\n";
  const std::string later = "{\"kind\":\"of a later version\"}\n{\"kind\":\"train\",\"step\":30}\n";
  write_text(kept + "{\"kind\":\"train\",\"step\":21}\n" + later);
  MetricsWriter(dir_.path(), 20);
  EXPECT_EQ(text(), kept);
  EXPECT_EQ(stale(), "{\"kind\":\"train\",\"step\":21}\n" + later);
}

TEST_F(MetricsTest, LinesOfTheStepThatAreMadeAnewMoveToo) {
  const std::string kept =
      "{\"kind\":\"validation\",\"step\":10}\n{\"kind\":\"train\",\"step\":20}\n";
  const std::string owed =
      "{\"kind\":\"validation\",\"step\":20}\n{\"kind\":\"task\",\"step\":20}\n";
  const std::string data = "{\"kind\":\"data\",\"step\":20}\n";
  write_text(kept + owed + data);
  MetricsWriter(dir_.path(), ResumePoint{.step = 20, .kinds_to_come = {"validation", "task"}});
  EXPECT_EQ(text(), kept + data);
  EXPECT_EQ(stale(), owed);
}

TEST_F(MetricsTest, ASecondResumeAppendsToTheStaleLines) {
  write_text("{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n");
  MetricsWriter(dir_.path(), 2);
  MetricsWriter(dir_.path(), 1);
  EXPECT_EQ(text(), "{\"step\":1}\n");
  EXPECT_EQ(stale(), "{\"step\":3}\n{\"step\":2}\n");
}

TEST_F(MetricsTest, ResumeMovesATornLastLine) {
  write_text("{\"step\":1}\n{\"step\":2,\"lo");
  MetricsWriter writer(dir_.path(), 5);
  writer.write_nonfinite(6, {});
  EXPECT_EQ(text(), "{\"step\":1}\n{\"kind\":\"nonfinite\",\"step\":6,\"windows\":[]}\n");
  EXPECT_EQ(stale(), "{\"step\":2,\"lo\n");
}

TEST_F(MetricsTest, ResumeEndsAWholeLineThatMissesOnlyItsNewline) {
  write_text("{\"step\":1}\n{\"step\":2}");
  MetricsWriter(dir_.path(), 2);
  EXPECT_EQ(text(), "{\"step\":1}\n{\"step\":2}\n");
  EXPECT_FALSE(std::filesystem::exists(dir_ / "metrics.stale.jsonl"));
}

TEST_F(MetricsTest, ResumeLeavesAFileWithNothingToMoveUntouched) {
  write_text("{\"step\":1}\n");
  struct stat before {
  }, after{};
  ::stat((dir_ / "metrics.jsonl").c_str(), &before);
  MetricsWriter(dir_.path(), 1);
  ::stat((dir_ / "metrics.jsonl").c_str(), &after);
  EXPECT_EQ(before.st_ino, after.st_ino);
}

TEST_F(MetricsTest, AFreshRunKeepsNothing) {
  write_text("{\"kind\":\"validation\",\"step\":0}\n");
  MetricsWriter(dir_.path(), -1);
  EXPECT_EQ(text(), "");
  EXPECT_EQ(stale(), "{\"kind\":\"validation\",\"step\":0}\n");
}

// A file size limit stands for a full disk: the system writes the part that fits, then refuses.
TEST_F(MetricsTest, AFullDiskLeavesNoHalfLine) {
  MetricsWriter writer(dir_.path(), -1);
  writer.write(train_record(1));
  const std::string whole = text();
  const auto previous_handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
  const rlimit small{.rlim_cur = whole.size() + 20, .rlim_max = limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  std::string message;
  try {
    writer.write(train_record(2));
  } catch (const Error& error) {
    message = error.what();
  }
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  std::signal(SIGXFSZ, previous_handler);
  EXPECT_THAT(message, AllOf(HasSubstr("metrics.jsonl"), HasSubstr("File too large")));
  EXPECT_EQ(text(), whole);
  writer.write(train_record(3));
  EXPECT_EQ(read_metrics(dir_.path()).train.at(1).step, 3);
}

TEST_F(MetricsTest, ReadersPassOverWhatTheyDoNotKnow) {
  write_text(
      "{\"kind\":\"later\",\"step\":1,\"accuracy\":0.5}\n\n"
      "{\"kind\":\"validation\",\"step\":1,\"tokens\":2,\"loss\":3,\"perplexity\":4,"
      "\"counted_tokens\":5,\"later\":[1]}\r\n{\"kind\":\"nonfinite\",\"step\":7,\"windows\":[]}"
      "\n");
  const Metrics metrics = read_metrics(dir_.path());
  EXPECT_THAT(metrics.train, IsEmpty());
  EXPECT_EQ(metrics.validation.at(0).loss, 3.0);
  EXPECT_FALSE(metrics.validation.at(0).copy);
  EXPECT_THAT(metrics.nonfinite_steps, ::testing::ElementsAre(7));
  EXPECT_THAT(metrics.warnings, IsEmpty());
}

TEST_F(MetricsTest, TasksAreReadAsWritten) {
  const double infinity = std::numeric_limits<double>::infinity();
  {
    MetricsWriter writer(dir_.path(), -1);
    writer.write(TaskRecord{5, 640, "recall --pairs 4", {{"accuracy", 0.1}, {"loss", infinity}}});
  }
  const Metrics metrics = read_metrics(dir_.path());
  ASSERT_EQ(metrics.tasks.size(), 1);
  EXPECT_EQ(metrics.tasks[0].step, 5);
  EXPECT_EQ(metrics.tasks[0].tokens, 640);
  EXPECT_EQ(metrics.tasks[0].task, "recall --pairs 4");
  EXPECT_THAT(metrics.tasks[0].numbers, ::testing::ElementsAre(::testing::Pair("accuracy", 0.1),
                                                               ::testing::Pair("loss", infinity)));
  write_text(
      "{\"kind\":\"task\",\"step\":1,\"tokens\":2,\"task\":\"x\",\"numbers\":{\"a\":\"b\"}}\n");
  EXPECT_THROW(read_metrics(dir_.path()), Error);
}

TEST_F(MetricsTest, ATornLastLineIsAWarning) {
  write_text("{\"kind\":\"x\"}\n{\"kind\":\"train\",\"st");
  const Metrics metrics = read_metrics(dir_.path());
  EXPECT_THAT(metrics.warnings,
              ::testing::ElementsAre(HasSubstr("metrics.jsonl:2: the last line is torn")));
}

TEST_F(MetricsTest, DamageIsNamedByFileAndLine) {
  write_text("{\"kind\":\"x\"}\n{\"kind\":\"tr\x01\n{\"kind\":\"x\"}\n");
  EXPECT_THAT(error_of(dir_.path()), HasSubstr("metrics.jsonl:2: expected one JSON object, found"));
  write_text(std::string(40, '\0') + "\n");
  EXPECT_THAT(error_of(dir_.path()), AllOf(HasSubstr(":1: expected one"), HasSubstr("\\u0000")));
  write_text("[1]\n");
  EXPECT_THAT(error_of(dir_.path()), HasSubstr(":1: expected one JSON object, found"));
  write_text("{\"step\":1}\n");
  EXPECT_THAT(error_of(dir_.path()), HasSubstr(":1: field 'kind' is missing"));
  write_text("{\"kind\":7}\n");
  EXPECT_THAT(error_of(dir_.path()), HasSubstr("field 'kind': expected a string, found 7"));
}

TEST_F(MetricsTest, FieldsOfTheWrongTypeAreNamed) {
  const auto line = [](const std::string& step, const std::string& loss) {
    return "{\"kind\":\"validation\",\"step\":" + step + ",\"tokens\":2,\"loss\":" + loss +
           ",\"perplexity\":4,\"counted_tokens\":5}\n";
  };
  write_text(line("1", "\"low\""));
  EXPECT_THAT(
      error_of(dir_.path()),
      HasSubstr("field 'loss': expected a number, \"nan\", \"inf\" or \"-inf\", found \"low\""));
  write_text(line("1.5", "1"));
  EXPECT_THAT(error_of(dir_.path()), HasSubstr("field 'step': expected a whole number, found 1.5"));
  write_text(line("18446744073709551615", "1"));
  EXPECT_THAT(error_of(dir_.path()), HasSubstr("field 'step': expected a whole number"));
  write_text(line("1", "null"));
  EXPECT_THAT(error_of(dir_.path()), HasSubstr("field 'loss': expected a number"));
  write_text("{\"kind\":\"train\",\"step\":1}\n");
  EXPECT_THAT(error_of(dir_.path()), HasSubstr("field 'tokens' is missing"));
}

// Any byte changed: the lines are read, or the damage is named; resuming always leaves a file that
// reads.
TEST_F(MetricsTest, MutatedFilesReadOrAreRefusedAndAlwaysResume) {
  {
    MetricsWriter writer(dir_.path(), -1);
    writer.write(train_record(1));
    writer.write(ValidationRecord{1, 2, 3.5, 4.5, 5, CopyMeans{1, 2, 3, 4}});
    writer.write_nonfinite(2, {1});
  }
  const std::string whole = text();
  std::mt19937 random(1);
  for (int i = 0; i < 200; ++i) {
    std::string mutated = whole.substr(0, whole.size() - random() % 3);
    mutated[random() % mutated.size()] = static_cast<char>(random());
    write_text(mutated);
    try {
      read_metrics(dir_.path());
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("metrics.jsonl:"));
    }
    MetricsWriter(dir_.path(), 0);
    EXPECT_THAT(text(), ::testing::Not(HasSubstr("step\":1,"))) << mutated;
  }
}

TEST_F(MetricsTest, AFolderWithoutMetricsIsNamed) {
  EXPECT_THAT(error_of(dir_.path(), ExitCode::kBadConfig),
              AllOf(HasSubstr("metrics.jsonl does not exist"), HasSubstr("cplm train")));
}

TEST_F(MetricsTest, AFolderThatCannotBeMadeIsNamed) {
  const auto file = dir_.write("plain", "");
  EXPECT_THROW(MetricsWriter(file / "run", -1), Error);
}

}  // namespace
}  // namespace cplm
