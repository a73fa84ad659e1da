// Whole runs by real processes: equal when repeated, and equal bit for bit however often they are
// killed, stopped and resumed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cplm/base.h"
#include "support/training_folder.h"

namespace cplm::test {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;

constexpr int kStopped = 75;

ProcessOptions signal_at(int step, int signal_number) {
  ProcessOptions options;
  options.signal_at_marker = str("step ", step, "/40  loss");
  options.signal = signal_number;
  return options;
}

void expect_finished(const ProcessResult& result) {
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("finished: 40 steps, 2,560 tokens"));
  EXPECT_THAT(result.err, HasSubstr("summary: "));
}

// The run in `name` must be what the uninterrupted run in "straight" is.
void expect_equal_runs(const TrainingFolder& folder, const std::string& name) {
  EXPECT_EQ(folder.metrics(name), folder.metrics("straight"));
  EXPECT_EQ(folder.weights(name), folder.weights("straight"));
  EXPECT_THAT(folder.metrics(name, "train"), SizeIs(40));
  EXPECT_THAT(folder.metrics(name, "validation"), SizeIs(2));
}

TEST(TrainRun, TwoRunsAreEqualBitForBit) {
  const TrainingFolder folder;
  expect_finished(folder.train("straight"));
  expect_finished(folder.train("again"));
  expect_equal_runs(folder, "again");
  EXPECT_EQ(read_file(folder / "again/latest"), "step_0000000040\n");
  EXPECT_EQ(read_file(folder / "again/tokenizer.json"), read_file(folder / "data/tokenizer.json"));
  EXPECT_TRUE(std::filesystem::exists(folder / "again/validation/step_40.h5"));
  EXPECT_THAT(read_file(folder / "again/config.yaml"),
              AllOf(HasSubstr("# resolved by cplm"), HasSubstr("backbone: hybrid")));
  EXPECT_THAT(read_file(folder / "again/log.txt"), HasSubstr("finished: 40 steps"));
  // It learned, and another seed is another run.
  EXPECT_THAT(folder.metrics("again", "validation").back(), HasSubstr("\"copy_gate\":"));
  expect_finished(folder.train("other", {"run.seed=8"}));
  EXPECT_NE(folder.metrics("other"), folder.metrics("straight"));
}

// The masters, in float32, are what a bfloat16 run keeps: it goes on from them bit for bit.
TEST(TrainRun, InBFloat16ItResumesBitForBitFromFloat32Masters) {
  const TrainingFolder folder;
  const std::vector<std::string> half = {"train.precision=bfloat16"};
  const ProcessResult straight = folder.train("straight", half);
  expect_finished(straight);
  EXPECT_THAT(straight.err, HasSubstr("train.precision: bfloat16 on a CPU"));
  ASSERT_EQ(folder.train("killed", half, {}, signal_at(23, SIGKILL)).ended_by_signal, SIGKILL);
  expect_finished(folder.train("killed", half));
  expect_equal_runs(folder, "killed");
  const std::string model =
      read_file(folder / "straight/checkpoints/step_0000000040/model.safetensors");
  EXPECT_THAT(model.substr(0, 4000), AllOf(HasSubstr("F32"), Not(HasSubstr("BF16"))));
}

TEST(TrainRun, RecurrentLayersResumeBitForBitAlsoWhenRecomputed) {
  const TrainingFolder folder;
  Texts settings = {"model.backbone=null", "model.linear_conv_kernel=3",
                    "model.layer_types=[linear_attention, sliding_attention]",
                    "data.intra_document_mask=true", "optimizer.no_decay=['*.A_log']"};
  expect_finished(folder.train("straight", settings));
  ASSERT_EQ(folder.train("killed", settings, {}, signal_at(23, SIGKILL)).ended_by_signal, SIGKILL);
  expect_finished(folder.train("killed", settings));
  expect_equal_runs(folder, "killed");
  settings.push_back("train.activation_checkpointing=full");
  expect_finished(folder.train("recomputed", settings));
  expect_equal_runs(folder, "recomputed");
}

TEST(TrainRun, KilledAtTheMiddleAndResumedItIsTheStraightRun) {
  const TrainingFolder folder;
  expect_finished(folder.train("straight"));
  ASSERT_EQ(folder.train("killed", {}, {}, signal_at(23, SIGKILL)).ended_by_signal, SIGKILL);
  const ProcessResult resumed = folder.train("killed");
  expect_finished(resumed);
  EXPECT_THAT(resumed.err, HasSubstr("resumed at step 20"));
  expect_equal_runs(folder, "killed");
  EXPECT_THAT(read_file(folder / "killed/metrics.stale.jsonl"), HasSubstr("\"step\":23,"));
}

// Also before the first checkpoint, and while one is being written.
TEST(TrainRun, AMixtureLogsItsSharesAndResumesBitForBit) {
  const TrainingFolder folder;
  const std::vector<std::string> mixture = {
      "data.train=[{path: data/train/0.h5, weight: 3}, {path: data/train/1.h5, weight: 1}]"};
  expect_finished(folder.train("straight", mixture));
  EXPECT_THAT(
      read_file(folder / "straight/log.txt"),
      AllOf(HasSubstr("source data/train/0.h5: 75 % of the tokens, 62 windows an epoch, "),
            HasSubstr("source data/train/1.h5: 25 % of the tokens, 58 windows an epoch, ")));
  const auto lines = folder.metrics("straight", "data");
  ASSERT_THAT(lines, SizeIs(4));  // one a checkpoint
  EXPECT_THAT(lines[0], HasSubstr(R"("step":10,"tokens":640,"sources":[{"path":"data/train/0.h5",)"
                                  R"("weight":0.75,"share":)"));
  const nlohmann::json web = nlohmann::json::parse(lines[3])["sources"][0];
  EXPECT_NEAR(web["share"].get<double>(), 0.75, 0.12);  // of 160 sequences, 5 % of a block
  EXPECT_DOUBLE_EQ(web["epochs"].get<double>(), web["share"].get<double>() * 160 / 62);

  EXPECT_EQ(folder.train("stopped", mixture, {"--stop-after", "17"}).exit_code, kStopped);
  expect_finished(folder.train("stopped", mixture));
  EXPECT_THAT(folder.metrics("stopped", "data"), SizeIs(5));  // and one at the stop
  EXPECT_EQ(folder.metrics("stopped", "train"), folder.metrics("straight", "train"));
  EXPECT_EQ(folder.weights("stopped"), folder.weights("straight"));
  expect_finished(folder.train("plain"));
  EXPECT_THAT(folder.metrics("plain", "data"), SizeIs(0));
}

TEST(TrainRun, KilledThreeTimesInARowItIsTheStraightRun) {
  const TrainingFolder folder;
  expect_finished(folder.train("straight"));
  for (const int step : {3, 20, 31}) {
    ASSERT_EQ(folder.train("killed", {}, {}, signal_at(step, SIGKILL)).ended_by_signal, SIGKILL)
        << step;
  }
  expect_finished(folder.train("killed"));
  expect_equal_runs(folder, "killed");
}

TEST(TrainRun, KilledBetweenLogLinesTheRunningLossGoesOn) {
  const TrainingFolder folder;
  const Texts sparse = {"log.every=7", "checkpoint.every=5", "validation.every=10"};
  const ProcessResult straight = folder.train("straight", sparse);
  ASSERT_EQ(straight.exit_code, 0) << straight.err;
  ASSERT_EQ(folder.train("killed", sparse, {}, signal_at(21, SIGKILL)).ended_by_signal, SIGKILL);
  ASSERT_EQ(folder.train("killed", sparse, {"--stop-after", "3"}).exit_code, kStopped);
  ASSERT_EQ(folder.train("killed", sparse).exit_code, 0);
  EXPECT_EQ(folder.metrics("killed"), folder.metrics("straight"));
  EXPECT_EQ(folder.weights("killed"), folder.weights("straight"));
}

TEST(TrainRun, ALoggedLossIsTheMeanSinceTheLastLine) {
  const TrainingFolder folder;
  expect_finished(folder.train("each"));
  expect_finished(folder.train("sparse", {"log.every=8"}));
  const Texts each = folder.metrics("each", "train"), sparse = folder.metrics("sparse", "train");
  ASSERT_THAT(sparse, SizeIs(5));
  for (size_t line = 0; line < sparse.size(); ++line) {
    double sum = 0;  // every step counts 64 targets
    for (size_t step = 8 * line; step < 8 * line + 8; ++step) sum += number_in(each[step], "loss");
    EXPECT_NEAR(number_in(sparse[line], "loss"), sum / 8, 1e-12 * sum);
    for (const char* name : {"step", "tokens", "lr", "grad_norm"}) {  // those of its last step
      EXPECT_EQ(number_in(sparse[line], name), number_in(each[8 * line + 7], name)) << name;
    }
  }
}

TEST(TrainRun, AStopSignalFinishesTheStepSavesAndEndsWith75) {
  const TrainingFolder folder;
  expect_finished(folder.train("straight"));
  for (const int signal_number : {SIGTERM, SIGINT}) {
    const std::string name = str("stopped", signal_number);
    const ProcessResult stopped = folder.train(name, {}, {}, signal_at(13, signal_number));
    ASSERT_EQ(stopped.exit_code, kStopped) << stopped.err;
    EXPECT_THAT(stopped.err, HasSubstr("saved; run the same command to go on"));
    const ProcessResult resumed = folder.train(name);
    expect_finished(resumed);
    // Nothing was lost: it goes on from the step that it stopped at.
    const size_t lines = folder.metrics(name).size();
    EXPECT_EQ(lines, 42U);
    EXPECT_FALSE(std::filesystem::exists(folder / name / "metrics.stale.jsonl"));
    expect_equal_runs(folder, name);
  }
}

TEST(TrainRun, StopAfterDoesSoManyStepsAndEndsAsASignalWould) {
  const TrainingFolder folder;
  expect_finished(folder.train("straight"));
  const ProcessResult first = folder.train("parts", {}, {"--stop-after", "17"});
  EXPECT_EQ(first.exit_code, kStopped) << first.err;
  EXPECT_THAT(first.err, HasSubstr("stopped at step 17 of 40"));
  EXPECT_EQ(read_file(folder / "parts/latest"), "step_0000000017\n");
  EXPECT_EQ(folder.train("parts", {}, {"--stop-after", "1"}).exit_code, kStopped);
  EXPECT_EQ(read_file(folder / "parts/latest"), "step_0000000018\n");
  expect_finished(folder.train("parts", {}, {"--stop-after", "22"}));  // the end comes first
  expect_equal_runs(folder, "parts");
}

TEST(TrainRun, AFinishedRunStartedAgainChangesNothing) {
  const TrainingFolder folder;
  expect_finished(folder.train("straight"));
  const Texts before = folder.snapshot("straight");
  std::filesystem::rename(folder / "data", folder / "moved");  // not even its data is needed
  const ProcessResult again = folder.train("straight", {"log.every=5"});
  EXPECT_EQ(again.exit_code, 0);
  EXPECT_THAT(again.err,
              AllOf(HasSubstr("finished at step 40; nothing to do"),
                    HasSubstr("settings have changed since the run finished, and change nothing of "
                              "it: log.every: 1 -> 5; train.steps above 40")));
  EXPECT_EQ(folder.snapshot("straight"), before);
}

TEST(TrainRun, MoreStepsGoOnFromTheEnd) {
  const TrainingFolder folder;
  // A constant rate, since the others depend on the length of the run.
  const Texts constant = {"schedule.name=constant"};
  expect_finished(folder.train("straight", constant));
  const ProcessResult half = folder.train("raised", {"schedule.name=constant", "train.steps=20"});
  ASSERT_EQ(half.exit_code, 0) << half.err;
  const ProcessResult rest = folder.train("raised", constant);
  expect_finished(rest);
  EXPECT_THAT(rest.err,
              AllOf(HasSubstr("resumed at step 20"),
                    HasSubstr("config changed since the checkpoint: train.steps: 20 -> 40")));
  EXPECT_THAT(read_file(folder / "raised/log.txt"), HasSubstr("train.steps: 20 -> 40"));
  // A line tells of it; the rest is as in a run of that length from the start.
  EXPECT_THAT(folder.metrics("raised", "settings"), SizeIs(1));
  for (const char* kind : {"train", "validation"}) {
    EXPECT_EQ(folder.metrics("raised", kind), folder.metrics("straight", kind));
  }
  EXPECT_EQ(folder.weights("raised"), folder.weights("straight"));
}

TEST(TrainRun, FewerStepsThanDoneEndWithAValidation) {
  const TrainingFolder folder;
  ASSERT_EQ(folder.train("run", {}, {"--stop-after", "6"}).exit_code, kStopped);
  EXPECT_THAT(folder.metrics("run", "validation"), SizeIs(0));
  EXPECT_EQ(folder.train("run", {"train.steps=6"}).exit_code, 0);
  EXPECT_THAT(folder.metrics("run", "validation"), SizeIs(1));
  const Texts before = folder.snapshot("run");
  EXPECT_EQ(folder.train("run", {"train.steps=6"}).exit_code, 0);
  EXPECT_THAT(folder.train("run", {"train.steps=5"}).err,
              AllOf(HasSubstr("nothing to do"), HasSubstr("train.steps: 6 -> 5")));
  EXPECT_EQ(folder.snapshot("run"), before);
}

TEST(TrainRun, AnOlderCheckpointIsTakenByNameAndTheNewerOnesSetAside) {
  const TrainingFolder folder;
  expect_finished(folder.train("straight"));
  const Texts before = folder.snapshot("straight");
  const std::string older = "straight/checkpoints/step_0000000010";
  // A refused resume moves nothing.
  EXPECT_EQ(folder.train("straight", {"run.seed=8"}, {"--resume", older}).exit_code, 2);
  EXPECT_EQ(folder.snapshot("straight"), before);

  const Texts metrics = folder.metrics("straight"), weights = folder.weights("straight");
  const ProcessResult resumed = folder.train("straight", {}, {"--resume", older});
  expect_finished(resumed);
  EXPECT_THAT(resumed.err, AllOf(HasSubstr("resumed at step 10"), HasSubstr("set aside")));
  EXPECT_EQ(folder.metrics("straight"), metrics);
  EXPECT_EQ(folder.weights("straight"), weights);
  EXPECT_TRUE(std::filesystem::exists(folder / "straight/checkpoints.stale/step_0000000030"));
}

TEST(TrainRun, ValidationChangesNoTrainingNumber) {
  const TrainingFolder folder;
  expect_finished(folder.train("straight"));
  int number = 0;
  for (const Texts& settings :
       {Texts{"validation.every=0"}, Texts{"validation.every=3", "validation.sequences=0"},
        Texts{"data.validation=[]"}}) {
    const std::string name = str("run", ++number);
    expect_finished(folder.train(name, settings));
    EXPECT_EQ(folder.metrics(name, "train"), folder.metrics("straight", "train")) << settings[0];
    EXPECT_EQ(folder.weights(name), folder.weights("straight")) << settings[0];
  }
  EXPECT_THAT(folder.metrics("run1", "validation"), SizeIs(1));  // a finished run ends with one
  EXPECT_THAT(folder.metrics("run2", "validation"), SizeIs(14));
  EXPECT_THAT(folder.metrics("run3", "validation"), SizeIs(0));
}

// The rate grows until the weights are damaged: from then on every loss stands out, and a guard
// that left all of them out would train no more.
TEST(TrainRun, ALastingRiseOfTheLossIsANewLevel) {
  const TrainingFolder folder;
  const ProcessResult result =
      folder.train("run", {"loss_spike.action=skip", "loss_spike.window=8", "loss_spike.z_score=3",
                           "optimizer.lr=20", "schedule.warmup_steps=20"});
  expect_finished(result);
  EXPECT_THAT(result.err, HasSubstr("; its batch is left out (loss_spike: skip)"));
  EXPECT_THAT(result.err, HasSubstr("stands out for the 9th step in a row: taken for a new level"));
  EXPECT_GE(folder.metrics("run", "loss_spike").size(), 8U);
}

TEST(TrainRun, RetentionKeepsWhatItSays) {
  const TrainingFolder folder;
  expect_finished(
      folder.train("run", {"checkpoint.every=8", "checkpoint.keep=2", "checkpoint.keep_every=16"}));
  Texts steps;
  for (const auto& item : std::filesystem::directory_iterator(folder / "run/checkpoints")) {
    steps.push_back(item.path().filename().string());
  }
  std::sort(steps.begin(), steps.end());
  EXPECT_THAT(steps, testing::ElementsAre(".lock", "step_0000000016", "step_0000000032",
                                          "step_0000000040"));
}

}  // namespace
}  // namespace cplm::test
