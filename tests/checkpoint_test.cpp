// Checkpoints as their users see them: saved, found, opened, verified, and what is said when one is
// damaged.
#include "cplm/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "cplm/base.h"
#include "support/checkpoints.h"
#include "support/temp_dir.h"

namespace cplm {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using test::flip_bit;
using test::save;
using test::TempDir;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(Checkpoint, SavesWhatTheReaderGivesBack) {
  const TempDir run;
  const fs::path folder = save(run.path(), 1000);
  EXPECT_EQ(folder, run.path() / "checkpoints" / "step_0000001000");
  EXPECT_EQ(read_file(run / "latest"), "step_0000001000\n");
  EXPECT_THAT(test::names_in(run.path()), ElementsAre("step_0000001000"));
  EXPECT_THAT(verify_checkpoint(folder), IsEmpty());

  CheckpointReader reader(folder);
  EXPECT_TRUE(reader.has_training_state());
  EXPECT_EQ(reader.folder(), folder);
  EXPECT_EQ(reader.step(), 1000);
  EXPECT_EQ(reader.state(), test::state_of(1000));
  for (const auto& [name, tensor] : test::model_of(1000)) {
    EXPECT_TRUE(reader.model().read(name).equal(tensor)) << name;
  }
  for (const auto& [name, tensor] : test::optimizer_of(1000)) {
    EXPECT_TRUE(reader.optimizer().read(name).equal(tensor)) << name;
  }
}

TEST(Checkpoint, ManifestHoldsSizesHashesAndCounts) {
  const TempDir run;
  const fs::path folder = save(run.path(), 3);
  const std::string manifest = read_file(folder / "manifest.json");
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "state.json"}) {
    EXPECT_THAT(manifest, HasSubstr(sha256_file(folder / name))) << name;
    EXPECT_THAT(manifest, HasSubstr(str("\"size_bytes\": ", fs::file_size(folder / name)))) << name;
  }
  EXPECT_THAT(manifest, AllOf(HasSubstr("\"tensors\": 2"), HasSubstr("\"tensors\": 4"),
                              HasSubstr("\"format_version\": 1"), HasSubstr("\"step\": 3")));
}

TEST(Checkpoint, EqualContentGivesEqualBytes) {
  const TempDir a, b;
  save(a.path(), 5);
  save(b.path(), 5);
  EXPECT_EQ(read_file(a / "checkpoints/step_0000000005/manifest.json"),
            read_file(b / "checkpoints/step_0000000005/manifest.json"));
}

TEST(Checkpoint, SavingAStepAgainTakesTheNewContent) {
  const TempDir run;
  save(run.path(), 10);
  const fs::path folder =
      save_checkpoint(run.path(), 10, test::model_of(77), {}, test::state_of(10));
  EXPECT_THAT(test::names_in(run.path()), ElementsAre("step_0000000010"));
  CheckpointReader reader(folder);
  EXPECT_EQ(reader.model().read("norm.weight").select(0, 0).item<float>(), 77);
  EXPECT_TRUE(reader.optimizer().entries().empty());
}

// As long as it is written, those who look for the run's newest checkpoint find the one before.
TEST(Checkpoint, LatestNamesTheOneBeforeWhileTheNextIsWritten) {
  const TempDir run;
  save(run.path(), 1);
  int64_t heard = 0;
  save_checkpoint(run.path(), 2, test::model_of(2), test::optimizer_of(2), test::state_of(2), [&] {
    heard += 1;
    EXPECT_EQ(read_file(run / "latest"), "step_0000000001\n");
    EXPECT_EQ(newest_complete(run.path())->step, 1);
  });
  EXPECT_GE(heard, 2);  // the model's file and the optimizer's
  EXPECT_EQ(read_file(run / "latest"), "step_0000000002\n");
  EXPECT_EQ(newest_complete(run.path())->step, 2);
}

TEST(Checkpoint, RefusesStateThatWouldNotLoad) {
  const TempDir run;
  const auto error = [&](int64_t step, const std::string& state) {
    return error_of([&] { save_checkpoint(run.path(), step, {}, {}, state); });
  };
  EXPECT_THAT(error(-1, "{}"), HasSubstr("step -1: expected 0 or more"));
  EXPECT_THAT(error(1, "{"), HasSubstr("its state: it is not JSON"));
  EXPECT_THAT(error(1, "{\"step\": 2}"), HasSubstr("its step is 2, the manifest's 1"));
  EXPECT_FALSE(fs::exists(run / "checkpoints"));
}

TEST(Checkpoint, ListsNewestFirstAndSaysWhyIncomplete) {
  const TempDir run;
  EXPECT_THAT(list_checkpoints(run.path()), IsEmpty());
  EXPECT_FALSE(newest_complete(run.path()));
  for (int64_t step : {5, 20, 10, 30, 40, 50}) save(run.path(), step);
  fs::remove(run / "checkpoints/step_0000000010/optimizer.safetensors");
  fs::remove(run / "checkpoints/step_0000000020/manifest.json");
  fs::resize_file(run / "checkpoints/step_0000000030/model.safetensors", 100);
  run.write("checkpoints/step_0000000040/manifest.json", "{");
  fs::rename(run / "checkpoints/step_0000000050", run / "checkpoints/step_0000000060");
  run.write("checkpoints/step_7/manifest.json", "");
  run.write("checkpoints/notes.txt", "mine");
  fs::create_directories(run / "checkpoints/.step_0000000099.partial");

  const auto found = list_checkpoints(run.path());
  ASSERT_EQ(found.size(), 6);
  EXPECT_EQ(found[0].problem, "manifest.json is of step 50");
  EXPECT_THAT(found[1].problem, HasSubstr("manifest.json is not JSON"));
  EXPECT_THAT(found[2].problem, HasSubstr("model.safetensors has 100 bytes, expected "));
  EXPECT_EQ(found[3].problem, "manifest.json is missing");
  EXPECT_EQ(found[4].problem, "optimizer.safetensors is missing");
  EXPECT_TRUE(found[5].complete());
  for (const size_t damaged : {0, 1, 2, 4}) {
    EXPECT_EQ(found[damaged].state, CheckpointState::kDamaged) << damaged;
  }
  EXPECT_EQ(found[3].state, CheckpointState::kUnfinished);
}

// No kill leaves one of these, so somebody has to know.
TEST(Checkpoint, ADamagedNewestIsRefusedAndTheOlderOffered) {
  const TempDir run;
  save(run.path(), 1);
  const fs::path folder = save(run.path(), 2);
  const auto refusal = [&] { return error_of([&] { newest_complete(run.path()); }); };
  const auto offers = [](const char* problem) {
    return AllOf(HasSubstr("step_0000000002 is incomplete: "), HasSubstr(problem),
                 HasSubstr("the next older complete checkpoint is "), HasSubstr("--resume "),
                 HasSubstr("step_0000000001"), testing::Not(HasSubstr("\n")));
  };
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "state.json"}) {
    const std::string sound = read_file(folder / name);
    fs::resize_file(folder / name, 5);
    EXPECT_THAT(refusal(), offers("has 5 bytes, expected "));
    fs::remove(folder / name);
    EXPECT_THAT(refusal(), offers(" is missing"));
    fs::create_directory(folder / name);
    EXPECT_THAT(refusal(), offers(" is not a file"));
    fs::remove(folder / name);
    write_file_atomic(folder / name, sound);
  }
  fs::rename(folder / "manifest.json", run / "kept");
  EXPECT_THAT(refusal(), offers("manifest.json is missing"));  // but `latest` names the folder
  EXPECT_EQ(refusal(), error_of([&] { resolve_checkpoint(run.path()); }));
  fs::rename(run / "kept", folder / "manifest.json");
  EXPECT_EQ(newest_complete(run.path())->step, 2);
  fs::remove_all(run / "checkpoints/step_0000000001");
  fs::remove(folder / "state.json");
  EXPECT_THAT(refusal(), HasSubstr("state.json is missing; there is no older complete checkpoint"));
}

// A copy that was cut off, for one. Without a manifest and never named by `latest`.
TEST(Checkpoint, AFolderThatWasNeverWholeIsPassedOverAndNamed) {
  const TempDir run;
  const fs::path newest = save(run.path(), 2);
  run.write("checkpoints/step_0000000005/model.safetensors", "half");
  run.write("checkpoints/step_0000000006", "a file");
  testing::internal::CaptureStderr();
  EXPECT_EQ(newest_complete(run.path())->step, 2);
  log::flush();
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("warning: passing over "),
                    HasSubstr(str("step_0000000005, which was never a whole checkpoint: "
                                  "manifest.json is missing; the next older complete one is ",
                                  newest.string())),
                    HasSubstr("step_0000000006, which was never a whole checkpoint: it is not a")));
  // Newer than the damage, they do not hide it.
  fs::remove(newest / "state.json");
  EXPECT_THAT(error_of([&] { newest_complete(run.path()); }),
              HasSubstr("step_0000000002 is incomplete: state.json is missing"));
  fs::remove(newest / "manifest.json");
  fs::remove(run / "latest");
  EXPECT_FALSE(newest_complete(run.path()));
}

TEST(Checkpoint, LatestIsOnlyANote) {
  const TempDir run;
  save(run.path(), 1);
  save(run.path(), 2);
  for (const char* text : {"step_0000000001\n", "step_0000000009", "../../etc", ""}) {
    run.write("latest", text);
    EXPECT_EQ(newest_complete(run.path())->step, 2) << text;
  }
  fs::remove(run / "latest");
  testing::internal::CaptureStderr();
  EXPECT_EQ(newest_complete(run.path())->step, 2);
  log::flush();
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("latest is missing"));
  save(run.path(), 1);  // an older step never becomes the latest
  EXPECT_EQ(read_file(run / "latest"), "step_0000000002\n");
}

TEST(Checkpoint, ResolvesRunsStepsAndForeignFolders) {
  const TempDir run;
  save(run.path(), 1);
  const fs::path newest = save(run.path(), 2);
  EXPECT_EQ(resolve_checkpoint(run.path()), newest);
  EXPECT_EQ(resolve_checkpoint(str(run.path().string(), "/")), newest);
  EXPECT_EQ(resolve_checkpoint(run / "checkpoints").filename(), newest.filename());
  EXPECT_THAT(verify_checkpoint(run / "checkpoints/step_0000000001/."), IsEmpty());
  EXPECT_EQ(resolve_checkpoint(run / "checkpoints/step_0000000001").filename(), "step_0000000001");

  const TempDir foreign;
  fs::copy_file(newest / "model.safetensors", foreign / "model.safetensors");
  EXPECT_EQ(resolve_checkpoint(foreign.path()), foreign.path());
  CheckpointReader reader(foreign.path());
  EXPECT_FALSE(reader.has_training_state());
  EXPECT_TRUE(reader.model().contains("norm.weight"));
  EXPECT_THAT(error_of([&] { reader.optimizer(); }), HasSubstr("holds weights only"));
  EXPECT_THAT(error_of([&] { reader.state(); }), HasSubstr("no state to go on training from"));
  EXPECT_THAT(error_of([&] { (void)reader.step(); }), HasSubstr("no step"));
}

TEST(Checkpoint, ResolvingSaysWhatWasLookedFor) {
  const TempDir run;
  const auto error = [](const fs::path& path) {
    return error_of([&] { resolve_checkpoint(path); });
  };
  EXPECT_THAT(error(run / "none"), HasSubstr("none: no such file or folder"));
  EXPECT_THAT(error(run.write("file", "")), HasSubstr("is a file; expected a folder"));
  EXPECT_THAT(error(run.path()), HasSubstr("looked for checkpoints/ (a run's folder), manifest"));
  fs::create_directory(run / "checkpoints");
  EXPECT_THAT(error(run.path()), HasSubstr("it has no step_... folder"));
  save(run.path(), 1);
  fs::remove(save(run.path(), 2) / "state.json");
  EXPECT_THAT(
      error(run / "checkpoints/step_0000000002"),
      AllOf(HasSubstr("is incomplete: state.json is missing; the next older complete "),
            HasSubstr("(train goes on from it by --resume "), HasSubstr("step_0000000001)")));
  fs::remove(run / "checkpoints/step_0000000001/manifest.json");
  EXPECT_THAT(error(run / "checkpoints/step_0000000001/"),
              HasSubstr("is incomplete: manifest.json is missing; there is no older"));
  fs::remove(run / "checkpoints/step_0000000002/manifest.json");
  fs::remove(run / "latest");
  EXPECT_THAT(error(run.path()), AllOf(HasSubstr("no complete checkpoint"),
                                       HasSubstr("step_0000000001: manifest.json is missing")));
}

TEST(Checkpoint, ReaderRefusesFlippedBitsAndOffersTheOlder) {
  const TempDir run;
  save(run.path(), 1);
  const fs::path folder = save(run.path(), 2);
  const std::string expected = sha256_file(folder / "model.safetensors");
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "state.json"}) {
    flip_bit(folder / name);
  }
  CheckpointReader reader(folder);
  EXPECT_THAT(error_of([&] { reader.model(); }),
              AllOf(HasSubstr("step_0000000002/model.safetensors is damaged"), HasSubstr(expected),
                    HasSubstr(sha256_file(folder / "model.safetensors")),
                    HasSubstr("step_0000000001 (train goes on from it by --resume ")));
  EXPECT_THAT(error_of([&] { reader.optimizer(); }), HasSubstr("optimizer.safetensors is damaged"));
  EXPECT_THAT(error_of([&] { reader.state(); }), HasSubstr("state.json is damaged"));
  EXPECT_EQ(CheckpointReader(folder, Verify::kSizes).model().entries().size(), 2);

  fs::remove_all(run / "checkpoints/step_0000000001");
  EXPECT_THAT(error_of([&] { reader.model(); }), HasSubstr("there is no older complete"));
  fs::remove(folder / "optimizer.safetensors");
  EXPECT_THAT(error_of([&] { CheckpointReader damaged(folder); }),
              HasSubstr("is incomplete: optimizer.safetensors is missing"));
  EXPECT_THAT(error_of([&] { CheckpointReader none(run.path()); }),
              HasSubstr("neither manifest.json nor model.safetensors"));
}

// Sizes and hashes agree, but not the two steps.
TEST(Checkpoint, AStateOfAnotherStepIsRefused) {
  const TempDir run;
  save(run.path(), 1);
  const fs::path folder = save(run.path(), 2);
  const std::string hash = sha256_file(folder / "state.json");
  write_file_atomic(folder / "state.json", test::state_of(7));
  std::string manifest = read_file(folder / "manifest.json");
  manifest.replace(manifest.find(hash), hash.size(), sha256_file(folder / "state.json"));
  write_file_atomic(folder / "manifest.json", manifest);
  EXPECT_EQ(newest_complete(run.path())->step, 2);
  for (const Verify verify : {Verify::kHashes, Verify::kSizes}) {
    CheckpointReader reader(folder, verify);
    EXPECT_THAT(error_of([&] { reader.state(); }),
                AllOf(HasSubstr("step_0000000002/state.json: its step is 7, the manifest's 2"),
                      HasSubstr("step_0000000001 (train goes on from it by --resume ")));
  }
}

TEST(Checkpoint, HostileManifestsAreProblems) {
  const TempDir run;
  const fs::path folder = save(run.path(), 1);
  const std::string good = read_file(folder / "manifest.json");
  const auto problem = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const size_t position = text.find(from);
    EXPECT_NE(position, std::string::npos) << from;
    run.write("checkpoints/step_0000000001/manifest.json", text.replace(position, from.size(), to));
    return list_checkpoints(run.path()).at(0).problem;
  };
  EXPECT_EQ(problem("cplm-checkpoint", "cplm-checkpoint"), "");
  EXPECT_THAT(problem("cplm-checkpoint", "cplm-shards"), HasSubstr("not a checkpoint's manifest"));
  EXPECT_THAT(problem("\"format_version\": 1", "\"format_version\": 2"),
              HasSubstr("format_version is 2, this program reads 1"));
  EXPECT_THAT(problem("\"step\": 1", "\"step\": -1"), HasSubstr("'step' is not a whole number"));
  EXPECT_THAT(problem("\"step\": 1", "\"stop\": 1"), HasSubstr("'step' is missing"));
  EXPECT_THAT(problem("state.json", "../../latest"), HasSubstr("not a plain file name"));
  EXPECT_THAT(problem("state.json", ".."), HasSubstr("not a plain file name"));
  EXPECT_THAT(problem("state.json", "other.json"), HasSubstr("does not list state.json"));
  EXPECT_THAT(problem("\"sha256\": \"", "\"sha256\": \"x"), HasSubstr("not 64 hex digits"));
  EXPECT_THAT(problem("\"size_bytes\": ", "\"size_bytes\": 1.5e3, \"x\": "),
              HasSubstr("'size_bytes' is not a whole number"));
  EXPECT_THAT(problem("\"files\": {", "\"files\": 3, \"x\": {"), HasSubstr("'files' is not a map"));
}

TEST(Checkpoint, VerifyNamesEveryProblem) {
  const TempDir run;
  EXPECT_THAT(verify_checkpoint(run / "none"),
              ElementsAre(HasSubstr("run's folder, found nothing")));
  save(run.path(), 1);
  EXPECT_THAT(verify_checkpoint(run.path()), IsEmpty());
  const fs::path folder = save(run.path(), 2);
  flip_bit(folder / "model.safetensors");
  fs::resize_file(folder / "optimizer.safetensors", 50);
  fs::remove(folder / "state.json");
  EXPECT_THAT(verify_checkpoint(folder),
              ElementsAre(HasSubstr("model.safetensors has the sha256"),
                          HasSubstr("optimizer.safetensors has 50 bytes, the manifest says"),
                          HasSubstr("state.json: No such file"),
                          HasSubstr("not a sound safetensors file")));
  fs::remove(folder / "manifest.json");
  EXPECT_THAT(verify_checkpoint(folder), ElementsAre(HasSubstr("manifest.json")));
}

TEST(Checkpoint, VerifyReadsTheTensors) {
  const TempDir run;
  NamedTensors model = test::model_of(1);
  model[1].second.select(0, 2).fill_(std::nan(""));
  model[1].second.select(0, 3).fill_(-std::numeric_limits<float>::infinity());
  NamedTensors optimizer = test::optimizer_of(1);
  optimizer[0].second = at::full({2, 8}, 1.0);
  optimizer[1].first = "exp_avg_sq.norm";
  optimizer.resize(3);
  const fs::path folder = save_checkpoint(run.path(), 1, model, optimizer, "{}");
  EXPECT_THAT(verify_checkpoint(folder),
              testing::UnorderedElementsAre(
                  HasSubstr("'norm.weight' holds 2 values that are NaN or infinite, of 8"),
                  HasSubstr("'exp_avg.embed.weight' has the shape [2, 8], the weight has [16, 8]"),
                  HasSubstr("'exp_avg.embed.weight' stands alone"),
                  HasSubstr("'exp_avg.norm.weight' stands alone"),
                  HasSubstr("'exp_avg_sq.norm' belongs to no tensor")));
  NamedTensors counted = test::optimizer_of(3);
  counted.emplace_back("adam_step", at::full({}, 3.0));
  EXPECT_THAT(verify_checkpoint(save_checkpoint(run.path(), 3, test::model_of(3), counted, "{}")),
              testing::IsEmpty());
  const fs::path bare = save_checkpoint(
      run.path(), 2, test::model_of(2),
      {{"exp_avg.norm.weight", at::full({8}, 0.0)}, {"exp_avg_sq.norm.weight", at::full({8}, 0.0)}},
      "{}");
  EXPECT_THAT(verify_checkpoint(bare),
              ElementsAre(HasSubstr("nothing for the weight 'embed.weight'")));
}

}  // namespace
}  // namespace cplm
