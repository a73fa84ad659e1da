// See delta_rule.h.
#include "reference/delta_rule.h"

#include <cmath>

namespace cplm::reference {
namespace {

using Vector = std::vector<double>;

bool starts_document(const std::vector<int>& document_start, size_t t) {
  return t == 0 || (!document_start.empty() && document_start[t] == static_cast<int>(t));
}

Vector slice(const Matrix& x, size_t t, size_t head, size_t width) {
  const double* row = x.row(t) + head * width;
  return {row, row + width};
}

double inverse_norm(const Vector& x) {
  double sum = 0;
  for (const double value : x) sum += value * value;
  return 1 / std::sqrt(sum + 1e-6);
}

Vector scaled(Vector x, double factor) {
  for (double& value : x) value *= factor;
  return x;
}

double query_scale(const DeltaSizes& sizes) {
  return 1 / std::sqrt(static_cast<double>(sizes.key));
}

// S^T x and S y of one head's S [key, value].
Vector read(const Vector& s, const Vector& x, size_t values) {
  Vector out(values, 0.0);
  for (size_t i = 0; i < x.size(); ++i) {
    for (size_t j = 0; j < values; ++j) out[j] += s[i * values + j] * x[i];
  }
  return out;
}

Vector along_values(const Vector& s, const Vector& y, size_t keys) {
  Vector out(keys, 0.0);
  for (size_t i = 0; i < keys; ++i) {
    for (size_t j = 0; j < y.size(); ++j) out[i] += s[i * y.size() + j] * y[j];
  }
  return out;
}

void add_outer(Vector& s, const Vector& x, const Vector& y, double factor = 1) {
  for (size_t i = 0; i < x.size(); ++i) {
    for (size_t j = 0; j < y.size(); ++j) s[i * y.size() + j] += factor * x[i] * y[j];
  }
}

void put(Matrix& to, size_t t, size_t head, const Vector& x) {
  for (size_t i = 0; i < x.size(); ++i) to.at(t, head * x.size() + i) = x[i];
}

double product(const Vector& a, const Vector& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// One position of one head.
struct Step {
  Vector q, k, faded, missing, after;  // faded: e^g S; missing: v - S^T k
};

Step step_of(const DeltaRule& in, const DeltaSizes& sizes, size_t t, size_t head,
             const Vector& before) {
  Step s;
  const Vector q = slice(in.q, t, head, sizes.key), k = slice(in.k, t, head, sizes.key);
  s.q = scaled(q, inverse_norm(q) * query_scale(sizes));
  s.k = scaled(k, inverse_norm(k));
  s.faded = scaled(before, std::exp(in.log_decay.at(t, head)));
  s.missing = slice(in.v, t, head, sizes.value);
  const Vector known = read(s.faded, s.k, sizes.value);
  for (size_t j = 0; j < known.size(); ++j) s.missing[j] -= known[j];
  s.after = s.faded;
  add_outer(s.after, s.k, s.missing, in.beta.at(t, head));
  return s;
}

// Gradient by x of a function of x * inverse_norm(x) * scale.
Vector through_norm(const Vector& x, const Vector& d, double scale) {
  const double r = inverse_norm(x), along = product(x, d);
  Vector out;
  for (size_t i = 0; i < x.size(); ++i)
    out.push_back(scale * (r * d[i] - r * r * r * along * x[i]));
  return out;
}

}  // namespace

Matrix short_conv(const Matrix& x, const std::vector<double>& weight, size_t taps,
                  const std::vector<int>& document_start) {
  Matrix y(x.rows, x.cols);
  for (size_t t = 0; t < x.rows; ++t) {
    const size_t first = document_start.empty() ? 0 : static_cast<size_t>(document_start[t]);
    for (size_t c = 0; c < x.cols; ++c) {
      double sum = 0;
      for (size_t back = 0; back < taps && back + first <= t; ++back) {
        sum += weight[c * taps + taps - 1 - back] * x.at(t - back, c);
      }
      y.at(t, c) = silu(sum);
    }
  }
  return y;
}

Matrix delta_rule(const DeltaRule& in, const DeltaSizes& sizes,
                  const std::vector<int>& document_start, std::vector<double>* state) {
  const size_t length = in.q.rows, numbers = sizes.key * sizes.value;
  Matrix out(length, sizes.heads * sizes.value);
  Vector last;
  for (size_t head = 0; head < sizes.heads; ++head) {
    Vector s(numbers, 0.0);
    if (state != nullptr && !state->empty()) {
      s.assign(state->begin() + static_cast<std::ptrdiff_t>(head * numbers),
               state->begin() + static_cast<std::ptrdiff_t>((head + 1) * numbers));
    }
    for (size_t t = 0; t < length; ++t) {
      if (t > 0 && starts_document(document_start, t)) s.assign(numbers, 0.0);
      const Step step = step_of(in, sizes, t, head, s);
      s = step.after;
      put(out, t, head, read(s, step.q, sizes.value));
    }
    last.insert(last.end(), s.begin(), s.end());
  }
  if (state != nullptr) *state = last;
  return out;
}

DeltaRule delta_rule_gradient(const DeltaRule& in, const Matrix& dout, const DeltaSizes& sizes,
                              const std::vector<int>& document_start) {
  const size_t length = in.q.rows, numbers = sizes.key * sizes.value;
  DeltaRule grad{Matrix(length, in.q.cols), Matrix(length, in.k.cols), Matrix(length, in.v.cols),
                 Matrix(length, sizes.heads), Matrix(length, sizes.heads)};
  for (size_t head = 0; head < sizes.heads; ++head) {
    std::vector<Step> steps;
    for (size_t t = 0; t < length; ++t) {
      const bool fresh = starts_document(document_start, t);
      steps.push_back(
          step_of(in, sizes, t, head, fresh ? Vector(numbers, 0.0) : steps.back().after));
    }
    Vector ds(numbers, 0.0);
    for (size_t t = length; t-- > 0;) {
      const Step& s = steps[t];
      const Vector d = slice(dout, t, head, sizes.value);
      const double beta = in.beta.at(t, head);
      add_outer(ds, s.q, d);
      const Vector dwritten = read(ds, s.k, sizes.value);  // of beta * missing
      Vector dk = scaled(along_values(ds, s.missing, sizes.key), beta);
      const Vector dmissing = scaled(dwritten, beta);
      grad.beta.at(t, head) = product(dwritten, s.missing);
      const Vector less = along_values(s.faded, dmissing, sizes.key);
      for (size_t i = 0; i < dk.size(); ++i) dk[i] -= less[i];
      const Vector q = slice(in.q, t, head, sizes.key), k = slice(in.k, t, head, sizes.key);
      put(grad.q, t, head,
          through_norm(q, along_values(s.after, d, sizes.key), query_scale(sizes)));
      put(grad.k, t, head, through_norm(k, dk, 1));
      put(grad.v, t, head, dmissing);
      add_outer(ds, s.k, dmissing, -1);
      grad.log_decay.at(t, head) = product(ds, s.faded);
      ds = starts_document(document_start, t) ? Vector(numbers, 0.0)
                                              : scaled(ds, std::exp(in.log_decay.at(t, head)));
    }
  }
  return grad;
}

Matrix gated_rms_norm(const Matrix& x, const Matrix& gate, const std::vector<double>& weight,
                      double eps) {
  Matrix y(x.rows, x.cols);
  for (size_t t = 0; t < x.rows; ++t) {
    for (size_t begin = 0; begin < x.cols; begin += weight.size()) {
      double square = 0;
      for (size_t i = 0; i < weight.size(); ++i) square += x.at(t, begin + i) * x.at(t, begin + i);
      const double rstd = 1 / std::sqrt(square / static_cast<double>(weight.size()) + eps);
      for (size_t i = 0; i < weight.size(); ++i) {
        y.at(t, begin + i) = x.at(t, begin + i) * rstd * weight[i] * silu(gate.at(t, begin + i));
      }
    }
  }
  return y;
}

Matrix delta_layer(const std::map<std::string, std::vector<double>>& weights,
                   const std::string& prefix, const Matrix& x, const DeltaSizes& sizes, double eps,
                   const std::vector<int>& document_start) {
  const auto projected = [&](const char* name) {
    return linear(x, weights.at(prefix + name + "_proj.weight"));
  };
  const auto mixed = [&](const char* name) {
    return short_conv(projected(name), weights.at(prefix + name + "_conv1d.weight"), sizes.taps,
                      document_start);
  };
  DeltaRule rule{mixed("q"), mixed("k"), mixed("v"), projected("a"), projected("b")};
  for (size_t t = 0; t < x.rows; ++t) {
    for (size_t head = 0; head < sizes.heads; ++head) {
      const double a = rule.log_decay.at(t, head) + weights.at(prefix + "dt_bias")[head];
      rule.log_decay.at(t, head) =
          -std::exp(weights.at(prefix + "A_log")[head]) * std::log1p(std::exp(a));
      rule.beta.at(t, head) = sizes.strength / (1 + std::exp(-rule.beta.at(t, head)));
    }
  }
  const Matrix out = delta_rule(rule, sizes, document_start);
  return linear(gated_rms_norm(out, projected("g"), weights.at(prefix + "o_norm.weight"), eps),
                weights.at(prefix + "o_proj.weight"));
}

}  // namespace cplm::reference
