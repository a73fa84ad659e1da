// What each token of a text was copied from, by one pass over it with the decoder's own numbers.
#include <ATen/ops/stack.h>
#include <ATen/ops/topk.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "cplm/base.h"
#include "cplm/copy_modes.h"
#include "cplm/generate.h"
#include "generate/copy_view.h"

namespace cplm {
namespace {

using Json = nlohmann::ordered_json;
using Vocabulary = std::map<int64_t, std::string>;

constexpr int64_t kRowsAtOnce = 64;  // whole distributions held

// Four significant digits: the page stays small, and shows no more.
double rounded(double x) {
  if (x == 0 || !std::isfinite(x)) return x;
  const double scale = std::pow(10.0, 3 - std::floor(std::log10(std::fabs(x))));
  return std::round(x * scale) / scale;
}

// JSON has no infinity: null.
Json number(double x) { return std::isfinite(x) ? Json(rounded(x)) : Json(nullptr); }

at::Tensor wide(const at::Tensor& x) { return x.to(at::kDouble).cpu().contiguous(); }

// [[id, p], ...] of each row of P [R, V], largest first.
std::vector<Json> likeliest(const at::Tensor& p, int64_t top, Vocabulary& vocabulary) {
  const auto [values, ids] = p.topk(std::min(top, p.size(1)), 1);
  const at::Tensor value = wide(values), id = ids.cpu();
  std::vector<Json> rows;
  for (int64_t r = 0; r < p.size(0); ++r) {
    Json row = Json::array();
    for (int64_t i = 0; i < id.size(1); ++i) {
      const int64_t token = id[r][i].item<int64_t>();
      vocabulary[token];
      row.push_back({token, number(value[r][i].item<double>())});
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

// [[position, alpha], ...] of one row, largest first.
Json sources_of(const at::Tensor& alpha, double copy_gate, const ExplainOptions& options) {
  const auto [values, positions] = alpha.topk(std::min(options.max_sources, alpha.size(0)), 0);
  Json sources = Json::array();
  for (int64_t i = 0; i < values.size(0); ++i) {
    const double value = values[i].item<double>();
    if (!(copy_gate * value >= options.least_copy)) break;
    sources.push_back({positions[i].item<int64_t>(), number(value)});
  }
  return sources;
}

class Explainer {
 public:
  Explainer(LanguageModel& model, const std::vector<int64_t>& ids, const ExplainOptions& options)
      : model_(model), ids_(ids), options_(options) {}

  void add(const NextTokens& next) {
    const bool copies = next.input.copy.scores.defined();
    const at::Tensor mixture = in_its_mode(next);
    const auto mixture_top = likeliest(mixture, options_.top, vocabulary);
    const auto lm_top = likeliest(distribution(next, CopyMode::kNoCopy), options_.top, vocabulary);
    std::vector<Json> cp_top(next.positions.size(), nullptr);
    at::Tensor alpha, gate, sink, weight;
    if (copies) {
      cp_top = likeliest(distribution(next, CopyMode::kForceCopy), options_.top, vocabulary);
      const CopyView view = copy_view(next.input);
      alpha = wide(view.log_alpha.exp());
      gate = wide(view.gates.log_copy_gate.exp());
      sink = wide(view.gates.log_sink_mass.exp());
      weight = wide(view.gates.log_copy_gate.add(view.gates.log_not_sink).exp());
    }
    for (size_t i = 0; i < next.positions.size(); ++i) {
      const auto r = static_cast<int64_t>(i);
      const auto target = static_cast<size_t>(next.positions[i]) + 1;
      const double p = mixture[r][ids_[target]].item<double>();
      const auto of_row = [&](const at::Tensor& x) {
        return copies ? number(x[r].item<double>()) : Json(nullptr);
      };
      predictions.push_back(
          {{"log_prob", number(std::log(p))},
           {"copy_gate", of_row(gate)},
           {"sink", of_row(sink)},
           {"copy_weight", of_row(weight)},
           {"sources",
            copies ? sources_of(alpha[r], gate[r].item<double>(), options_) : Json::array()},
           {"lm", lm_top[i]},
           {"cp", cp_top[i]},
           {"mixture", mixture_top[i]}});
    }
  }

  Json predictions = Json::array();
  Vocabulary vocabulary;

 private:
  at::Tensor distribution(const NextTokens& next, CopyMode mode) const {
    ops::NextTokenInput input = next.input;
    if (input.copy.scores.defined()) input.mode = mode;
    return ops::next_token_distribution(input, model_.options().ops);
  }

  // Each row's in the mode of the token that it predicts.
  at::Tensor in_its_mode(const NextTokens& next) const {
    std::map<CopyMode, at::Tensor> of_mode;
    std::vector<at::Tensor> rows;
    for (size_t r = 0; r < next.positions.size(); ++r) {
      const CopyMode mode = mode_at(options_.mode, options_.mode_changes,
                                    next.positions[r] + 1 - options_.prompt_tokens);
      const auto [found, is_first] = of_mode.try_emplace(mode);
      if (is_first) found->second = distribution(next, mode);
      rows.push_back(found->second.select(0, static_cast<int64_t>(r)));
    }
    return of_mode.size() == 1 ? of_mode.begin()->second : at::stack(rows);
  }

  LanguageModel& model_;
  const std::vector<int64_t>& ids_;
  const ExplainOptions& options_;
};

// As `cplm generate --mode` takes it.
std::string modes_text(const ExplainOptions& options) {
  std::string text = name_of(options.mode);
  for (const auto& [from, mode] : options.mode_changes) text += str(",", from, ":", name_of(mode));
  return text;
}

}  // namespace

std::string explain_json(LanguageModel& model, const std::vector<int64_t>& ids,
                         const ExplainOptions& options, const TokenTexts& texts) {
  CPLM_CHECK(!ids.empty(), "[explain] expected at least one token, found none");
  CPLM_CHECK(
      options.decoder.documents == nullptr && options.decoder.last_layer_documents == nullptr,
      "[explain] expected a text alone, found documents before it: explain the text with the "
      "documents in it");
  Explainer explainer(model, ids, options);
  DecoderOptions decoder_options = options.decoder;
  decoder_options.sequences = 1;
  Decoder decoder(model, decoder_options);
  const auto inputs = static_cast<int64_t>(ids.size()) - 1;  // nothing is known behind the last
  for (int64_t begin = 0; begin < inputs; begin += kRowsAtOnce) {
    const int64_t count = std::min(kRowsAtOnce, inputs - begin);
    const auto first = ids.begin() + begin;
    for (const NextTokens& next : decoder.advance({{0, {first, first + count}, count, false}})) {
      explainer.add(next);
    }
  }

  Json tokens = Json::array();
  const std::vector<std::string> token_texts = texts(ids);
  for (size_t i = 0; i < ids.size(); ++i) {
    tokens.push_back({{"id", ids[i]}, {"text", token_texts.at(i)}});
  }
  std::vector<int64_t> named;
  for (const auto& [id, text] : explainer.vocabulary) named.push_back(id);
  const std::vector<std::string> named_texts = texts(named);
  Json vocabulary = Json::object();
  for (size_t i = 0; i < named.size(); ++i) {
    vocabulary[std::to_string(named[i])] = named_texts.at(i);
  }
  const bool copies = model.config().head == HeadKind::kCplm;
  const Json json = {{"format", "cplm-explain-1"},
                     {"model",
                      {{"name", options.name},
                       {"head", copies ? "cplm" : "vanilla"},
                       {"backbone", options.backbone},
                       {"step", options.step},
                       {"mode", modes_text(options)}}},
                     {"prompt_tokens", options.prompt_tokens},
                     {"tokens", tokens},
                     {"predictions", explainer.predictions},
                     {"vocabulary", vocabulary}};
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace cplm
