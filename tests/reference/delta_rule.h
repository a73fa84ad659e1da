// Gated DeltaNet (arXiv 2412.06464) position by position in double precision: the layer's parts,
// and the recurrence with a reverse of its own. Shares no code with src/.
#pragma once

#include "reference/paper.h"

namespace cplm::reference {

// silu of each channel's sum over its last `taps` positions of the document; weight [channels,
// taps].
Matrix short_conv(const Matrix& x, const std::vector<double>& weight, size_t taps,
                  const std::vector<int>& document_start);

// Of one sequence: q, k [T, heads * key], v [T, heads * value], log_decay, beta [T, heads].
struct DeltaRule {
  Matrix q, k, v, log_decay, beta;
};
// q and k are normalised first. state [heads, key, value]: before the first position (empty: 0),
// and behind the last.
Matrix delta_rule(const DeltaRule& in, const DeltaSizes& sizes,
                  const std::vector<int>& document_start, std::vector<double>* state = nullptr);
// Gradients of sum(dout * out) by the five inputs.
DeltaRule delta_rule_gradient(const DeltaRule& in, const Matrix& dout, const DeltaSizes& sizes,
                              const std::vector<int>& document_start);

// y = x / sqrt(mean(x^2) + eps) * weight * silu(gate) of each head; weight [width of a head].
Matrix gated_rms_norm(const Matrix& x, const Matrix& gate, const std::vector<double>& weight,
                      double eps);

// The whole layer; weights are named prefix + "q_proj.weight" and so on.
Matrix delta_layer(const std::map<std::string, std::vector<double>>& weights,
                   const std::string& prefix, const Matrix& x, const DeltaSizes& sizes, double eps,
                   const std::vector<int>& document_start);

}  // namespace cplm::reference
