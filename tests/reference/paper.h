// The paper's equations (SPEC.md, sections 1 to 3) in double precision: dense, naive loops over
// std::vector<double>. Shares no code with src/ and knows no LibTorch: what tests compare against.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace cplm::reference {

struct Matrix {
  size_t rows = 0, cols = 0;
  std::vector<double> data;  // row by row

  Matrix() = default;
  Matrix(size_t num_rows, size_t num_cols)
      : rows(num_rows), cols(num_cols), data(num_rows * num_cols) {}
  Matrix(size_t num_rows, size_t num_cols, std::vector<double> values);
  double* row(size_t r) { return data.data() + r * cols; }
  const double* row(size_t r) const { return data.data() + r * cols; }
  double& at(size_t r, size_t c) { return data[r * cols + c]; }
  double at(size_t r, size_t c) const { return data[r * cols + c]; }
};

// ---- parts --------------------------------------------------------------------------------------
// y_r = W x_r for every row; weight [out, in] row by row.
Matrix linear(const Matrix& x, const std::vector<double>& weight);
// x / sqrt(mean(x^2) + eps), times weight unless it is empty.
Matrix rms_norm(const Matrix& x, const std::vector<double>& weight, double eps);
// YaRN; factor 0: none.
struct Yarn {
  double factor = 0, original_length = 0;
};
// Half rotation of one head at one position.
void rotate(double* head, size_t head_dim, size_t position, double theta, const Yarn& yarn = {});
double silu(double x);
double log_sum_exp(const std::vector<double>& x);  // -inf for none
std::vector<double> softmax(const std::vector<double>& x);

struct Heads {
  size_t query = 1, key = 1, dim = 1;
};
// q [T, H*C], k and v [T, K*C]; window 0: no limit; document_start empty: one document.
Matrix attention(const Matrix& q, const Matrix& k, const Matrix& v, const Heads& heads,
                 size_t window, const std::vector<int>& document_start);
// a_tj of the Copy-Paste head [T, T], -inf where the key is not allowed.
Matrix copy_scores(const Matrix& q, const Matrix& k, bool include_current,
                   const std::vector<int>& document_start);
// log P(y) from the six numbers of a row, in long double.
struct MixtureRow {
  long double u, l_y, l_c, M, Lam, a_s;
};
long double mixture_log_prob(const MixtureRow& row);
// log P(v) of one row in the three modes; -inf where a token cannot be. scores: -inf where the key
// is not allowed.
struct LogDistribution {
  std::vector<double> natural, no_copy, force_copy;
};
LogDistribution log_distribution(const std::vector<double>& logits, double copy_logit,
                                 const std::vector<double>& scores, double sink_score,
                                 const std::vector<int>& ids);

// ---- the model ----------------------------------------------------------------------------------
// Of Gated DeltaNet's layers (delta_rule.h).
struct DeltaSizes {
  size_t heads = 1, key = 1, value = 1, taps = 4;
  double strength = 1;  // beta = strength * sigmoid
};
inline constexpr size_t kLinearLayer = static_cast<size_t>(-1);

struct Settings {
  size_t vocab = 0, width = 0, layers = 0, heads = 0, key_heads = 0, mlp = 0;
  double rope_theta = 1e4, eps = 1e-5;
  bool tied = true;
  std::vector<size_t> windows;  // one a layer; 0: full attention, or kLinearLayer
  DeltaSizes delta;
  Yarn yarn;  // of the full layers
  bool copy_head = true, include_current = true, copy_rope = false, copy_qk_norm = false;
};
using Weights = std::map<std::string, std::vector<double>>;  // Hugging Face names
struct Sequence {
  std::vector<int> ids, targets;    // target -1: not counted
  std::vector<int> document_start;  // empty: one document
};

Matrix hidden(const Settings& settings, const Weights& weights, const Sequence& sequence);

struct Predictions {
  Matrix natural, no_copy, force_copy;  // P(v), [T, V]; for vanilla all three are p_LM
  std::vector<double> log_prob;         // log P(y); 0 where not counted
  std::vector<double> log_prob_no_copy;
  std::vector<double> copy_gate, sink_mass;
};
// The hidden states that enter the three places of the head; equal unless gradients are cut.
struct HeadInputs {
  Matrix logits, scores, gate;
};
Predictions predict(const Settings& settings, const Weights& weights, const Sequence& sequence,
                    const HeadInputs& inputs);
Predictions predict(const Settings& settings, const Weights& weights, const Sequence& sequence);

// Mean of -log P(y) over the counted targets of all sequences.
double loss(const Settings& settings, const Weights& weights,
            const std::vector<Sequence>& sequences);

enum class Cut { kNone, kScores, kScoresAndGate };  // stop_gradient
// d loss / d weight of every element, by central finite differences of four points. A cut path
// keeps the hidden states of the unchanged weights.
Weights loss_gradient(const Settings& settings, const Weights& weights,
                      const std::vector<Sequence>& sequences, Cut cut, double step = 1e-3);

}  // namespace cplm::reference
