// The model put together, one loop after another. Clarity before speed: sizes in tests are tiny.
#include "reference/paper.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "reference/delta_rule.h"
#include "support/finite_difference.h"

namespace cplm::reference {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

double dot(const double* a, const double* b, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

void add(Matrix& x, const Matrix& y) {
  for (size_t i = 0; i < x.data.size(); ++i) x.data[i] += y.data[i];
}

void rotate_heads(Matrix& x, size_t head_dim, double theta, const Yarn& yarn = {}) {
  for (size_t t = 0; t < x.rows; ++t) {
    for (size_t c = 0; c < x.cols; c += head_dim) rotate(x.row(t) + c, head_dim, t, theta, yarn);
  }
}

Matrix attention_layer(const Settings& s, const Weights& w, const std::string& prefix,
                       const Matrix& x, size_t window, const std::vector<int>& document_start) {
  const Heads heads{s.heads, s.key_heads, s.width / s.heads};
  Matrix q = linear(x, w.at(prefix + "q_proj.weight"));
  Matrix k = linear(x, w.at(prefix + "k_proj.weight"));
  const Matrix v = linear(x, w.at(prefix + "v_proj.weight"));
  const Yarn yarn = window == 0 ? s.yarn : Yarn{};
  rotate_heads(q, heads.dim, s.rope_theta, yarn);
  rotate_heads(k, heads.dim, s.rope_theta, yarn);
  return linear(attention(q, k, v, heads, window, document_start), w.at(prefix + "o_proj.weight"));
}

Matrix mlp_layer(const Weights& w, const std::string& prefix, const Matrix& x) {
  Matrix gate = linear(x, w.at(prefix + "gate_proj.weight"));
  const Matrix up = linear(x, w.at(prefix + "up_proj.weight"));
  for (size_t i = 0; i < gate.data.size(); ++i) gate.data[i] = silu(gate.data[i]) * up.data[i];
  return linear(gate, w.at(prefix + "down_proj.weight"));
}

// One position of the head: z over the V + 1 logits, alpha over the context and the sink, P.
struct HeadRow {
  std::vector<double> lm, copied, mixed;  // p_LM, p_CP, P
  double copy_gate = 0, sink_mass = 0;
};

HeadRow head_row(const std::vector<double>& logits, double copy_logit,
                 const std::vector<double>& scores, double sink_score,
                 const std::vector<int>& ids) {
  HeadRow out;
  const size_t vocab = logits.size();
  std::vector<double> all = logits;
  all.push_back(copy_logit);
  const std::vector<double> z = softmax(all);
  out.copy_gate = z.back();
  out.lm = softmax(logits);

  std::vector<double> with_sink = scores;
  with_sink.push_back(sink_score);
  const std::vector<double> alpha = softmax(with_sink);
  out.sink_mass = alpha.back();
  const bool empty =
      std::all_of(scores.begin(), scores.end(), [](double a) { return a == kMinusInfinity; });
  const std::vector<double> without_sink = empty ? std::vector<double>() : softmax(scores);

  out.copied.assign(vocab, 0.0);
  out.mixed.assign(vocab, 0.0);
  for (size_t v = 0; v < vocab; ++v) {
    out.mixed[v] = z[v] + out.copy_gate * out.sink_mass * out.lm[v];
  }
  for (size_t i = 0; i < scores.size() && !empty; ++i) {
    out.copied[static_cast<size_t>(ids[i])] += without_sink[i];
    out.mixed[static_cast<size_t>(ids[i])] += out.copy_gate * alpha[i];
  }
  if (empty) out.copied = out.lm;
  return out;
}

struct CopyProjection {
  Matrix scores;                    // [T, T]
  std::vector<double> sink_scores;  // [T]
};

CopyProjection copy_projection(const Settings& s, const Weights& w, const Matrix& h,
                               const std::vector<int>& document_start) {
  Matrix q = linear(h, w.at("cp_head.q_proj.weight"));
  Matrix k = linear(h, w.at("cp_head.k_proj.weight"));
  if (s.copy_qk_norm) {
    q = rms_norm(q, {}, s.eps);
    k = rms_norm(k, {}, s.eps);
  }
  CopyProjection out;
  const std::vector<double>& sink = w.at("cp_head.sink");
  for (size_t t = 0; t < q.rows; ++t) {
    out.sink_scores.push_back(dot(q.row(t), sink.data(), s.width) /
                              std::sqrt(static_cast<double>(s.width)));
  }
  if (s.copy_rope) {
    rotate_heads(q, s.width, s.rope_theta);
    rotate_heads(k, s.width, s.rope_theta);
  }
  out.scores = copy_scores(q, k, s.include_current, document_start);
  return out;
}

const std::vector<double>& lm_weight(const Settings& s, const Weights& w) {
  return w.at(s.tied ? "model.embed_tokens.weight" : "lm_head.weight");
}

std::vector<double> row_of(const Matrix& x, size_t r) { return {x.row(r), x.row(r) + x.cols}; }

void append_row(const HeadRow& row, int target, Predictions& out) {
  const auto log_of = [&](const std::vector<double>& p) {
    return target < 0 ? 0.0 : std::log(p[static_cast<size_t>(target)]);
  };
  out.natural.data.insert(out.natural.data.end(), row.mixed.begin(), row.mixed.end());
  out.no_copy.data.insert(out.no_copy.data.end(), row.lm.begin(), row.lm.end());
  out.force_copy.data.insert(out.force_copy.data.end(), row.copied.begin(), row.copied.end());
  out.log_prob.push_back(log_of(row.mixed));
  out.log_prob_no_copy.push_back(log_of(row.lm));
  out.copy_gate.push_back(row.copy_gate);
  out.sink_mass.push_back(row.sink_mass);
}

double loss_of(const Settings& settings, const Weights& weights,
               const std::vector<Sequence>& sequences, const std::vector<Matrix>& kept, Cut cut) {
  double sum = 0;
  size_t counted = 0;
  for (size_t b = 0; b < sequences.size(); ++b) {
    const Matrix h = hidden(settings, weights, sequences[b]);
    const HeadInputs inputs{h, cut == Cut::kNone ? h : kept[b],
                            cut == Cut::kScoresAndGate ? kept[b] : h};
    const Predictions p = predict(settings, weights, sequences[b], inputs);
    for (const double log_prob : p.log_prob) sum -= log_prob;
    for (const int target : sequences[b].targets) counted += target >= 0 ? 1 : 0;
  }
  return sum / static_cast<double>(std::max<size_t>(counted, 1));
}

}  // namespace

Matrix hidden(const Settings& s, const Weights& w, const Sequence& sequence) {
  const std::vector<double>& embedding = w.at("model.embed_tokens.weight");
  Matrix x(sequence.ids.size(), s.width);
  for (size_t t = 0; t < x.rows; ++t) {
    const size_t id = static_cast<size_t>(sequence.ids[t]);
    for (size_t c = 0; c < s.width; ++c) x.at(t, c) = embedding.at(id * s.width + c);
  }
  for (size_t layer = 0; layer < s.layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    const Matrix normed = rms_norm(x, w.at(prefix + "input_layernorm.weight"), s.eps);
    add(x, s.windows.at(layer) == kLinearLayer
               ? delta_layer(w, prefix + "linear_attn.", normed, s.delta, s.eps,
                             sequence.document_start)
               : attention_layer(s, w, prefix + "self_attn.", normed, s.windows.at(layer),
                                 sequence.document_start));
    add(x, mlp_layer(w, prefix + "mlp.",
                     rms_norm(x, w.at(prefix + "post_attention_layernorm.weight"), s.eps)));
  }
  return rms_norm(x, w.at("model.norm.weight"), s.eps);
}

Predictions predict(const Settings& s, const Weights& w, const Sequence& sequence,
                    const HeadInputs& inputs) {
  const Matrix logits = linear(inputs.logits, lm_weight(s, w));
  Predictions out;
  out.natural = out.no_copy = out.force_copy = Matrix();
  CopyProjection copy;
  if (s.copy_head) copy = copy_projection(s, w, inputs.scores, sequence.document_start);
  for (size_t t = 0; t < logits.rows; ++t) {
    HeadRow row;
    if (s.copy_head) {
      const double copy_logit = dot(inputs.gate.row(t), w.at("copy_token.weight").data(), s.width);
      row = head_row(row_of(logits, t), copy_logit, row_of(copy.scores, t), copy.sink_scores[t],
                     sequence.ids);
    } else {
      row.lm = row.copied = row.mixed = softmax(row_of(logits, t));
    }
    append_row(row, sequence.targets[t], out);
  }
  for (Matrix* p : {&out.natural, &out.no_copy, &out.force_copy}) {
    p->rows = logits.rows;
    p->cols = s.vocab;
  }
  return out;
}

Predictions predict(const Settings& s, const Weights& w, const Sequence& sequence) {
  const Matrix h = hidden(s, w, sequence);
  return predict(s, w, sequence, {h, h, h});
}

double loss(const Settings& settings, const Weights& weights,
            const std::vector<Sequence>& sequences) {
  return loss_of(settings, weights, sequences, {}, Cut::kNone);
}

Weights loss_gradient(const Settings& settings, const Weights& weights,
                      const std::vector<Sequence>& sequences, Cut cut, double step) {
  std::vector<Matrix> kept;
  for (const Sequence& sequence : sequences) kept.push_back(hidden(settings, weights, sequence));
  Weights moved = weights, gradient;
  for (auto& [name, values] : moved) {
    const std::vector<double> at = values;
    gradient[name] = test::finite_difference(
        [&](const std::vector<double>& x) {
          values = x;
          return loss_of(settings, moved, sequences, kept, cut);
        },
        at, step);
    values = at;
  }
  return gradient;
}

}  // namespace cplm::reference
