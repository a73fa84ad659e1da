// Parts of the equations: norm, rotation, attention, copy scores, the mixture of one row.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <stdexcept>

#include "reference/paper.h"

namespace cplm::reference {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

double dot(const double* a, const double* b, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

size_t start_of(const std::vector<int>& document_start, size_t t) {
  return document_start.empty() ? 0 : static_cast<size_t>(document_start[t]);
}

}  // namespace

Matrix::Matrix(size_t num_rows, size_t num_cols, std::vector<double> values)
    : rows(num_rows), cols(num_cols), data(std::move(values)) {
  if (data.size() != rows * cols) throw std::invalid_argument("Matrix: wrong number of values");
}

Matrix linear(const Matrix& x, const std::vector<double>& weight) {
  Matrix y(x.rows, weight.size() / x.cols);
  for (size_t r = 0; r < x.rows; ++r) {
    for (size_t o = 0; o < y.cols; ++o) {
      y.at(r, o) = dot(x.row(r), weight.data() + o * x.cols, x.cols);
    }
  }
  return y;
}

Matrix rms_norm(const Matrix& x, const std::vector<double>& weight, double eps) {
  Matrix y = x;
  for (size_t r = 0; r < x.rows; ++r) {
    const double mean_square = dot(x.row(r), x.row(r), x.cols) / static_cast<double>(x.cols);
    for (size_t c = 0; c < x.cols; ++c) {
      y.at(r, c) = x.at(r, c) / std::sqrt(mean_square + eps) * (weight.empty() ? 1.0 : weight[c]);
    }
  }
  return y;
}

namespace {

// The dimension whose pair turns `turns` times within the original length (PROTOCOLS.md 2.4).
double yarn_dim(double turns, double head_dim, double theta, const Yarn& yarn) {
  return head_dim * std::log(yarn.original_length / (2 * std::numbers::pi * turns)) /
         (2 * std::log(theta));
}

double yarn_frequency(double frequency, double pair, double head_dim, double theta,
                      const Yarn& yarn) {
  double low = std::floor(yarn_dim(32, head_dim, theta, yarn));
  double high = std::ceil(yarn_dim(1, head_dim, theta, yarn));
  if (low < 0) low = 0;
  if (high > head_dim - 1) high = head_dim - 1;
  if (low == high) high += 0.001;
  const double ramp = std::min(1.0, std::max(0.0, (pair - low) / (high - low)));
  return frequency * (1 - ramp) + frequency / yarn.factor * ramp;
}

}  // namespace

void rotate(double* head, size_t head_dim, size_t position, double theta, const Yarn& yarn) {
  const size_t half = head_dim / 2;
  const double scale = yarn.factor == 0 ? 1 : 0.1 * std::log(yarn.factor) + 1;
  for (size_t i = 0; i < half; ++i) {
    const auto pair = static_cast<double>(i), width = static_cast<double>(head_dim);
    double frequency = std::pow(theta, -2 * pair / width);
    if (yarn.factor != 0) frequency = yarn_frequency(frequency, pair, width, theta, yarn);
    const double angle = static_cast<double>(position) * frequency;
    const double first = head[i], second = head[half + i];
    head[i] = scale * (first * std::cos(angle) - second * std::sin(angle));
    head[half + i] = scale * (second * std::cos(angle) + first * std::sin(angle));
  }
}

double silu(double x) { return x / (1.0 + std::exp(-x)); }

double log_sum_exp(const std::vector<double>& x) {
  double largest = kMinusInfinity, sum = 0;
  for (const double value : x) largest = std::max(largest, value);
  if (largest == kMinusInfinity) return largest;
  for (const double value : x) sum += std::exp(value - largest);
  return largest + std::log(sum);
}

std::vector<double> softmax(const std::vector<double>& x) {
  const double largest = *std::max_element(x.begin(), x.end());
  double sum = 0;
  std::vector<double> y;
  for (const double value : x) {
    y.push_back(std::exp(value - largest));
    sum += y.back();
  }
  for (double& value : y) value /= sum;
  return y;
}

Matrix attention(const Matrix& q, const Matrix& k, const Matrix& v, const Heads& heads,
                 size_t window, const std::vector<int>& document_start) {
  const size_t dim = heads.dim, group = heads.query / heads.key;
  Matrix out(q.rows, heads.query * dim);
  for (size_t t = 0; t < q.rows; ++t) {
    size_t first = start_of(document_start, t);
    if (window > 0 && t + 1 > window) first = std::max(first, t + 1 - window);
    for (size_t head = 0; head < heads.query; ++head) {
      const size_t key_column = head / group * dim;
      std::vector<double> scores;
      for (size_t j = first; j <= t; ++j) {
        scores.push_back(dot(q.row(t) + head * dim, k.row(j) + key_column, dim) /
                         std::sqrt(static_cast<double>(dim)));
      }
      const std::vector<double> weights = softmax(scores);
      for (size_t j = first; j <= t; ++j) {
        for (size_t c = 0; c < dim; ++c) {
          out.at(t, head * dim + c) += weights[j - first] * v.at(j, key_column + c);
        }
      }
    }
  }
  return out;
}

Matrix copy_scores(const Matrix& q, const Matrix& k, bool include_current,
                   const std::vector<int>& document_start) {
  Matrix scores(q.rows, q.rows);
  for (size_t t = 0; t < q.rows; ++t) {
    for (size_t j = 0; j < q.rows; ++j) {
      const bool allowed = j >= start_of(document_start, t) && (include_current ? j <= t : j < t);
      scores.at(t, j) =
          allowed ? dot(q.row(t), k.row(j), q.cols) / std::sqrt(static_cast<double>(q.cols))
                  : kMinusInfinity;
    }
  }
  return scores;
}

long double mixture_log_prob(const MixtureRow& row) {
  const auto join = [](long double a, long double b) {
    const long double high = std::max(a, b), low = std::min(a, b);
    return std::isinf(low) ? high : high + std::log1p(std::exp(low - high));
  };
  const long double all = join(row.u, row.l_c), scores = join(row.M, row.a_s);
  const long double direct = row.l_y - all;
  const long double by_sink = (row.l_y - row.u) + (row.l_c - all) + (row.a_s - scores);
  const long double copied = (row.l_c - all) + (row.Lam - scores);
  return join(join(direct, by_sink), copied);
}

LogDistribution log_distribution(const std::vector<double>& logits, double copy_logit,
                                 const std::vector<double>& scores, double sink_score,
                                 const std::vector<int>& ids) {
  const double u = log_sum_exp(logits), context = log_sum_exp(scores);
  LogDistribution out;
  for (size_t v = 0; v < logits.size(); ++v) {
    std::vector<double> matching;
    for (size_t j = 0; j < scores.size(); ++j) {
      if (scores[j] != kMinusInfinity && ids[j] == static_cast<int>(v)) {
        matching.push_back(scores[j]);
      }
    }
    const double match = log_sum_exp(matching);
    out.natural.push_back(static_cast<double>(
        mixture_log_prob({u, logits[v], copy_logit, context, match, sink_score})));
    out.no_copy.push_back(logits[v] - u);
    out.force_copy.push_back(context == kMinusInfinity ? logits[v] - u : match - context);
  }
  return out;
}

}  // namespace cplm::reference
