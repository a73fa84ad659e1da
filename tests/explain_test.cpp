// The JSON of an explained text against the model's own numbers, and the page around it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "cplm/base.h"
#include "cplm/generate.h"
#include "support/compare.h"
#include "support/models.h"

namespace cplm::test {
namespace {

using nlohmann::json;

std::vector<std::string> texts_of(const std::vector<int64_t>& ids) {
  std::vector<std::string> texts;
  for (const int64_t id : ids) texts.push_back("<" + std::to_string(id) + ">");
  return texts;
}

struct Explained {
  std::unique_ptr<LanguageModel> model;
  std::vector<int64_t> ids;
  json out;
};

Explained explain(HeadKind head, int64_t tokens, CopyMode mode = CopyMode::kNatural) {
  ModelConfig config = tiny_config(head);
  set_backbone(config, "hybrid", 4);
  Explained e{make_model(config), {}, {}};
  Random random(4);
  for (int64_t i = 0; i < tokens; ++i) e.ids.push_back(random.below(11));
  ExplainOptions options;
  options.name = "a \"model\"";
  options.backbone = "hybrid";
  options.step = 12;
  options.prompt_tokens = 3;
  options.mode = mode;
  e.out = json::parse(explain_json(*e.model, e.ids, options, texts_of));
  return e;
}

TEST(Explain, NumbersAreTheModels) {
  const Explained e = explain(HeadKind::kCplm, 150);
  const auto count = static_cast<int64_t>(e.ids.size());
  ModelInput input;
  input.ids = id_tensor({e.ids.begin(), e.ids.end()}, {1, count});
  std::vector<int> next(e.ids.begin() + 1, e.ids.end());
  next.push_back(0);
  input.targets = id_tensor(next, {1, count});
  const PositionScores want = e.model->score(input);
  const at::Tensor force =
      e.model->distribution(e.model->hidden(input), input, 0, 0, count, CopyMode::kForceCopy);
  const json& predictions = e.out.at("predictions");
  ASSERT_EQ(predictions.size(), e.ids.size() - 1);
  const auto near_digits = [](const json& x, double y) {
    return std::fabs(x.get<double>() - y) <= 6e-4 * std::fabs(y) + 1e-12;
  };
  for (size_t i = 0; i + 1 < e.ids.size(); ++i) {
    const auto t = static_cast<int64_t>(i);
    const json& p = predictions[i];
    EXPECT_TRUE(near_digits(p["log_prob"], want.log_prob[0][t].item<double>())) << i;
    EXPECT_TRUE(near_digits(p["copy_gate"], want.copy_gate[0][t].item<double>())) << i;
    EXPECT_TRUE(near_digits(p["sink"], want.sink_mass[0][t].item<double>())) << i;
    EXPECT_TRUE(near_digits(p["copy_weight"], want.copy_weight[0][t].item<double>())) << i;
    ASSERT_EQ(p["cp"].size(), 5U);
    EXPECT_EQ(p["cp"][0][0], force[t].argmax().item<int64_t>());
    EXPECT_TRUE(near_digits(p["cp"][0][1], force[t].max().item<double>()));
    double last = 1;
    for (const json& source : p["sources"]) {
      EXPECT_LE(source[0].get<int64_t>(), t);
      EXPECT_LE(source[1].get<double>(), last);
      last = source[1].get<double>();
      EXPECT_GE(last * p["copy_gate"].get<double>(), 0.0049);
    }
    for (const char* head : {"lm", "cp", "mixture"}) {
      for (const json& token : p[head]) {
        EXPECT_TRUE(e.out["vocabulary"].contains(std::to_string(token[0].get<int64_t>())));
      }
    }
  }
  EXPECT_EQ(e.out["format"], "cplm-explain-1");
  EXPECT_EQ(e.out["model"]["name"], "a \"model\"");
  EXPECT_EQ(e.out["tokens"].size(), e.ids.size());
  EXPECT_EQ(e.out["prompt_tokens"], 3);
}

TEST(Explain, VanillaHasNoCopyParts) {
  const Explained e = explain(HeadKind::kVanilla, 9);
  for (const json& p : e.out["predictions"]) {
    EXPECT_TRUE(p["copy_gate"].is_null() && p["sink"].is_null() && p["cp"].is_null());
    EXPECT_TRUE(p["sources"].empty() && p["sources"].is_array());
    EXPECT_LT(p["log_prob"].get<double>(), 0);
  }
}

TEST(Explain, ModeIsThatOfTheMixture) {
  const Explained e = explain(HeadKind::kCplm, 12, CopyMode::kNoCopy);
  EXPECT_EQ(e.out["model"]["mode"], "no_copy");
  for (const json& p : e.out["predictions"]) EXPECT_EQ(p["mixture"], p["lm"]);
}

TEST(Explain, FollowsChangesOfTheMode) {
  ModelConfig config = tiny_config(HeadKind::kCplm);
  const auto model = make_model(config);
  const std::vector<int64_t> ids = {1, 2, 3, 1, 2, 3, 1, 2, 3, 1};
  ExplainOptions options;
  options.prompt_tokens = 4;
  const auto predictions = [&](CopyMode mode, const ModeChanges& changes) {
    options.mode = mode;
    options.mode_changes = changes;
    return json::parse(explain_json(*model, ids, options, texts_of));
  };
  const json changing =
      predictions(CopyMode::kForceCopy, {{1, CopyMode::kNatural}, {3, CopyMode::kNoCopy}});
  EXPECT_EQ(changing["model"]["mode"], "force_copy,1:natural,3:no_copy");
  for (const auto& [mode, first, last] : {std::tuple{CopyMode::kForceCopy, 1U, 4U},
                                          {CopyMode::kNatural, 5U, 6U},
                                          {CopyMode::kNoCopy, 7U, 9U}}) {
    const json of_mode = predictions(mode, {});
    for (size_t target = first; target <= last; ++target) {
      EXPECT_EQ(changing["predictions"][target - 1], of_mode["predictions"][target - 1]) << target;
    }
  }
}

TEST(Explain, OneTokenPredictsNothing) {
  EXPECT_TRUE(explain(HeadKind::kCplm, 1).out["predictions"].empty());
}

TEST(Explain, NoTextEscapesFromThePage) {
  const std::string page = explain_page("{\"text\": \"</script><!-- @EXPLAIN_JSON@\"}");
  EXPECT_THAT(page, testing::HasSubstr("\\u003c/script>\\u003c!-- @EXPLAIN_JSON@"));
  EXPECT_EQ(page.find("</script><!--"), std::string::npos);
}

}  // namespace
}  // namespace cplm::test
