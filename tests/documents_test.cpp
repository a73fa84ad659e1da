// Documents before a text by their copy keys: against sums written out in double, in join orders,
// batches and chunks; and the caches themselves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "cplm/base.h"
#include "cplm/copy_cache.h"
#include "cplm/decode.h"
#include "support/compare.h"
#include "support/models.h"

namespace cplm::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Numbers = std::vector<double>;
using Ids = std::vector<int64_t>;

constexpr int64_t kEnd = 3;  // the token that ends documents here
constexpr double kDouble = 1e-11;

ModelConfig config_of(const std::string& backbone, HeadKind head = HeadKind::kCplm) {
  ModelConfig config = tiny_config(head);
  config.num_hidden_layers = 3;
  set_backbone(config, backbone, 4, 3);
  return config;
}

CopyCache encode(LanguageModel& model, const Documents& documents,
                 std::optional<int64_t> end = kEnd) {
  return encode_documents(model, documents, copy_cache_origin(model, end));
}

at::Tensor distribution(const NextTokens& next, CopyMode mode, const LanguageModel& model) {
  ops::NextTokenInput input = next.input;
  if (input.copy.scores.defined()) input.mode = mode;
  return ops::next_token_distribution(input, model.options().ops);
}

// P [T, V] behind each token of `prompt`.
at::Tensor read(LanguageModel& model, const Ids& prompt, DecoderOptions options, CopyMode mode,
                size_t step = 100) {
  Decoder decoder(model, options);
  at::Tensor out =
      tensor(Numbers(prompt.size() * 11, -1), {static_cast<int64_t>(prompt.size()), 11});
  for (size_t begin = 0; begin < prompt.size(); begin += step) {
    const Ids part(
        prompt.begin() + static_cast<std::ptrdiff_t>(begin),
        prompt.begin() + static_cast<std::ptrdiff_t>(std::min(begin + step, prompt.size())));
    for (const NextTokens& next :
         decoder.advance({{0, part, static_cast<int64_t>(part.size()), false}})) {
      const at::Tensor p = distribution(next, mode, model);
      for (size_t r = 0; r < next.positions.size(); ++r) {
        out.select(0, next.positions[r]).copy_(p.select(0, static_cast<int64_t>(r)));
      }
    }
  }
  return out;
}

DecoderOptions with(const CopyCache& documents) {
  DecoderOptions options;
  options.documents = &documents;
  return options;
}

// ---- the definition, written out
struct Weights {
  explicit Weights(const LanguageModel& model) : all(weights(model)) {}
  const Numbers& operator[](const std::string& name) const { return all.at(name); }
  NamedValues all;
};

Numbers row_of(const at::Tensor& x, int64_t row) { return values(x.select(0, row)); }

Numbers product(const Numbers& matrix, const Numbers& x) {
  Numbers y(matrix.size() / x.size(), 0.0);
  for (size_t i = 0; i < y.size(); ++i) {
    for (size_t j = 0; j < x.size(); ++j) y[i] += matrix[i * x.size() + j] * x[j];
  }
  return y;
}

double dot(const Numbers& a, const Numbers& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

at::Tensor hidden_alone(LanguageModel& model, const Ids& ids) {
  ModelInput input;
  input.ids = id_tensor({ids.begin(), ids.end()}, {1, static_cast<int64_t>(ids.size())});
  return model.hidden(input).squeeze(0);
}

// A token that may be copied: its id and a copy score, as exp.
using Candidates = std::vector<std::pair<int64_t, double>>;

Candidates candidates_of(LanguageModel& model, const Weights& w, const Numbers& query,
                         const Ids& ids, size_t count) {
  const at::Tensor h = hidden_alone(model, ids);
  Candidates found;
  for (size_t i = 0; i < count; ++i) {
    const Numbers key = product(w["cp_head.k_proj.weight"], row_of(h, static_cast<int64_t>(i)));
    found.emplace_back(ids[i], std::exp(dot(query, key) / std::sqrt(8.0)));
  }
  return found;
}

Numbers mixture(const Weights& w, const Numbers& h, const Numbers& query,
                const Candidates& candidates, CopyMode mode) {
  const Numbers logits = product(w["model.embed_tokens.weight"], h);
  double vocabulary = 0, context = 0;
  for (const double logit : logits) vocabulary += std::exp(logit);
  for (const auto& [id, weight] : candidates) context += weight;
  const double copy = std::exp(dot(w["copy_token.weight"], h));
  const double sink = std::exp(dot(query, w["cp_head.sink"]) / std::sqrt(8.0));
  const double c = copy / (copy + vocabulary), s = sink / (sink + context);
  double copied = mode == CopyMode::kNatural ? c * (1 - s) : 0;
  if (mode == CopyMode::kForceCopy) copied = 1;
  Numbers p(logits.size());
  for (size_t v = 0; v < p.size(); ++v) p[v] = (1 - copied) * std::exp(logits[v]) / vocabulary;
  for (const auto& [id, weight] : candidates)
    p[static_cast<size_t>(id)] += copied * weight / context;
  return p;
}

Numbers defined(LanguageModel& model, const Documents& documents, const Ids& prompt,
                size_t position, CopyMode mode) {
  const Weights w(model);
  const Numbers h = row_of(hidden_alone(model, prompt), static_cast<int64_t>(position));
  const Numbers query = product(w["cp_head.q_proj.weight"], h);
  Candidates all = candidates_of(model, w, query, prompt, position + 1);
  for (const Ids& document : documents) {
    for (const auto& one : candidates_of(model, w, query, document, document.size())) {
      if (one.first != kEnd) all.push_back(one);
    }
  }
  return mixture(w, h, query, all, mode);
}

const Documents kDocuments = {{5, 7, 1, 1, 9, kEnd}, {2, 8, 10, 4, 4, 6, 0, 2, kEnd}, {7}};
const Ids kPrompt = {1, 9, 4, 0, 7, 2, 2};

TEST(Documents, CopyKeysGiveTheDefinition) {
  for (const std::string backbone : {"full", "sliding", "hybrid"}) {
    const auto model = make_model(config_of(backbone));
    const CopyCache cache = encode(*model, kDocuments);
    for (const CopyMode mode : {CopyMode::kNatural, CopyMode::kNoCopy, CopyMode::kForceCopy}) {
      for (const size_t step : {size_t{1}, size_t{3}, size_t{100}}) {
        const at::Tensor p = read(*model, kPrompt, with(cache), mode, step);
        for (size_t t = 0; t < kPrompt.size(); ++t) {
          EXPECT_TRUE(near(row_of(p, static_cast<int64_t>(t)),
                           defined(*model, kDocuments, kPrompt, t, mode), kDouble))
              << backbone << ", position " << t << ", mode " << static_cast<int>(mode);
        }
      }
    }
  }
}

TEST(Documents, JoinedInAnyOrderTheyAreTheSame) {
  const auto model = make_model(config_of("hybrid"), at::kFloat);
  std::vector<CopyCache> each;
  for (const Ids& document : kDocuments) each.push_back(encode(*model, {document}));
  const at::Tensor together =
      read(*model, kPrompt, with(encode(*model, kDocuments)), CopyMode::kNatural);
  for (const std::vector<size_t>& order : {std::vector<size_t>{0, 1, 2}, {2, 0, 1}, {1, 2, 0}}) {
    std::vector<CopyCache> caches;
    for (const size_t index : order) caches.push_back(each[index]);
    const CopyCache joined = CopyCache::concatenate(caches);
    EXPECT_EQ(joined.tokens(), 16);
    EXPECT_TRUE(near(values(read(*model, kPrompt, with(joined), CopyMode::kNatural)),
                     values(together), 1e-6));
  }
}

TEST(Documents, EncodingSideBySideChangesNothing) {
  const auto model = make_model(config_of("sliding"));
  const auto origin = copy_cache_origin(*model, kEnd);
  const CopyCache together = encode_documents(*model, kDocuments, origin, 1000);
  const CopyCache apart = encode_documents(*model, kDocuments, origin, 1);
  EXPECT_THAT(together.document_offsets(), ElementsAre(0, 6, 15, 16));
  EXPECT_EQ(together.document_offsets(), apart.document_offsets());
  EXPECT_EQ(values(together.ids()), values(apart.ids()));
  EXPECT_TRUE(near(values(together.keys()), values(apart.keys()), kDouble));
}

TEST(Documents, ABatchSharesThem) {
  const auto model = make_model(config_of("hybrid"));
  const CopyCache cache = encode(*model, kDocuments);
  DecoderOptions options = with(cache);
  options.sequences = 2;
  Decoder decoder(*model, options);
  const Ids longer = {4, 4, 8, 1, 0};
  decoder.advance({{0, {kPrompt[0], kPrompt[1]}, 1, false}, {1, {4, 4, 8}, 1, false}});
  for (size_t i = 0; i < 2; ++i) {  // one row of each: the batched way
    const auto next =
        decoder.advance({{0, {kPrompt[2 + i]}, 1, false}, {1, {longer[3 + i]}, 1, false}});
    ASSERT_EQ(next.size(), 1u);
    const at::Tensor p = distribution(next[0], CopyMode::kNatural, *model);
    EXPECT_TRUE(near(row_of(p, 0), defined(*model, kDocuments, kPrompt, 2 + i, CopyMode::kNatural),
                     kDouble));
    EXPECT_TRUE(near(row_of(p, 1), defined(*model, kDocuments, longer, 3 + i, CopyMode::kNatural),
                     kDouble));
  }
  decoder.select({1, 1});
  const auto next = decoder.advance({{0, {5}, 1, false}, {1, {6}, 1, false}});
  EXPECT_TRUE(near(row_of(distribution(next[0], CopyMode::kNatural, *model), 1),
                   defined(*model, kDocuments, {4, 4, 8, 1, 0, 6}, 5, CopyMode::kNatural),
                   kDouble));
}

// Behind an end-of-document token a text sees nothing before it, but still the documents.
TEST(Documents, StayInSightBehindATextsOwnEnds) {
  const auto model = make_model(config_of("full"));
  const CopyCache cache = encode(*model, kDocuments);
  DecoderOptions options = with(cache);
  options.document_end = kEnd;
  for (const size_t step : {size_t{1}, size_t{100}}) {
    const at::Tensor p = read(*model, {1, 9, kEnd, 4, 0}, options, CopyMode::kNatural, step);
    EXPECT_TRUE(
        near(row_of(p, 4), defined(*model, kDocuments, {4, 0}, 1, CopyMode::kNatural), kDouble));
  }
}

TEST(Documents, RewoundTextsReadThemAgain) {
  const auto model = make_model(config_of("sliding"));
  const CopyCache cache = encode(*model, kDocuments);
  DecoderOptions options = with(cache);
  options.rewind_room = 2;
  Decoder decoder(*model, options);
  decoder.advance({{0, {1, 9}, 1, false}});
  decoder.advance({{0, {8, 8}, 2, true}});
  decoder.rewind(0, 2);
  const auto next = decoder.advance({{0, {4}, 1, false}});
  EXPECT_TRUE(near(row_of(distribution(next[0], CopyMode::kNatural, *model), 0),
                   defined(*model, kDocuments, kPrompt, 2, CopyMode::kNatural), kDouble));
}

TEST(Documents, OnlyHiddenTokensAreNone) {
  const auto model = make_model(config_of("full"));
  const CopyCache ends = encode(*model, {{kEnd}, {kEnd, kEnd}});
  const CopyCache none(copy_cache_origin(*model, kEnd), model->options().tensor);
  const at::Tensor without = read(*model, kPrompt, {}, CopyMode::kNatural);
  EXPECT_TRUE(near(values(read(*model, kPrompt, with(ends), CopyMode::kNatural)), values(without),
                   kDouble));
  EXPECT_TRUE(near(values(read(*model, kPrompt, with(none), CopyMode::kNatural)), values(without),
                   kDouble));
}

TEST(Documents, WhatCannotBeReadIsRefused) {
  ModelConfig config = config_of("full");
  const auto model = make_model(config);
  const CopyCache cache = encode(*model, kDocuments);
  const auto message = [](const auto& action) {
    try {
      action();
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const auto vanilla = make_model(config_of("full", HeadKind::kVanilla));
  EXPECT_THAT(message([&] { Decoder(*vanilla, with(cache)); }), HasSubstr("model.head: vanilla"));
  EXPECT_THAT(message([&] { encode(*vanilla, kDocuments); }), HasSubstr("model.head: vanilla"));
  config.copy.rope = true;
  const auto rotating = make_model(config);
  EXPECT_THAT(message([&] { Decoder(*rotating, with(cache)); }), HasSubstr("model.copy.rope"));
  EXPECT_THAT(message([&] { encode(*rotating, kDocuments); }), HasSubstr("model.copy.rope"));
  config = config_of("full");
  config.vocab_size = 12;
  EXPECT_THAT(message([&] { Decoder(*make_model(config), with(cache)); }), HasSubstr("11 tokens"));
  EXPECT_THAT(message([&] {
                encode(*model, {{1}, {2, 11}});
              }),
              HasSubstr("document 1, token 1: expected an id below the vocabulary of 11"));
  EXPECT_THAT(message([&] { encode(*model, {{}}); }), HasSubstr("at least one token"));
}

// ---- the caches themselves
TEST(CopyCache, CopiesAreApart) {
  const CopyCacheOrigin origin{"m", "t", 11, 2, kEnd};
  CopyCache first(origin, at::TensorOptions().dtype(at::kDouble));
  first.append(id_tensor({1, 2}, {2}), tensor({1, 2, 3, 4}, {2, 2}));
  CopyCache second = first;
  first.append(id_tensor({5}, {1}), tensor({5, 6}, {1, 2}));
  second.append(id_tensor({7, 8}, {2}), tensor({0, 0, 9, 9}, {2, 2}));
  EXPECT_THAT(values(first.ids()), ElementsAre(1, 2, 5));
  EXPECT_THAT(values(second.ids()), ElementsAre(1, 2, 7, 8));
  second.append(second);
  EXPECT_THAT(second.document_offsets(), ElementsAre(0, 2, 4, 6, 8));
  EXPECT_THAT(values(second.keys().select(0, 7)), ElementsAre(9, 9));
  const CopyCache single = second.to(at::TensorOptions().dtype(at::kFloat));
  EXPECT_EQ(single.keys().scalar_type(), at::kFloat);
  EXPECT_EQ(single.documents(), 4);
}

TEST(CopyCache, RefusesWhatDoesNotFit) {
  CopyCache cache({"m", "t", 11, 2, {}}, at::TensorOptions().dtype(at::kDouble));
  EXPECT_THROW(cache.append(id_tensor({1}, {1}), tensor({1, 2, 3}, {1, 3})), Error);
  EXPECT_THROW(cache.append(id_tensor({1, 2}, {2}), tensor({1, 2}, {1, 2})), Error);
  EXPECT_THROW(cache.append(id_tensor({11}, {1}), tensor({1, 2}, {1, 2})), Error);
  EXPECT_THROW(cache.append(id_tensor({-1}, {1}), tensor({1, 2}, {1, 2})), Error);
  EXPECT_THROW(cache.append(CopyCache({"other", "t", 11, 2, {}}, at::TensorOptions())), Error);
  EXPECT_EQ(cache.documents(), 0);
  EXPECT_THROW(CopyCache::concatenate({}), Error);
}

TEST(ModelHash, IsOfWeightsAndModelNotOfPrecision) {
  const ModelConfig config = config_of("full");
  const auto model = make_model(config, at::kFloat);
  const std::string hash = model_hash(*model);
  EXPECT_EQ(hash, model_hash(*make_model(config, at::kFloat)));
  EXPECT_NE(hash, model_hash(*make_model(config, at::kFloat, OpsKind::kFused, {}, 6)));
  ModelConfig stretched = config;
  stretched.rope_scaling = RopeScalingConfig{.factor = 2, .original_max_position_embeddings = 64};
  EXPECT_NE(hash, model_hash(*make_model(stretched, at::kFloat)));
  const auto wide = make_model(config, at::kDouble);
  for (const Parameter& p : wide->parameters().all()) {
    p.master.copy_(model->parameters().find(p.name)->master);
  }
  EXPECT_EQ(hash, model_hash(*wide));
}

}  // namespace
}  // namespace cplm::test
