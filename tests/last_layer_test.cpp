// Documents that the last layer alone reads: against the text that holds the document, and against
// the layers written out in double.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "cplm/base.h"
#include "cplm/copy_cache.h"
#include "cplm/decode.h"
#include "support/compare.h"
#include "support/models.h"

namespace cplm::test {
namespace {

using Ids = std::vector<int64_t>;
using reference::Matrix;

constexpr int64_t kEnd = 3;  // the token that ends documents here
constexpr double kDouble = 1e-11;
const Documents kDocuments = {{5, 7, 1, 1, 9, kEnd}, {2, 8, 10, 4, 4, 6, 0, 2, kEnd}, {7}};
const Ids kPrompt = {1, 9, 4, 0, 7, 2, 2, 5, 5, 8, 1};  // longer than the window

ModelConfig config_of(const std::string& backbone, int64_t layers = 3) {
  ModelConfig config = tiny_config(HeadKind::kVanilla);
  config.num_hidden_layers = layers;
  set_backbone(config, backbone, 4, 3);
  return config;
}

// p_LM [T, V] behind each token of `prompt`.
at::Tensor read(LanguageModel& model, const Ids& prompt, const LastLayerCache* documents,
                size_t step = 100) {
  DecoderOptions options;
  options.last_layer_documents = documents;
  Decoder decoder(model, options);
  std::vector<double> rows;
  for (size_t begin = 0; begin < prompt.size(); begin += step) {
    const size_t end = std::min(begin + step, prompt.size());
    NewTokens tokens;
    for (size_t t = begin; t < end; ++t) tokens.ids.push_back(prompt[t]);
    tokens.outputs = static_cast<int64_t>(tokens.ids.size());
    for (const NextTokens& next : decoder.advance({tokens})) {
      ops::NextTokenInput input = next.input;
      input.mode = CopyMode::kNoCopy;
      const auto p = values(ops::next_token_distribution(input, model.options().ops));
      rows.insert(rows.end(), p.begin(), p.end());
    }
  }
  return tensor(rows, {static_cast<int64_t>(prompt.size()), 11});
}

// In a model of one layer, a document right before the text is the text with it in front.
TEST(LastLayerDocuments, OneLayerReadsADocumentAsIfItStoodInTheText) {
  for (const HeadKind head : {HeadKind::kVanilla, HeadKind::kCplm}) {
    for (const bool yarn : {false, true}) {
      ModelConfig config = config_of("full", 1);
      config.head = head;
      if (yarn) {
        config.rope_scaling = RopeScalingConfig();
        config.rope_scaling->factor = 4;
        config.rope_scaling->original_max_position_embeddings = 64;
      }
      const auto model = make_model(config);
      const Ids document = {5, 7, 1, 1, 9, 2, 10};
      const LastLayerCache cache = encode_last_layer(*model, {document}, {});
      Ids whole = document;
      whole.insert(whole.end(), kPrompt.begin(), kPrompt.end());
      const at::Tensor want = read(*model, whole, nullptr).slice(0, 7);
      for (const size_t step : {size_t{1}, size_t{3}, size_t{100}}) {
        EXPECT_TRUE(near(values(read(*model, kPrompt, &cache, step)), values(want), kDouble))
            << "step " << step << (yarn ? ", YaRN" : "");
      }
    }
  }
}

// ---- the layers, written out
class Layers {
 public:
  explicit Layers(const LanguageModel& model)
      : settings_(settings_of(model.config())), weights_(weights(model)) {}

  Matrix embed(const Ids& ids) const {
    Matrix x(ids.size(), settings_.width);
    for (size_t t = 0; t < ids.size(); ++t) {
      const double* const row =
          weights_.at("model.embed_tokens.weight").data() + static_cast<size_t>(ids[t]) * x.cols;
      std::copy(row, row + x.cols, x.row(t));
    }
    return x;
  }
  // What enters the last layer.
  Matrix before_last(const Ids& ids) const {
    Matrix x = embed(ids);
    std::vector<size_t> positions(ids.size());
    for (size_t t = 0; t < ids.size(); ++t) positions[t] = t;
    for (size_t layer = 0; layer + 1 < settings_.layers; ++layer) {
      x = through(x, layer, positions, settings_.windows[layer]);
    }
    return x;
  }
  Matrix through(const Matrix& x, size_t layer, const std::vector<size_t>& positions,
                 size_t window) const {
    const reference::Heads heads{settings_.heads, settings_.key_heads,
                                 settings_.width / settings_.heads};
    const Matrix n = reference::rms_norm(x, weight(layer, "input_layernorm"), settings_.eps);
    Matrix q = reference::linear(n, weight(layer, "self_attn.q_proj"));
    Matrix k = reference::linear(n, weight(layer, "self_attn.k_proj"));
    for (Matrix* const rotated : {&q, &k}) {
      for (size_t t = 0; t < x.rows; ++t) {
        for (size_t c = 0; c < rotated->cols; c += heads.dim) {
          reference::rotate(rotated->row(t) + c, heads.dim, positions[t], settings_.rope_theta);
        }
      }
    }
    const Matrix mixed = reference::attention(
        q, k, reference::linear(n, weight(layer, "self_attn.v_proj")), heads, window, {});
    Matrix y = sum(x, reference::linear(mixed, weight(layer, "self_attn.o_proj")));
    const Matrix m =
        reference::rms_norm(y, weight(layer, "post_attention_layernorm"), settings_.eps);
    Matrix act = reference::linear(m, weight(layer, "mlp.gate_proj"));
    const Matrix up = reference::linear(m, weight(layer, "mlp.up_proj"));
    for (size_t i = 0; i < act.data.size(); ++i) {
      act.data[i] = reference::silu(act.data[i]) * up.data[i];
    }
    return sum(y, reference::linear(act, weight(layer, "mlp.down_proj")));
  }
  std::vector<double> next(const Matrix& x, size_t row) const {
    const Matrix h = reference::rms_norm(x, weights_.at("model.norm.weight"), settings_.eps);
    const Matrix logits = reference::linear(h, weights_.at("model.embed_tokens.weight"));
    return reference::softmax({logits.row(row), logits.row(row) + logits.cols});
  }
  size_t last() const { return settings_.layers - 1; }

 private:
  const std::vector<double>& weight(size_t layer, const std::string& name) const {
    return weights_.at(str("model.layers.", layer, ".", name, ".weight"));
  }
  static Matrix sum(const Matrix& a, const Matrix& b) {
    Matrix y = a;
    for (size_t i = 0; i < y.data.size(); ++i) y.data[i] += b.data[i];
    return y;
  }
  reference::Settings settings_;
  NamedValues weights_;
};

// All of them and the prompt in one last layer without a window, each document right before it.
std::vector<double> defined(const LanguageModel& model, const Documents& documents,
                            const Ids& prompt) {
  const Layers layers(model);
  constexpr size_t kPromptAt = 50;
  Matrix all(0, 8);
  std::vector<size_t> positions;
  const auto add = [&](const Ids& ids, size_t first, bool is_document) {
    const Matrix x = layers.before_last(ids);
    for (size_t t = 0; t < ids.size(); ++t) {
      if (is_document && ids[t] == kEnd) continue;
      all.data.insert(all.data.end(), x.row(t), x.row(t) + x.cols);
      all.rows += 1;
      positions.push_back(first + t);
    }
  };
  for (const Ids& document : documents) add(document, kPromptAt - document.size(), true);
  const size_t before = all.rows;
  add(prompt, kPromptAt, false);
  const Matrix x = layers.through(all, layers.last(), positions, 0);
  std::vector<double> p;
  for (size_t t = before; t < all.rows; ++t) {
    const auto row = layers.next(x, t);
    p.insert(p.end(), row.begin(), row.end());
  }
  return p;
}

TEST(LastLayerDocuments, AreTheDefinition) {
  for (const std::string backbone : {"full", "hybrid"}) {
    const auto model = make_model(config_of(backbone));
    const LastLayerCache cache = encode_last_layer(*model, kDocuments, kEnd);
    EXPECT_EQ(cache.tokens(), 14);
    EXPECT_TRUE(
        near(values(read(*model, kPrompt, &cache)), defined(*model, kDocuments, kPrompt), kDouble))
        << backbone;
  }
}

TEST(LastLayerDocuments, OrderAndStepsChangeNothing) {
  for (const std::string backbone : {"full", "sliding", "hybrid"}) {
    const auto model = make_model(config_of(backbone));
    std::vector<LastLayerCache> each;
    for (const Ids& document : kDocuments) {
      each.push_back(encode_last_layer(*model, {document}, kEnd));
    }
    const LastLayerCache joined = concatenate({each[2], each[0], each[1]});
    const LastLayerCache together = encode_last_layer(*model, kDocuments, kEnd), none;
    const at::Tensor whole = read(*model, kPrompt, &together);
    for (const size_t step : {size_t{1}, size_t{2}, size_t{5}}) {
      EXPECT_TRUE(near(values(read(*model, kPrompt, &joined, step)), values(whole), kDouble))
          << backbone << ", step " << step;
    }
    const auto without = values(read(*model, kPrompt, nullptr));
    EXPECT_FALSE(near(without, values(whole), 1e-3));
    EXPECT_TRUE(near(values(read(*model, kPrompt, &none)), without, 0));
  }
}

// A window of the last layer, of three, is of the prompt alone: beyond it the prompt is not seen,
// the documents are.
TEST(LastLayerDocuments, TheWindowIsOfTheTextAlone) {
  const auto model = make_model(config_of("sliding", 1));
  const LastLayerCache cache = encode_last_layer(*model, kDocuments, kEnd);
  Ids changed = kPrompt;
  changed[0] = 6;  // out of the window from row 4 on
  const at::Tensor a = read(*model, kPrompt, &cache), b = read(*model, changed, &cache);
  EXPECT_TRUE(near(values(a.slice(0, 4)), values(b.slice(0, 4)), kDouble));
  EXPECT_FALSE(near(values(a.slice(0, 0, 4)), values(b.slice(0, 0, 4)), 1e-6));
  const LastLayerCache other = encode_last_layer(*model, {{1}, {2}}, kEnd);
  EXPECT_FALSE(
      near(values(a.slice(0, 10)), values(read(*model, kPrompt, &other).slice(0, 10)), 1e-6));
}

TEST(LastLayerDocuments, OfAnotherShapeAreRefused) {
  const auto model = make_model(config_of("full"));
  ModelConfig config = config_of("full");
  config.num_key_value_heads = 2;
  const auto other = make_model(config);
  const LastLayerCache cache = encode_last_layer(*other, kDocuments, kEnd);
  EXPECT_THROW(read(*model, kPrompt, &cache), Error);
  EXPECT_THROW(encode_last_layer(*model, {{1, 12}}, kEnd), Error);
}

}  // namespace
}  // namespace cplm::test
