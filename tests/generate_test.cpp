// Writing text: greedy and sampled tokens against the full forward, batches against single prompts,
// filters against their definition, and the ends of a text.
#include "cplm/generate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "cplm/base.h"
#include "support/generation.h"

namespace cplm::test {
namespace {

using ::testing::HasSubstr;

at::Tensor next_distribution(LanguageModel& model, const std::vector<int64_t>& ids, CopyMode mode) {
  const auto count = static_cast<int64_t>(ids.size());
  ModelInput input;
  input.ids = id_tensor({ids.begin(), ids.end()}, {1, count});
  input.targets = input.ids;
  return model.distribution(model.hidden(input), input, 0, count - 1, count, mode).select(0, 0);
}

TEST(Generate, GreedyTakesTheLikeliestOfTheFullForward) {
  for (const std::string backbone : {"full", "sliding", "hybrid", "recurrent"}) {
    const auto model = make_model(generation_config(backbone));
    std::vector<int64_t> ids = make_prompts({5}).front();
    GenerateOptions options = greedy(12);
    options.mode_changes = {{4, CopyMode::kForceCopy}, {8, CopyMode::kNoCopy}};
    const Generated out = generate(*model, {ids}, options);
    for (size_t i = 0; i < 12; ++i) {
      const CopyMode mode = i < 4   ? CopyMode::kNatural
                            : i < 8 ? CopyMode::kForceCopy
                                    : CopyMode::kNoCopy;
      const at::Tensor p = next_distribution(*model, ids, mode);
      ids.push_back(out.texts[0].ids.at(i));
      EXPECT_EQ(ids.back(), p.argmax().item<int64_t>()) << backbone << ", token " << i;
      EXPECT_NEAR(out.texts[0].log_probs.at(i), std::log(p.max().item<double>()), 1e-9);
    }
    EXPECT_EQ(out.texts[0].reason, StopReason::kLength);
    EXPECT_EQ(out.counts.new_tokens, 12);
    EXPECT_EQ(out.counts.prompt_tokens, 5);
    EXPECT_EQ(out.counts.passes, 11);
  }
}

// Neither the batch nor its order decides a token, only the prompt's number and the position.
TEST(Generate, BatchesGiveWhatSinglePromptsGive) {
  const auto prompts = make_prompts({4, 13, 1, 7});
  for (const std::string backbone : {"full", "hybrid"}) {
    const auto model = make_model(generation_config(backbone));
    for (const GenerateOptions& options : {greedy(15), sampled(15)}) {
      const Generated batch = generate(*model, prompts, options);
      for (size_t i = 0; i < prompts.size(); ++i) {
        GenerateOptions single = options;
        single.first_prompt = static_cast<int64_t>(i);
        EXPECT_EQ(generate(*model, {prompts[i]}, single).texts[0].ids, batch.texts[i].ids);
      }
    }
  }
}

TEST(Generate, TextsThatEndLeaveTheBatch) {
  const auto model = make_model(generation_config("sliding"));
  const auto prompts = make_prompts({4, 9, 6, 5});
  GenerateOptions options = sampled(30);
  const Generated whole = generate(*model, prompts, options);
  options.stop_ids = {2, 7};
  const Generated out = generate(*model, prompts, options);
  for (size_t i = 0; i < prompts.size(); ++i) {
    std::vector<int64_t> want = whole.texts[i].ids;
    const auto stop =
        std::find_if(want.begin(), want.end(), [](int64_t id) { return id == 2 || id == 7; });
    const bool stops = stop != want.end();
    if (stops) want.erase(stop + 1, want.end());
    EXPECT_EQ(out.texts[i].ids, want);
    EXPECT_EQ(out.texts[i].reason, stops ? StopReason::kStopId : StopReason::kLength);
  }
}

TEST(Generate, TheCallerMayStop) {
  const auto model = make_model(generation_config("full"));
  std::map<size_t, int> seen;
  const Generated out = generate(*model, make_prompts({3, 4}), greedy(20), [&](const NewToken& t) {
    return ++seen[t.prompt] < (t.prompt == 0 ? 3 : 8);
  });
  EXPECT_EQ(out.texts[0].ids.size(), 3U);
  EXPECT_EQ(out.texts[1].ids.size(), 8U);
  EXPECT_EQ(out.texts[0].reason, StopReason::kCaller);
}

TEST(Generate, NothingToWrite) {
  const auto model = make_model(generation_config("full"));
  EXPECT_TRUE(generate(*model, {}, greedy(5)).texts.empty());
  EXPECT_TRUE(generate(*model, make_prompts({3}), greedy(0)).texts.at(0).ids.empty());
  EXPECT_THROW(generate(*model, {{}}, greedy(5)), Error);
}

// ---- ends of a text
std::string through(StopText stop, const std::vector<std::string>& pieces) {
  std::string text;
  for (const std::string& piece : pieces) text += stop.add(piece) + "|";
  return text + stop.rest() + (stop.found() ? "!" : "");
}

TEST(Generate, StopStringsEndATextBeforeThem) {
  EXPECT_EQ(through(StopText({}), {"a", "b"}), "a|b|");
  EXPECT_EQ(through(StopText({"end"}), {"an end.", "more"}), "an ||!");
  EXPECT_EQ(through(StopText({"end"}), {"an e", "n", "d"}), "an |||!");
  EXPECT_EQ(through(StopText({"end"}), {"an e", "n", "t"}), "an ||ent|");
  EXPECT_EQ(through(StopText({"end"}), {"the en"}), "the |en");
  EXPECT_EQ(through(StopText({"aab"}), {"a", "a", "a", "b"}), "||a||!");
  EXPECT_EQ(through(StopText({"xyz", "y"}), {"axy"}), "ax|!");  // the first in the text
  EXPECT_THROW(StopText({""}), Error);
}

// ---- sampling
TEST(Generate, FrequenciesAreTheDistribution) {
  const auto model = make_model(generation_config("hybrid"));
  const std::vector<int64_t> prompt = make_prompts({6}).front();
  GenerateOptions options = sampled(1);
  options.sampling.temperature = 1.0;
  const at::Tensor p = next_distribution(*model, prompt, CopyMode::kNatural);
  constexpr int kDraws = 4000, kBatch = 500;
  std::vector<double> counts(11, 0.0);
  for (int first = 0; first < kDraws; first += kBatch) {
    options.first_prompt = first;
    const std::vector<std::vector<int64_t>> prompts(kBatch, prompt);
    for (const GeneratedText& text : generate(*model, prompts, options).texts) {
      counts[static_cast<size_t>(text.ids.at(0))] += 1;
    }
  }
  double chi_square = 0;
  for (size_t v = 0; v < 11; ++v) {
    const double want = kDraws * p[static_cast<int64_t>(v)].item<double>();
    chi_square += (counts[v] - want) * (counts[v] - want) / want;
  }
  EXPECT_LT(chi_square, 29.6);  // 10 degrees of freedom: one in a thousand
}

std::vector<int> kept(const std::vector<double>& p, const SamplingOptions& sampling) {
  std::vector<double> log_p;
  for (const double x : p) log_p.push_back(std::log(x));
  const at::Tensor out =
      filter_log_probs(tensor(log_p, {1, static_cast<int64_t>(p.size())}), sampling);
  std::vector<int> ids;
  for (size_t v = 0; v < p.size(); ++v) {
    const double x = out[0][static_cast<int64_t>(v)].item<double>();
    if (std::isfinite(x)) {
      EXPECT_EQ(x, log_p[v]);
      ids.push_back(static_cast<int>(v));
    }
  }
  return ids;
}

TEST(Generate, FiltersKeepWhatTheySay) {
  const std::vector<double> p = {0.1, 0.4, 0.05, 0.3, 0.15};
  using Ids = std::vector<int>;
  EXPECT_EQ(kept(p, {1, 0, 1, 0}), (Ids{0, 1, 2, 3, 4}));
  EXPECT_EQ(kept(p, {1, 2, 1, 0}), (Ids{1, 3}));
  EXPECT_EQ(kept(p, {1, 9, 1, 0}), (Ids{0, 1, 2, 3, 4}));
  EXPECT_EQ(kept(p, {1, 0, 0.39, 0}), (Ids{1}));
  EXPECT_EQ(kept(p, {1, 0, 0.41, 0}), (Ids{1, 3}));
  EXPECT_EQ(kept(p, {1, 0, 0.71, 0}), (Ids{1, 3, 4}));
  EXPECT_EQ(kept(p, {1, 0, 1e-9, 0}), (Ids{1}));
  EXPECT_EQ(kept(p, {0.1, 0, 0.93, 0}), (Ids{1}));  // 0.4 ^ 10 outweighs the rest
  EXPECT_EQ(kept(p, {1, 2, 0.6, 0}), (Ids{1, 3}));  // of what the first filter left
  EXPECT_EQ(kept(p, {1, 2, 0.55, 0}), (Ids{1}));    // 4/7
  EXPECT_EQ(kept({0.25, 0.25, 0.25, 0.25}, {1, 2, 1, 0}), (Ids{0, 1, 2, 3}));  // ties
}

TEST(Generate, SeedsAreRepeatable) {
  const auto model = make_model(generation_config("full"));
  const auto prompts = make_prompts({5});
  const auto text = [&](uint64_t seed) {
    return generate(*model, prompts, sampled(25, seed)).texts[0].ids;
  };
  EXPECT_EQ(text(1), text(1));
  EXPECT_NE(text(1), text(2));
}

TEST(Generate, WrongOptionsAreNamed) {
  const auto vanilla = make_model(generation_config("full", HeadKind::kVanilla));
  const auto message = [&](const GenerateOptions& options) -> std::string {
    try {
      generate(*vanilla, make_prompts({3}), options);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadConfig);
      return error.what();
    }
    return "";
  };
  GenerateOptions options = greedy(3);
  EXPECT_EQ(message(options), "");
  options.mode = CopyMode::kForceCopy;
  EXPECT_THAT(message(options), HasSubstr("force_copy"));
  options = greedy(3);
  options.mode_changes = {{2, CopyMode::kForceCopy}};
  EXPECT_THAT(message(options), HasSubstr("force_copy"));
  options = greedy(3);
  options.speculation = Speculation::kCopy;
  EXPECT_THAT(message(options), HasSubstr("speculation"));
  options = greedy(3);
  options.sampling = {-1, 0, 1, 0};
  EXPECT_THAT(message(options), HasSubstr("temperature"));
  options.sampling = {1, -1, 1, 0};
  EXPECT_THAT(message(options), HasSubstr("top_k"));
  options.sampling = {1, 0, 0, 0};
  EXPECT_THAT(message(options), HasSubstr("top_p"));
  options = greedy(-1);
  EXPECT_THAT(message(options), HasSubstr("max_new_tokens"));
}

TEST(Generate, DamagedWeightsAreAnError) {
  const auto model = make_model(generation_config("full"));
  model->parameters().find("model.norm.weight")->master.fill_(std::nan(""));
  try {
    generate(*model, make_prompts({3}), greedy(2));
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kNotFinite);
  }
}

}  // namespace
}  // namespace cplm::test
