// Decoding with caches equals the full forward: every backbone, head and mode, whatever the chunks,
// the batch, what was taken back and what the caches held before.
#include <gtest/gtest.h>

#include <algorithm>

#include "cplm/base.h"
#include "cplm/decode.h"
#include "support/compare.h"
#include "support/models.h"

namespace cplm::test {
namespace {

constexpr int64_t kEnd = 3;  // the token that ends documents here
constexpr double kDoubleDecode = 1e-10, kSingleDecode = 1e-5;

struct Arm {
  std::string name;
  ModelConfig config;
  bool documents = false;
};

ModelConfig config_of(HeadKind head, const std::string& backbone, int64_t window = 4) {
  ModelConfig config = tiny_config(head);
  config.num_hidden_layers = 3;
  set_backbone(config, backbone, window, 3);
  return config;
}

std::vector<Arm> arms() {
  std::vector<Arm> all;
  for (const std::string backbone : {"full", "sliding", "hybrid", "recurrent"}) {
    all.push_back({backbone + " vanilla", config_of(HeadKind::kVanilla, backbone)});
    all.push_back({backbone + " cplm", config_of(HeadKind::kCplm, backbone)});
    all.push_back({backbone + " documents", config_of(HeadKind::kCplm, backbone), true});
  }
  Arm other{"every option", config_of(HeadKind::kCplm, "hybrid")};
  other.config.copy = {StopGradient::kNone, false, true, true};
  other.config.tie_word_embeddings = false;
  all.push_back(other);
  Arm mixed{"linear beside the others", config_of(HeadKind::kCplm, "recurrent"), true};
  mixed.config.layer_types = {LayerKind::kLinear, LayerKind::kSliding, LayerKind::kFull};
  mixed.config.linear_conv_kernel = 2;
  mixed.config.linear_num_heads = 1;
  all.push_back(mixed);
  return all;
}

std::vector<int64_t> make_ids(int64_t count, const ModelConfig& config, uint64_t seed) {
  Random random(seed);
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < count; ++i) {
    ids.push_back(random.below(static_cast<int>(config.vocab_size)));
  }
  return ids;
}

at::Tensor starts_of(const std::vector<int64_t>& ids) {
  std::vector<int> starts = {0};
  for (size_t i = 1; i < ids.size(); ++i) {
    starts.push_back(ids[i - 1] == kEnd ? static_cast<int>(i) : starts.back());
  }
  return id_tensor(starts, {1, static_cast<int64_t>(ids.size())});
}

// P [T, V] after each position, by the full forward.
at::Tensor full_forward(LanguageModel& model, const std::vector<int64_t>& ids, bool documents,
                        CopyMode mode) {
  const auto count = static_cast<int64_t>(ids.size());
  ModelInput input;
  input.ids = id_tensor({ids.begin(), ids.end()}, {1, count});
  input.targets = input.ids;
  if (documents) input.document_start = ops::DocumentStarts(starts_of(ids));
  return model.distribution(model.hidden(input), input, 0, 0, count, mode);
}

std::vector<CopyMode> modes_of(const ModelConfig& config) {
  if (config.head == HeadKind::kVanilla) return {CopyMode::kNoCopy};
  return {CopyMode::kNatural, CopyMode::kNoCopy, CopyMode::kForceCopy};
}

DecoderOptions options_of(const Arm& arm, int64_t sequences = 1, int64_t chunk = 512) {
  DecoderOptions options;
  options.sequences = sequences;
  options.prefill_chunk = chunk;
  if (arm.documents) options.document_end = kEnd;
  return options;
}

at::Tensor distribution(const NextTokens& next, CopyMode mode, OpsKind ops) {
  ops::NextTokenInput input = next.input;
  input.mode = mode;
  return ops::next_token_distribution(input, ops);
}

std::vector<int64_t> slice(const std::vector<int64_t>& ids, size_t begin, size_t count) {
  const auto first = ids.begin() + static_cast<std::ptrdiff_t>(begin);
  return {first, first + static_cast<std::ptrdiff_t>(std::min(count, ids.size() - begin))};
}

// Each position of `ids` that comes out, against its row of the full forward.
void expect_rows(const std::vector<NextTokens>& all, LanguageModel& model, const Arm& arm,
                 const std::vector<std::vector<int64_t>>& ids, double tolerance,
                 const std::string& what) {
  for (const CopyMode mode : modes_of(arm.config)) {
    std::vector<at::Tensor> want;
    for (const auto& each : ids) want.push_back(full_forward(model, each, arm.documents, mode));
    for (const NextTokens& next : all) {
      const at::Tensor got = distribution(next, mode, model.options().ops);
      for (size_t r = 0; r < next.positions.size(); ++r) {
        const auto row = static_cast<int64_t>(r);
        EXPECT_TRUE(
            near(values(got.select(0, row)),
                 values(want[static_cast<size_t>(next.sequences[r])].select(0, next.positions[r])),
                 tolerance))
            << arm.name << ", " << what << ", mode " << static_cast<int>(mode) << ", sequence "
            << next.sequences[r] << ", position " << next.positions[r];
      }
    }
  }
}

void expect_decode_equals_full(at::ScalarType dtype, OpsKind ops, double tolerance,
                               const std::vector<size_t>& steps) {
  for (const Arm& arm : arms()) {
    const auto model = make_model(arm.config, dtype, ops);
    const auto ids = make_ids(23, arm.config, 1);
    for (const size_t step : steps) {
      for (const int64_t chunk : {3, 512}) {
        Decoder decoder(*model, options_of(arm, 1, chunk));
        std::vector<NextTokens> all;
        for (size_t begin = 0; begin < ids.size(); begin += step) {
          NewTokens tokens{0, slice(ids, begin, step), 0, false};
          tokens.outputs = static_cast<int64_t>(tokens.ids.size());
          for (NextTokens& next : decoder.advance({tokens})) all.push_back(std::move(next));
        }
        size_t rows = 0;
        for (const NextTokens& next : all) rows += next.positions.size();
        EXPECT_EQ(rows, ids.size());
        expect_rows(all, *model, arm, {ids}, tolerance, str("steps of ", step));
      }
    }
  }
}

TEST(ModelDecode, EqualsTheFullForwardInFloat64) {
  expect_decode_equals_full(at::kDouble, OpsKind::kFused, kDoubleDecode, {1, 2, 5, 23});
}

TEST(ModelDecode, EqualsTheFullForwardInFloat64Composed) {
  expect_decode_equals_full(at::kDouble, OpsKind::kComposed, kDoubleDecode, {1, 5});
}

TEST(ModelDecode, EqualsTheFullForwardInFloat32) {
  expect_decode_equals_full(at::kFloat, OpsKind::kFused, kSingleDecode, {1, 2, 5, 23});
}

// Prompts of different length, then all together, then fewer in another order.
TEST(ModelDecode, BatchesOfDifferentLengths) {
  for (const Arm& arm : arms()) {
    const auto model = make_model(arm.config);
    std::vector<std::vector<int64_t>> ids = {
        make_ids(12, arm.config, 1), make_ids(19, arm.config, 2), make_ids(15, arm.config, 3)};
    const std::vector<size_t> prompt = {2, 9, 5};
    Decoder decoder(*model, options_of(arm, 3, 4));
    std::vector<NewTokens> prompts;
    for (size_t s = 0; s < 3; ++s) {
      prompts.push_back({static_cast<int64_t>(s), slice(ids[s], 0, prompt[s]), 1, false});
    }
    expect_rows(decoder.advance(prompts), *model, arm, ids, kDoubleDecode, "prompts");
    const auto one_each = [&](size_t done) {
      std::vector<NewTokens> tokens;
      for (size_t s = 0; s < ids.size(); ++s) {
        const auto at_length = static_cast<size_t>(decoder.length(static_cast<int64_t>(s)));
        tokens.push_back({static_cast<int64_t>(s), slice(ids[s], at_length, 1), 1, false});
      }
      expect_rows(decoder.advance(tokens), *model, arm, ids, kDoubleDecode, str("step ", done));
    };
    for (size_t i = 0; i < 6; ++i) one_each(i);
    decoder.select({2, 1});
    ids = {ids[2], ids[1]};
    for (size_t i = 0; i < 4; ++i) one_each(i);
  }
}

// Drafts of several tokens, taken back in part or whole, leave no trace.
TEST(ModelDecode, TokensTakenBackLeaveNoTrace) {
  for (const Arm& arm : arms()) {
    const auto model = make_model(arm.config);
    const auto ids = make_ids(24, arm.config, 1);
    DecoderOptions options = options_of(arm);
    options.rewind_room = 4;
    Decoder decoder(*model, options);
    size_t done = 3;
    decoder.advance({{0, slice(ids, 0, done), 1, false}});
    for (size_t trial = 0; done < ids.size(); ++trial) {
      // Some tokens of the text, then wrong ones (an end among them), all taken back but one.
      const size_t good = 1 + trial % 3;
      std::vector<int64_t> draft = slice(ids, done, std::min(good, ids.size() - done));
      const size_t right = draft.size();
      while (draft.size() < 4) draft.push_back(draft.size() % 2 == 0 ? kEnd : 7);
      const auto next = decoder.advance({{0, draft, static_cast<int64_t>(draft.size()), true}});
      const size_t keep = trial % 4 == 3 ? 1 : right;
      decoder.rewind(0, static_cast<int64_t>(done + keep));
      done += keep;
      const auto again = decoder.length(0);
      EXPECT_EQ(again, static_cast<int64_t>(done));
      EXPECT_EQ(next.front().positions.front(), static_cast<int64_t>(done - keep));
      if (done < ids.size()) {
        expect_rows(decoder.advance({{0, slice(ids, done, 1), 1, true}}), *model, arm, {ids},
                    kDoubleDecode, str("trial ", trial));
        done += 1;
      }
    }
  }
}

TEST(ModelDecode, BFloat16StaysNearTheFullForward) {
  const Arm arm{"hybrid", config_of(HeadKind::kCplm, "hybrid")};
  const auto model = make_model(arm.config, at::kBFloat16);
  const auto ids = make_ids(20, arm.config, 1);
  Decoder decoder(*model, options_of(arm));
  std::vector<NextTokens> all;
  for (const int64_t id : ids) {
    for (NextTokens& next : decoder.advance({{0, {id}, 1, false}})) all.push_back(std::move(next));
  }
  expect_rows(all, *model, arm, {ids}, 0.05, "steps of 1");
}

void expect_bytes_of_arithmetic(const Arm& arm, at::ScalarType dtype) {
  const auto model = make_model(arm.config, dtype);
  Decoder decoder(*model, options_of(arm, 3));
  decoder.reserve(40);
  const auto width = static_cast<int64_t>(c10::elementSize(dtype));
  const CacheBytes want = cache_bytes(arm.config, 40, width), got = decoder.bytes();
  EXPECT_EQ(got.keys_and_values, 3 * want.keys_and_values) << arm.name << " " << dtype;
  EXPECT_EQ(got.states, 3 * want.states) << arm.name << " " << dtype;
  EXPECT_EQ(got.copy_keys, 3 * want.copy_keys) << arm.name << " " << dtype;
  EXPECT_EQ(got.copy_ids, 3 * want.copy_ids) << arm.name << " " << dtype;
  decoder.advance({{1, make_ids(30, arm.config, 1), 1, false}});
  EXPECT_EQ(decoder.bytes().total(), got.total()) << arm.name << " " << dtype;
}

// Also that recurrent states are float32 where the rest is bfloat16, and float64 in float64.
TEST(ModelDecode, BytesAreTheArithmetic) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    for (const Arm& arm : arms()) expect_bytes_of_arithmetic(arm, dtype);
  }
}

// SPEC.md section 4: 1/12.0 of the full model's cache at 1.7B and 4,096 positions.
TEST(ModelDecode, SlidingCopyModelKeepsATwelfth) {
  ModelConfig config = tiny_config(HeadKind::kCplm);
  config.hidden_size = 2048;
  config.num_hidden_layers = 24;
  config.num_attention_heads = config.num_key_value_heads = 32;
  set_backbone(config, "sliding", 256);
  const CacheBytes sliding = cache_bytes(config, 4096, 2);
  EXPECT_EQ(sliding.keys_and_values, 256 * 98304 * 2);
  EXPECT_EQ(sliding.copy_keys, 4096 * 2048 * 2);
  config.head = HeadKind::kVanilla;
  set_backbone(config, "full", 0);
  const CacheBytes full = cache_bytes(config, 4096, 2);
  EXPECT_EQ(full.total(), 4096LL * 98304 * 2);
  EXPECT_NEAR(static_cast<double>(full.total()) / static_cast<double>(sliding.total()), 12.0, 0.05);
}

// 24 layers of 9 heads with 48 x 96 numbers, and three inputs of each convolution; in bfloat16
// states stay float32.
TEST(ModelDecode, RecurrentStatesHaveOneSizeWhateverTheLength) {
  ModelConfig config = tiny_config(HeadKind::kVanilla);
  config.hidden_size = 576;
  config.num_hidden_layers = 24;
  config.num_attention_heads = 9;
  set_backbone(config, "recurrent", 0);
  for (const int64_t positions : {1, 4096}) {
    const CacheBytes bytes = cache_bytes(config, positions, 2);
    EXPECT_EQ(bytes.states, 24 * (9 * 48 * 96 * 4 + 3 * (2 * 432 + 864) * 2));
    EXPECT_EQ(bytes.total(), bytes.states);
  }
}

// Chunks of 64 and what is left of them, then single steps.
TEST(ModelDecode, LongRecurrentTextEqualsTheFullForward) {
  const Arm arm{"recurrent", config_of(HeadKind::kCplm, "recurrent")};
  const auto model = make_model(arm.config);
  const auto ids = make_ids(200, arm.config, 1);
  Decoder decoder(*model, options_of(arm));
  std::vector<NextTokens> all;
  for (size_t begin = 0; begin < ids.size();) {
    const size_t count = begin == 0 ? 150 : begin < 170 ? 7 : 1;
    NewTokens tokens{0, slice(ids, begin, count), 0, false};
    tokens.outputs = static_cast<int64_t>(tokens.ids.size());
    begin += tokens.ids.size();
    for (NextTokens& next : decoder.advance({tokens})) all.push_back(std::move(next));
  }
  expect_rows(all, *model, arm, {ids}, kDoubleDecode, "long");
}

TEST(ModelDecode, CachesGrowWhenFull) {
  const Arm arm{"full", config_of(HeadKind::kCplm, "full")};
  const auto model = make_model(arm.config);
  const auto ids = make_ids(150, arm.config, 1);
  Decoder decoder(*model, options_of(arm));
  std::vector<NextTokens> all = decoder.advance({{0, slice(ids, 0, 60), 1, false}});
  for (size_t i = 60; i < ids.size(); ++i) {
    for (NextTokens& next : decoder.advance({{0, {ids[i]}, 1, false}}))
      all.push_back(std::move(next));
  }
  expect_rows(all, *model, arm, {ids}, kDoubleDecode, "grown");
}

TEST(ModelDecode, WrongInputIsNamed) {
  const Arm arm{"sliding", config_of(HeadKind::kCplm, "sliding")};
  const auto model = make_model(arm.config);
  Decoder decoder(*model, options_of(arm, 2, 8));
  EXPECT_THROW(decoder.advance({{0, {11}, 1, false}}), Error);  // an id
  EXPECT_THROW(decoder.advance({{0, {-1}, 1, false}}), Error);  //
  EXPECT_THROW(decoder.advance({{2, {1}, 1, false}}), Error);   // a sequence
  EXPECT_THROW(decoder.advance({{0, {1}, 1, false}, {0, {1}, 1, false}}), Error);
  EXPECT_THROW(decoder.advance({{0, {}, 0, false}}), Error);
  EXPECT_THROW(decoder.advance({{0, {1}, 2, false}}), Error);  // outputs
  EXPECT_THROW(decoder.advance({{0, {1}, 1, true}}), Error);   // no room to take any back
  EXPECT_EQ(decoder.length(0), 0);
  decoder.advance({{0, {1, 2, 3}, 1, false}});
  EXPECT_THROW(decoder.rewind(0, 2), Error);  // was not to be taken back
  EXPECT_THROW(decoder.rewind(0, 4), Error);
  EXPECT_THROW(decoder.select({}), Error);
  EXPECT_THROW(Decoder(*model, options_of(arm, 0)), Error);
  DecoderOptions roomy = options_of(arm, 2, 8);
  roomy.rewind_room = 9;  // more than goes through at once
  EXPECT_THROW(Decoder(*model, roomy), Error);
}

}  // namespace
}  // namespace cplm::test
