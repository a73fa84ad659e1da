// Gated DeltaNet (arXiv 2412.06464): short convolutions before a gated delta rule, a gated norm
// behind it. Order comes from the recurrence and the convolutions, so nothing is rotated.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "model/gated_delta_cache.h"

namespace cplm {
namespace {

struct DeltaSaved : MixerSaved {
  at::Tensor projected;          // [B, T, P], before the convolutions
  ops::GatedDeltaResult result;  // and one state a chunk
};

class GatedDeltaMixer : public Mixer {
 public:
  GatedDeltaMixer(ParameterStore& store, const ModelConfig& config, const std::string& prefix)
      : store_(store),
        shape_(config),
        eps_(config.rms_norm_eps),
        allow_neg_eigval_(config.linear_allow_neg_eigval) {
    const int64_t width = config.hidden_size, keys = shape_.keys(), values = shape_.values();
    const auto projection = [&](const char* name, int64_t rows) {
      return ParameterStore::Spec{prefix + name + "_proj.weight", {rows, width}, Init::kNormal};
    };
    in_ = store.add({projection("q", keys), projection("k", keys), projection("v", values),
                     projection("g", values), projection("a", shape_.heads),
                     projection("b", shape_.heads)});
    const auto conv = [&](const char* name, int64_t channels) {
      return ParameterStore::Spec{
          prefix + name + "_conv1d.weight", {channels, 1, shape_.taps}, Init::kNormal};
    };
    conv_ = store.add({conv("q", keys), conv("k", keys), conv("v", values)});
    decay_ = store.add({{prefix + "A_log", {shape_.heads}, Init::kLogDecayRate},
                        {prefix + "dt_bias", {shape_.heads}, Init::kStepBias}},
                       /*computes_by_master=*/true);
    norm_ = store.add({{prefix + "o_norm.weight", {shape_.value_dim}, Init::kOne}});
    out_ = store.add({{prefix + "o_proj.weight", {width, values}, Init::kNormalResidual}});
  }

  at::Tensor forward(const at::Tensor& x, const SequenceContext& context,
                     std::unique_ptr<MixerSaved>* saved) const override {
    auto kept = std::make_unique<DeltaSaved>();
    kept->projected = ops::linear(x, store_.stacked_value(in_, kProjections));
    const at::Tensor mixed = ops::short_conv(conv_input(kept->projected, context), context.ops);
    kept->result = ops::gated_delta(delta_input(mixed, gates_of(kept->projected), context));
    at::Tensor y =
        ops::linear(ops::gated_rms_norm(norm_input(kept->result.out, kept->projected), context.ops),
                    store_[out_].value);
    if (saved != nullptr) *saved = std::move(kept);
    return y;
  }

  at::Tensor backward(const at::Tensor& dy, const at::Tensor& x, const SequenceContext& context,
                      std::unique_ptr<MixerSaved> saved) const override {
    auto& kept = static_cast<DeltaSaved&>(*saved);
    const at::Tensor dprojected = at::empty_like(kept.projected);
    delta_backward(norm_backward(dy, kept, dprojected, context.ops), kept, dprojected, context);
    saved.reset();
    ops::add_linear_weight_grad(dprojected, x, store_.stacked_grad(in_, kProjections));
    return ops::linear_input_grad(dprojected, store_.stacked_value(in_, kProjections));
  }

  std::unique_ptr<DecodeCache> make_cache(int64_t sequences,
                                          const at::TensorOptions& options) const override {
    return std::make_unique<GatedDeltaCache>(sequences, shape_, options);
  }

  at::Tensor decode(const at::Tensor& x, const DecodePass& pass,
                    DecodeCache& cache) const override {
    const at::Tensor projected = ops::linear(x, store_.stacked_value(in_, kProjections));
    const at::Tensor out = static_cast<GatedDeltaCache&>(cache).advance(
        {conv_part(projected), store_.stacked_value(conv_, kConvolutions), gates_of(projected)},
        pass);
    return ops::linear(
        ops::gated_rms_norm(norm_input(out.unsqueeze(0), projected), pass.context.ops),
        store_[out_].value);
  }

 private:
  static constexpr size_t kProjections = 6, kConvolutions = 3;

  // Parts of the projections [B, T, P], or of their gradient.
  at::Tensor conv_part(const at::Tensor& projected) const {
    return projected.narrow(2, 0, shape_.conv_width());
  }
  at::Tensor gate_part(const at::Tensor& projected) const {
    return projected.narrow(2, shape_.conv_width(), shape_.values());
  }
  at::Tensor head_part(const at::Tensor& projected, int64_t index) const {  // a, b
    const int64_t begin = shape_.conv_width() + shape_.values() + index * shape_.heads;
    return projected.narrow(2, begin, shape_.heads);
  }

  ops::ShortConvInput conv_input(const at::Tensor& projected,
                                 const SequenceContext& context) const {
    return {conv_part(projected),
            store_.stacked_value(conv_, kConvolutions),
            context.document_start,
            {}};
  }
  ops::DeltaGatesInput gates_input(const at::Tensor& projected) const {
    return {head_part(projected, 0), head_part(projected, 1), store_[decay_].master,
            store_[decay_ + 1].master, allow_neg_eigval_};
  }
  ops::DeltaGates gates_of(const at::Tensor& projected) const {
    return ops::delta_gates(gates_input(projected));
  }
  ops::GatedDeltaInput delta_input(const at::Tensor& mixed, const ops::DeltaGates& gates,
                                   const SequenceContext& context) const {
    return {shape_.q(mixed),
            shape_.k(mixed),
            shape_.v(mixed),
            gates.log_decay,
            gates.beta,
            context.document_start,
            {}};
  }
  ops::GatedNormInput norm_input(const at::Tensor& out, const at::Tensor& projected) const {
    return {out, gate_part(projected), store_[norm_].value, eps_};
  }

  // Through the last product and the gated norm: the gradient of the rule's output.
  at::Tensor norm_backward(const at::Tensor& dy, DeltaSaved& kept, const at::Tensor& dprojected,
                           OpsKind ops) const {
    const ops::GatedNormInput in = norm_input(kept.result.out, kept.projected);
    ops::add_linear_weight_grad(dy, ops::gated_rms_norm(in, ops), store_[out_].grad);
    const at::Tensor d = ops::linear_input_grad(dy, store_[out_].value);
    at::Tensor dout = d.view(kept.result.out.sizes());
    ops::gated_rms_norm_backward(in, d, dout, gate_part(dprojected), store_[norm_].grad, ops);
    kept.result.out.reset();
    return dout;
  }

  void delta_backward(const at::Tensor& dout, const DeltaSaved& kept, const at::Tensor& dprojected,
                      const SequenceContext& context) const {
    const ops::ShortConvInput conv = conv_input(kept.projected, context);
    const at::Tensor mixed = ops::short_conv(conv, context.ops);
    const ops::DeltaGates gates = gates_of(kept.projected);
    const ops::DeltaGates dgates{at::empty_like(gates.log_decay), at::empty_like(gates.beta)};
    // Gradients take the place of what they are the gradients of.
    ops::gated_delta_backward(
        delta_input(mixed, gates, context), kept.result.states, dout,
        {shape_.q(mixed), shape_.k(mixed), shape_.v(mixed), dgates.log_decay, dgates.beta});
    ops::delta_gates_backward(gates_input(kept.projected), dgates, head_part(dprojected, 0),
                              head_part(dprojected, 1), store_[decay_].grad,
                              store_[decay_ + 1].grad);
    ops::short_conv_backward(conv, mixed, conv_part(dprojected),
                             store_.stacked_grad(conv_, kConvolutions), context.ops);
  }

  ParameterStore& store_;
  DeltaShape shape_;
  double eps_;
  bool allow_neg_eigval_;
  size_t in_ = 0, conv_ = 0, decay_ = 0, norm_ = 0, out_ = 0;
};

}  // namespace

std::unique_ptr<Mixer> make_gated_delta_mixer(ParameterStore& store, const ModelConfig& config,
                                              const std::string& prefix) {
  return std::make_unique<GatedDeltaMixer>(store, config, prefix);
}

}  // namespace cplm
