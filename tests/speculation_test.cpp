// Copy-guided speculation: the same text as without, what a row commits to, what is guessed from
// there, and how many tokens are drafted when guesses hold and when they do not.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "cplm/base.h"
#include "cplm/copy_cache.h"
#include "generate/copy_draft.h"
#include "support/compare.h"
#include "support/generation.h"

namespace cplm::test {
namespace {

// A model that copies, by construction: layers add nothing, dimension 0 opens the gate, and token v
// < 7 points at tokens v + 1 (mod 7) wherever they stand, not too sharply.
std::unique_ptr<LanguageModel> copying_model(const std::string& backbone) {
  auto model = make_model(generation_config(backbone));
  ParameterStore& parameters = model->parameters();
  for (const Parameter& p : parameters.all()) {
    if (p.name.find("norm") != std::string::npos) {
      p.master.fill_(1);
    } else {
      p.master.zero_();
    }
  }
  const auto master = [&](const char* name) { return parameters.find(name)->master; };
  const at::Tensor embedding = master("model.embed_tokens.weight");
  embedding.select(1, 0).fill_(1);
  for (int64_t v = 0; v < 7; ++v) {
    embedding[v][1 + v].fill_(1);
    master("cp_head.q_proj.weight")[1 + (v + 1) % 7][1 + v].fill_(4);
    master("cp_head.k_proj.weight")[1 + v][1 + v].fill_(1);
  }
  master("copy_token.weight")[0].fill_(30);
  parameters.round_values();
  return model;
}

// Every token the same, greedy and sampled, while drafts are accepted and refused.
TEST(Speculation, ChangesNoToken) {
  int64_t accepted = 0, refused = 0;
  for (const std::string backbone : {"full", "sliding", "hybrid", "recurrent"}) {
    const auto model = copying_model(backbone);
    for (const uint64_t seed : {0, 1, 2}) {
      for (const size_t texts : {1, 3}) {
        const auto prompts = make_prompts(std::vector<size_t>(texts, 9));
        GenerateOptions options = seed == 0 ? greedy(60) : sampled(60, seed);
        if (seed == 2) options.mode_changes = {{15, CopyMode::kForceCopy}, {45, CopyMode::kNoCopy}};
        if (texts == 3) options.stop_ids = {3};
        const Generated plain = generate(*model, prompts, options);
        options.speculation = Speculation::kCopy;
        const Generated drafted = generate(*model, prompts, options);
        for (size_t i = 0; i < texts; ++i) {
          EXPECT_EQ(drafted.texts[i].ids, plain.texts[i].ids) << backbone << ", seed " << seed;
          EXPECT_TRUE(near(drafted.texts[i].log_probs, plain.texts[i].log_probs, 1e-9));
        }
        accepted += drafted.counts.accepted;
        refused += drafted.counts.drafted - drafted.counts.accepted;
        EXPECT_EQ(drafted.counts.new_tokens, plain.counts.new_tokens);
      }
    }
  }
  EXPECT_GT(accepted, 50);
  EXPECT_GT(refused, 10);
}

TEST(Speculation, SavesPasses) {
  const auto model = copying_model("full");
  // A text that repeats itself, told to copy.
  std::vector<int64_t> prompt;
  for (int i = 0; i < 40; ++i) prompt.push_back(1 + i % 5);
  GenerateOptions options = greedy(60);
  options.mode = CopyMode::kForceCopy;
  const Generated plain = generate(*model, {prompt}, options);
  options.speculation = Speculation::kCopy;
  const Generated drafted = generate(*model, {prompt}, options);
  EXPECT_EQ(drafted.texts[0].ids, plain.texts[0].ids);
  EXPECT_LE(drafted.counts.passes, plain.counts.passes);
}

// What follows a copied token in a document is drafted, up to the document's end.
TEST(Speculation, DraftsFromDocuments) {
  const auto model = copying_model("full");
  const CopyCacheOrigin origin = copy_cache_origin(*model, 10);
  const CopyCache documents = encode_documents(
      *model, {{6, 6, 10}, {0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4, 5, 10}, {6, 2, 10}}, origin);
  GenerateOptions options = greedy(24);
  options.mode = CopyMode::kForceCopy;
  options.decoder.documents = &documents;
  const Generated plain = generate(*model, {{3}, {0, 6}}, options);
  EXPECT_EQ(plain.texts[0].ids[0], 4);
  options.speculation = Speculation::kCopy;
  const Generated drafted = generate(*model, {{3}, {0, 6}}, options);
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(drafted.texts[i].ids, plain.texts[i].ids);
  EXPECT_GT(drafted.counts.accepted, 8);
  EXPECT_LT(drafted.counts.passes, plain.counts.passes);
  ExplainOptions explained;
  explained.decoder = options.decoder;
  EXPECT_THROW(explain_json(*model, {1, 2}, explained, {}), Error);
}

// A text without repeats is left alone after the first guesses that fail, and drafted again once it
// repeats itself; neither changes a token.
TEST(Speculation, LeavesTextsThatDoNotRepeatAndComesBack) {
  constexpr int64_t kDrawn = 200, kRepeating = 120;
  for (const uint64_t seed : {1, 2, 3}) {
    const auto model = copying_model("sliding");
    const auto counts = [&](int64_t tokens) {
      GenerateOptions options = sampled(tokens, seed);
      options.mode = CopyMode::kNoCopy;
      options.mode_changes = {{kDrawn, CopyMode::kForceCopy}};
      const Generated plain = generate(*model, {{0, 1}}, options);
      options.speculation = Speculation::kCopy;
      const Generated drafted = generate(*model, {{0, 1}}, options);
      EXPECT_EQ(drafted.texts[0].ids, plain.texts[0].ids) << "seed " << seed;
      return drafted.counts;
    };
    const GenerateCounts drawn = counts(kDrawn), whole = counts(kDrawn + kRepeating);
    EXPECT_LE(drawn.drafted, 8) << "seed " << seed;
    EXPECT_GE(whole.accepted - drawn.accepted, kRepeating / 2) << "seed " << seed;
    EXPECT_LE(whole.passes - drawn.passes, kRepeating / 2) << "seed " << seed;
  }
}

// ---- how many tokens
int64_t length_after(DraftLength length, const std::vector<bool>& guesses) {
  for (const bool holds : guesses) length.compared(holds);
  return length.next();
}

TEST(Speculation, DraftsAreAsLongAsTheyProbablyHold) {
  constexpr int64_t kMost = 1000;
  DraftLength length(kMost);
  double chance = 0.5;
  Random random(7);
  for (int i = 0; i < 400; ++i) {
    const int64_t drafted = length.next();
    EXPECT_GE(std::pow(chance, drafted), 0.5 - 1e-12);
    if (drafted < kMost) {
      EXPECT_LT(std::pow(chance, drafted + 1), 0.5 + 1e-12);
    }
    const bool holds = random.uniform() < (i < 200 ? 0.97 : 0.4);
    length.compared(holds);
    chance += ((holds ? 1.0 : 0.0) - chance) / 8;
  }
}

TEST(Speculation, DraftsStopWhenGuessesFailAndReturnWhenTheyHold) {
  const DraftLength length(16);
  EXPECT_EQ(length.next(), 1);
  EXPECT_EQ(length_after(length, {false}), 0);
  EXPECT_EQ(length_after(length, {false, true}), 1);
  EXPECT_EQ(length_after(length, std::vector<bool>(1000, false)), 0);
  EXPECT_EQ(length_after(length, std::vector<bool>(1000, true)), 16);
  EXPECT_EQ(length_after(DraftLength(0), std::vector<bool>(9, true)), 0);  // no room in a pass
  std::vector<bool> back(1000, false);
  back.insert(back.end(), 6, true);  // 1 - (7/8)^6 is above a half
  EXPECT_EQ(length_after(length, back), 1);
  back.insert(back.end(), 20, true);
  EXPECT_EQ(length_after(length, back), 16);
  back.insert(back.end(), 6, false);
  EXPECT_EQ(length_after(length, back), 0);
}

// ---- what a row commits to
// By the definition: alpha of the range, summed over the keys that hold the token.
std::optional<int64_t> committed(const std::vector<double>& scores, const std::vector<int>& ids,
                                 int64_t begin, int64_t end, int64_t chosen) {
  double total = 0, of_chosen = 0;
  std::optional<int64_t> best;
  for (int64_t j = begin; j < end; ++j) {
    const auto key = static_cast<size_t>(j);
    total += std::exp(scores[key]);
    if (ids[key] != chosen) continue;
    of_chosen += std::exp(scores[key]);
    if (!best || scores[key] >= scores[static_cast<size_t>(*best)]) best = j;
  }
  return best && of_chosen >= 0.5 * total ? best : std::nullopt;
}

struct RowsCase {
  at::ScalarType dtype;
  bool begins, one_list, knows_lse;
};

// 3 rows of 13 keys; counts how many commitments were met.
void expect_commitments(const RowsCase& c, uint64_t seed, int& committed_rows) {
  constexpr int64_t kRows = 3, kKeys = 13;
  const std::vector<int> begins = {0, 4, 2}, ends = {13, 9, 2};
  Random random(seed);
  const at::Tensor scores = tensor(random.normals(kRows * kKeys, 2.0), {kRows, kKeys}, c.dtype);
  const std::vector<int> ids = random.ids((c.one_list ? 1 : kRows) * kKeys, 4);
  ops::NextTokenInput next;
  next.copy.scores = scores;
  next.ids = id_tensor(ids, {c.one_list ? 1 : kRows, kKeys}).to(at::kInt);
  next.range.end = id_tensor(ends, {kRows}).to(at::kInt);
  if (c.begins) next.range.begin = id_tensor(begins, {kRows}).to(at::kInt);
  std::vector<double> lse;
  for (int64_t r = 0; r < kRows; ++r) {
    const auto row = static_cast<size_t>(r);
    const int64_t begin = c.begins ? begins[row] : 0;
    double sum = 0;
    for (int64_t j = begin; j < ends[row]; ++j) sum += std::exp(scores[r][j].item<double>());
    lse.push_back(std::log(sum));
  }
  if (c.knows_lse) next.copy.context_lse = tensor(lse, {kRows}, c.dtype);
  for (int64_t r = 0; r < kRows; ++r) {
    const auto row = static_cast<size_t>(r);
    const auto of_row = ids.begin() + (c.one_list ? 0 : r * kKeys);
    for (int64_t chosen = 0; chosen < 5; ++chosen) {
      const auto want = committed(values(scores[r]), {of_row, of_row + kKeys},
                                  c.begins ? begins[row] : 0, ends[row], chosen);
      EXPECT_EQ(committed_position(next, r, chosen), want) << "row " << r << ", token " << chosen;
      committed_rows += want ? 1 : 0;
    }
  }
}

TEST(Speculation, RowsCommitToTheTokenThatHoldsHalfOfAlpha) {
  int committed_rows = 0;
  for (const auto dtype : {at::kDouble, at::kFloat}) {
    for (const bool begins : {false, true}) {
      for (const bool one_list : {false, true}) {
        for (const bool knows_lse : {false, true}) {
          for (uint64_t seed = 0; seed < 8; ++seed) {
            expect_commitments({dtype, begins, one_list, knows_lse}, seed, committed_rows);
          }
        }
      }
    }
  }
  EXPECT_GT(committed_rows, 100);
}

TEST(Speculation, NothingIsCommittedWithoutCopying) {
  ops::NextTokenInput next;
  EXPECT_EQ(committed_position(next, 0, 1), std::nullopt);  // a vanilla model
  next.copy.scores = tensor({std::nan(""), 1}, {1, 2});
  next.ids = id_tensor({1, 1}, {1, 2}).to(at::kInt);
  next.range.end = id_tensor({2}, {1}).to(at::kInt);
  EXPECT_EQ(committed_position(next, 0, 1), std::nullopt);
}

// ---- what is guessed
TEST(Speculation, GuessesGoOnIntoThemselves) {
  const DraftSource source(nullptr);
  using Ids = std::vector<int64_t>;
  EXPECT_EQ(source.draft({5, 6, 7, 8}, 1, 9), (Ids{7, 8, 7, 8, 7, 8, 7, 8, 7}));
  EXPECT_EQ(source.draft({5, 6, 7, 8}, 0, 2), (Ids{6, 7}));
  EXPECT_EQ(source.draft({5, 6, 7, 8}, 3, 2), (Ids{}));
  EXPECT_EQ(source.draft({5, 6, 7, 8}, 0, 0), (Ids{}));
}

}  // namespace
}  // namespace cplm::test
