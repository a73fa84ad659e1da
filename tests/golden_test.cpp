// The product and the reference against the golden files (SPEC.md, section 6): those of the folder
// that CPLM_GOLDEN_DIR names, else tests/golden. A file that cannot be read whole is a failure.
#include "support/golden.h"

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include "cplm/base.h"
#include "cplm/checkpoint.h"
#include "cplm/decode.h"
#include "support/compare.h"
#include "support/models.h"
#include "support/temp_dir.h"
#include "support/tensors.h"
#include "support/tolerance.h"

namespace cplm::test {
namespace {

std::unique_ptr<LanguageModel> load(const GoldenCase& golden, OpsKind ops) {
  auto model = make_model(golden.config, at::kDouble, ops);
  golden.load(*model);
  return model;
}

void expect_near(const GoldenCase& golden, const std::string& name, const at::Tensor& actual) {
  EXPECT_EQ(actual.sizes(), golden.at(name).sizes()) << name;
  EXPECT_TRUE(near(values(actual), values(golden.at(name)), kGoldenValue)) << name;
}

void expect_distributions(const GoldenCase& golden, LanguageModel& model, const at::Tensor& h) {
  const int64_t rows = h.size(0), positions = h.size(1);
  const std::vector<std::pair<std::string, CopyMode>> modes = {
      {"p.natural", CopyMode::kNatural},
      {"p.no_copy", CopyMode::kNoCopy},
      {"p.force_copy", CopyMode::kForceCopy}};
  for (const auto& [name, mode] : modes) {
    for (int64_t row = 0; row < rows; ++row) {
      const at::Tensor p = model.distribution(h, golden.input, row, 0, positions, mode);
      EXPECT_TRUE(near(values(p), values(golden.at(name).select(0, row)), kGoldenValue))
          << name << " row " << row;
    }
  }
}

void expect_gradients(const GoldenCase& golden, const LanguageModel& model) {
  for (const Parameter& p : model.parameters().all()) {
    const at::Tensor& want = golden.at("grad." + p.name);
    EXPECT_EQ(p.grad.sizes(), want.sizes()) << p.name;
    EXPECT_TRUE(close(values(p.grad), values(want), kGoldenGradient)) << "grad." << p.name;
  }
}

void expect_model_equals(const GoldenCase& golden, OpsKind ops) {
  const auto model = load(golden, ops);
  const at::Tensor h = model->hidden(golden.input);
  expect_near(golden, "hidden", h);
  expect_near(golden, "logp", model->forward_backward(golden.input, mean_weight(golden.input)));
  expect_gradients(golden, *model);
  const PositionScores scores = model->score(golden.input);
  expect_near(golden, "logp", scores.log_prob);
  if (golden.config.head == HeadKind::kVanilla) return;
  expect_near(golden, "copy_gate", scores.copy_gate);
  expect_near(golden, "sink", scores.sink_mass);
  expect_distributions(golden, *model, h);
}

TEST(Golden, EveryFileHoldsForTheModel) {
  for (const auto& path : golden_files(golden_folder())) {
    SCOPED_TRACE(path.string());
    const GoldenCase golden = read_golden(path);
    for (const OpsKind ops : {OpsKind::kComposed, OpsKind::kFused}) {
      SCOPED_TRACE(ops == OpsKind::kFused ? "fused" : "composed");
      expect_model_equals(golden, ops);
    }
  }
}

// Token by token, with caches; the documents of a file are told by where they start.
TEST(Golden, DecodingGivesTheSameDistributions) {
  for (const auto& path : golden_files(golden_folder())) {
    const GoldenCase golden = read_golden(path);
    if (golden.config.head == HeadKind::kVanilla || golden.input.document_start.defined()) continue;
    SCOPED_TRACE(path.string());
    const auto model = load(golden, OpsKind::kFused);
    const int64_t rows = golden.input.ids.size(0), positions = golden.input.ids.size(1);
    DecoderOptions options;
    options.sequences = rows;
    Decoder decoder(*model, options);
    for (int64_t t = 0; t < positions; ++t) {
      std::vector<NewTokens> tokens;
      for (int64_t row = 0; row < rows; ++row) {
        tokens.push_back({row, {golden.input.ids[row][t].item<int64_t>()}, 1, false});
      }
      NextTokens next = decoder.advance(tokens).at(0);
      const auto expect_mode = [&](const char* name, CopyMode mode) {
        next.input.mode = mode;
        const at::Tensor p = ops::next_token_distribution(next.input, OpsKind::kFused);
        EXPECT_TRUE(near(values(p), values(golden.at(name).select(1, t)), kGoldenValue))
            << name << ", position " << t;
      };
      expect_mode("p.natural", CopyMode::kNatural);
      expect_mode("p.no_copy", CopyMode::kNoCopy);
      expect_mode("p.force_copy", CopyMode::kForceCopy);
    }
  }
}

// The reference that the other tests trust, against the same numbers.
TEST(Golden, EveryFileHoldsForTheReference) {
  for (const auto& path : golden_files(golden_folder())) {
    SCOPED_TRACE(path.string());
    const GoldenCase golden = read_golden(path);
    const reference::Settings settings = settings_of(golden.config);
    const NamedValues weights = cplm::test::weights(*load(golden, OpsKind::kComposed));
    const auto sequences = sequences_of(golden.input);
    for (size_t row = 0; row < sequences.size(); ++row) {
      const auto want = [&](const std::string& name) {
        return values(golden.at(name).select(0, static_cast<int64_t>(row)));
      };
      const auto h = reference::hidden(settings, weights, sequences[row]);
      const auto got = reference::predict(settings, weights, sequences[row]);
      EXPECT_TRUE(near(h.data, want("hidden"), kGoldenValue));
      EXPECT_TRUE(near(got.log_prob, want("logp"), kGoldenValue));
      if (!settings.copy_head) continue;
      EXPECT_TRUE(near(got.natural.data, want("p.natural"), kGoldenValue));
      EXPECT_TRUE(near(got.no_copy.data, want("p.no_copy"), kGoldenValue));
      EXPECT_TRUE(near(got.force_copy.data, want("p.force_copy"), kGoldenValue));
      EXPECT_TRUE(near(got.copy_gate, want("copy_gate"), kGoldenValue));
      EXPECT_TRUE(near(got.sink_mass, want("sink"), kGoldenValue));
    }
  }
}

// ---- the test itself can fail -------------------------------------------------------------------
class GoldenReading : public ::testing::Test {
 protected:
  TempDir dir_;
  NamedTensors tensors_;
  std::string config_;

  void SetUp() override {
    const SafetensorsFile file(std::filesystem::path(CPLM_SOURCE_DIR) /
                               "tests/golden/full_cplm.safetensors");
    for (const auto& [name, entry] : file.entries()) tensors_.emplace_back(name, file.read(name));
    config_ = file.metadata().at("config");
  }
  void replace(const std::string& from, const std::string& to) {
    const size_t at = config_.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    config_.replace(at, from.size(), to);
  }
  void leave_out(const std::string& name) {
    std::erase_if(tensors_, [&](const auto& entry) { return entry.first == name; });
  }
  std::string message() const {
    const auto path = dir_ / "case.safetensors";
    write_safetensors(path, tensors_, {{"config", config_}});
    try {
      read_golden(path);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
};

TEST_F(GoldenReading, AcceptsAnUnchangedCopy) { EXPECT_EQ(message(), ""); }

TEST_F(GoldenReading, MissingAndUnknownTensorsAreErrors) {
  leave_out("grad.cp_head.sink");
  EXPECT_NE(message().find("lacks tensor grad.cp_head.sink"), std::string::npos) << message();
  tensors_.emplace_back("grad.cp_head.sinks", tensors_.front().second);
  EXPECT_NE(message().find("unknown tensor grad.cp_head.sinks"), std::string::npos) << message();
}

TEST_F(GoldenReading, UnknownSettingsAndValuesAreErrors) {
  replace("\"head\": \"cplm\"", "\"head\": \"plain\"");
  EXPECT_NE(message().find("unknown value \"plain\""), std::string::npos) << message();
  replace("\"head\": \"plain\"", "\"head\": \"cplm\", \"heads_tied\": 1");
  EXPECT_NE(message().find("unknown setting heads_tied"), std::string::npos) << message();
  replace(", \"heads_tied\": 1", "");
  replace("\"include_current\": true, ", "");
  EXPECT_NE(message().find("include_current"), std::string::npos) << message();
}

TEST_F(GoldenReading, AFolderWithoutFilesIsAnError) {
  EXPECT_THROW(golden_files(dir_.path()), Error);
  EXPECT_THROW(golden_files(dir_ / "absent"), std::exception);
}

TEST_F(GoldenReading, AWrongNumberIsSeen) {
  for (const std::string changed : {"hidden", "logp", "p.natural", "grad.cp_head.sink"}) {
    const GoldenCase golden =
        read_golden(std::filesystem::path(CPLM_SOURCE_DIR) / "tests/golden/full_cplm.safetensors");
    golden.at(changed).select(0, 0).add_(1e-6);
    ::testing::TestPartResultArray failures;
    {
      ::testing::ScopedFakeTestPartResultReporter catcher(
          ::testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &failures);
      expect_model_equals(golden, OpsKind::kComposed);
    }
    EXPECT_GT(failures.size(), 0) << changed;
  }
}

}  // namespace
}  // namespace cplm::test
