// The CPU's backend: tensors to the row kernels, for float32 and float64.
#include "ops/cpu/cpu_backend.h"

#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/cpu/decode_rows.h"
#include "ops/cpu/element_type.h"
#include "ops/matmul.h"

namespace cplm::ops {
namespace {

using cpu::with_type;

template <class T>
T* data_or_null(const at::Tensor& x) {
  return x.defined() ? x.mutable_data_ptr<T>() : nullptr;
}

cpu::KeyBounds bounds_of(const KeyRange& range) {
  return {data_or_null<int32_t>(range.begin), data_or_null<int32_t>(range.end)};
}

template <class T>
cpu::CopyTileRows<T> tile_rows(const CpScoreInput& in, const CopyTile& tile, int64_t index,
                               const at::Tensor& products, double scale, const CpScores& scores) {
  const int64_t positions = in.q.size(1), first = (tile.sequence + index) * positions;
  const at::Tensor& starts = in.document_start.host();
  return {products.mutable_data_ptr<T>() + index * tile.rows() * tile.keys(),
          tile.rows(),
          tile.keys(),
          tile.begin,
          tile.key_begin,
          static_cast<T>(scale),
          in.include_current,
          in.ids.const_data_ptr<int32_t>() + first,
          in.targets.const_data_ptr<int32_t>() + first,
          starts.defined() ? starts.const_data_ptr<int64_t>() + first : nullptr,
          scores.context_lse.mutable_data_ptr<T>() + first,
          scores.match_lse.mutable_data_ptr<T>() + first,
          nullptr,
          nullptr};
}

class CpuBackend : public Backend {
 public:
  bool has_rows(at::ScalarType dtype) const override {
    return dtype == at::kFloat || dtype == at::kDouble;
  }
  bool has_attention_rows(at::ScalarType dtype) const override { return has_rows(dtype); }
  bool has_recurrent_rows(at::ScalarType dtype) const override { return has_rows(dtype); }

  void matmul(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, double alpha,
              double beta) const override {
    matmul_on_cpu(out, a, b, alpha, beta);
  }

  CopyTile largest_copy_tile(const CpScoreInput&) const override { return {0, 1, 0, 256, 0}; }

  // Logits of a chunk stay in the cache between their passes; but a chunk also reads and writes the
  // whole weight and its gradient, so it has at least 128 rows.
  int64_t vocabulary_chunk_rows(const at::Tensor& weight) const override {
    const int64_t row_bytes = weight.size(0) * static_cast<int64_t>(weight.element_size());
    return std::max<int64_t>((int64_t{7} << 20) / row_bytes, 128);
  }

  int64_t largest_norm_width() const override { return std::numeric_limits<int64_t>::max(); }

  void rms_norm(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight,
                double eps, const at::Tensor& y, const at::Tensor& rstd) const override {
    with_type(x, [&](auto type) {
      using T = decltype(type);
      cpu::rms_norm<T>(x.mutable_data_ptr<T>(), data_or_null<T>(residual), data_or_null<T>(weight),
                       x.size(0), x.size(1), x.stride(0),
                       residual.defined() ? residual.stride(0) : 0, eps, y.mutable_data_ptr<T>(),
                       rstd.mutable_data_ptr<T>());
    });
  }

  void rms_norm_apply(const at::Tensor& x, const at::Tensor& rstd, const at::Tensor& weight,
                      const at::Tensor& y) const override {
    with_type(x, [&](auto type) {
      using T = decltype(type);
      cpu::rms_norm_apply<T>(x.const_data_ptr<T>(), rstd.const_data_ptr<T>(),
                             data_or_null<T>(weight), x.size(0), x.size(1), x.stride(0),
                             y.mutable_data_ptr<T>());
    });
  }

  void rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& rstd,
                         const at::Tensor& weight, const at::Tensor& dx,
                         const at::Tensor& dweight) const override {
    with_type(x, [&](auto type) {
      using T = decltype(type);
      cpu::rms_norm_backward<T>(dy.const_data_ptr<T>(), x.const_data_ptr<T>(),
                                rstd.const_data_ptr<T>(), data_or_null<T>(weight), x.size(0),
                                x.size(1), x.stride(0), dx.stride(0), dx.mutable_data_ptr<T>(),
                                data_or_null<T>(dweight));
    });
  }

  void rope(const at::Tensor& x, const RopeTable& table, RopeDirection direction) const override {
    const at::Tensor cos = table.cos.contiguous();
    const at::Tensor sin = direction == RopeDirection::kForward ? table.sin.contiguous()
                                                                : table.sin.neg().contiguous();
    with_type(x, [&](auto type) {
      using T = decltype(type);
      cpu::rope(x.mutable_data_ptr<T>(), cos.const_data_ptr<T>(), sin.const_data_ptr<T>(),
                x.size(0) * x.size(1), x.size(1), x.size(2), x.size(3) / 2, x.stride(1),
                x.stride(2));
    });
  }

  void swiglu(const at::Tensor& gate_up, const at::Tensor& act) const override {
    const int64_t width = act.size(-1);
    with_type(act, [&](auto type) {
      using T = decltype(type);
      cpu::swiglu(gate_up.const_data_ptr<T>(), width == 0 ? 0 : act.numel() / width, width,
                  act.mutable_data_ptr<T>());
    });
  }

  void swiglu_backward(const at::Tensor& dact, const at::Tensor& gate_up) const override {
    const int64_t width = dact.size(-1);
    with_type(dact, [&](auto type) {
      using T = decltype(type);
      cpu::swiglu_backward(dact.mutable_data_ptr<T>(), gate_up.mutable_data_ptr<T>(),
                           width == 0 ? 0 : dact.numel() / width, width);
    });
  }

  void copy_rows(const CpScoreInput& in, const CopyTile& tile, const at::Tensor& products,
                 double scale, const CpScores& out) const override {
    with_type(products, [&](auto type) {
      using T = decltype(type);
      for (int64_t i = 0; i < tile.count; ++i) {
        cpu::copy_rows(tile_rows<T>(in, tile, i, products, scale, out));
      }
    });
  }

  void copy_rows_backward(const CpScoreInput& in, const CopyTile& tile, const at::Tensor& products,
                          double scale, const CpScores& scores, const at::Tensor& grad_context_lse,
                          const at::Tensor& grad_match_lse, const at::Tensor&) const override {
    with_type(products, [&](auto type) {  // in place: one dtype here
      using T = decltype(type);
      for (int64_t i = 0; i < tile.count; ++i) {
        cpu::CopyTileRows<T> rows = tile_rows<T>(in, tile, i, products, scale, scores);
        const int64_t first = (tile.sequence + i) * in.q.size(1);
        rows.grad_context = grad_context_lse.const_data_ptr<T>() + first;
        rows.grad_match = grad_match_lse.const_data_ptr<T>() + first;
        cpu::copy_rows_backward(rows);
      }
    });
  }

  void vocabulary_rows(const at::Tensor& logits, const at::Tensor& targets,
                       const VocabRows& out) const override {
    with_type(logits, [&](auto type) {
      using T = decltype(type);
      cpu::vocabulary_rows(logits.const_data_ptr<T>(), logits.size(0), logits.size(1),
                           targets.const_data_ptr<int64_t>(), out.vocab_lse.mutable_data_ptr<T>(),
                           out.target_logit.mutable_data_ptr<T>());
    });
  }

  void mixture_scores(const MixtureInput& in, const at::Tensor& targets,
                      const MixtureScores& out) const override {
    with_type(in.vocab_lse, [&](auto type) {
      using T = decltype(type);
      cpu::mixture_scores<T>(
          {in.vocab_lse.const_data_ptr<T>(), in.target_logit.const_data_ptr<T>(),
           in.copy_logit.const_data_ptr<T>(), in.context_lse.const_data_ptr<T>(),
           in.match_lse.const_data_ptr<T>(), in.sink_score.const_data_ptr<T>(),
           targets.const_data_ptr<int64_t>(), in.vocab_lse.numel(),
           out.log_prob.mutable_data_ptr<T>(), out.log_prob_no_copy.mutable_data_ptr<T>(),
           out.copy_gate.mutable_data_ptr<T>(), out.sink_mass.mutable_data_ptr<T>(),
           out.copy_weight.mutable_data_ptr<T>()});
    });
  }

  void loss_rows(const at::Tensor& logits, const at::Tensor& targets, const CopyRows& copy,
                 double target_weight, const at::Tensor&, const LossRows& out) const override {
    with_type(logits, [&](auto type) {  // in place: one dtype here
      using T = decltype(type);
      cpu::loss_rows<T>({logits.mutable_data_ptr<T>(), logits.size(0), logits.size(1),
                         targets.const_data_ptr<int64_t>(), static_cast<T>(target_weight),
                         data_or_null<T>(copy.copy_logit), data_or_null<T>(copy.context_lse),
                         data_or_null<T>(copy.match_lse), data_or_null<T>(copy.sink_score),
                         out.log_prob.mutable_data_ptr<T>(), data_or_null<T>(out.grad.copy_logit),
                         data_or_null<T>(out.grad.context_lse), data_or_null<T>(out.grad.match_lse),
                         data_or_null<T>(out.grad.sink_score)});
    });
  }

  void cp_decode(const at::Tensor& q, const at::Tensor& keys, const KeyRange& range, double scale,
                 const DecodeScores& out) const override {
    with_type(q, [&](auto type) {
      using T = decltype(type);
      cpu::decode_rows<T>({q.const_data_ptr<T>(), keys.const_data_ptr<T>(), bounds_of(range),
                           q.size(0), keys.size(1), q.size(1), keys.stride(0), keys.stride(1),
                           static_cast<T>(scale), out.scores.mutable_data_ptr<T>(),
                           out.context_lse.mutable_data_ptr<T>()});
    });
  }

  void next_token_distribution(const NextTokenInput& in, const at::Tensor& vocab_lse,
                               const at::Tensor& out) const override {
    const bool copies = in.mode != CopyMode::kNoCopy;
    with_type(in.logits, [&](auto type) {
      using T = decltype(type);
      cpu::distribution_rows<T>(
          {in.logits.const_data_ptr<T>(), vocab_lse.const_data_ptr<T>(),
           data_or_null<T>(in.copy_logit), data_or_null<T>(in.copy.context_lse),
           data_or_null<T>(in.sink_score), data_or_null<T>(in.copy.scores),
           data_or_null<int32_t>(in.ids), copies && in.ids.size(0) > 1 ? in.ids.size(1) : 0,
           bounds_of(in.range), in.logits.size(0), copies ? in.copy.scores.size(1) : 0,
           in.logits.size(1), in.mode, in.log_space, out.mutable_data_ptr<T>()});
    });
  }

  void sample_tokens(const at::Tensor& log_prob, const at::Tensor& counter,
                     const Sampling& sampling, const at::Tensor& tokens) const override {
    with_type(log_prob, [&](auto type) {
      using T = decltype(type);
      cpu::sample_rows<T>({log_prob.const_data_ptr<T>(), counter.const_data_ptr<int64_t>(),
                           log_prob.size(0), log_prob.size(1), sampling,
                           tokens.mutable_data_ptr<int64_t>()});
    });
  }

  void adamw(const AdamWInput& in) const override {
    if (*in.blocked.const_data_ptr<float>() != 0) return;
    const double step = *in.step.const_data_ptr<float>();
    const double correction1 = 1 - std::pow(in.beta1, step);
    const double correction2 = 1 - std::pow(in.beta2, step);
    with_type(in.master, [&](auto type) {
      using T = decltype(type);
      const T scale = in.grad_scale.defined() ? *in.grad_scale.const_data_ptr<T>() : T{1};
      cpu::adamw<T>({in.master.mutable_data_ptr<T>(), in.grad.const_data_ptr<T>(),
                     in.exp_avg.mutable_data_ptr<T>(), in.exp_avg_sq.mutable_data_ptr<T>(),
                     in.master.numel(), scale, static_cast<T>(1 - in.beta1),
                     static_cast<T>(1 - in.beta2), static_cast<T>(in.beta2),
                     static_cast<T>(in.learning_rate * in.weight_decay),
                     static_cast<T>(in.learning_rate / correction1),
                     static_cast<T>(1 / std::sqrt(correction2)), static_cast<T>(in.eps)});
    });
  }

  GradNorm grad_norm(const at::Tensor& flat_grad, double limit) const override {
    double squares = 0;
    with_type(flat_grad, [&](auto type) {
      using T = decltype(type);
      squares = cpu::sum_of_squares(flat_grad.const_data_ptr<T>(), flat_grad.numel());
    });
    const double norm = std::sqrt(squares);
    const auto scalar = [&](double value, at::ScalarType dtype) {
      return at::scalar_tensor(value, flat_grad.options().dtype(dtype));
    };
    GradNorm out{scalar(norm, at::kDouble), {}};
    // std::min would pass over a NaN.
    const double factor = limit / (norm + 1e-6);
    if (limit > 0) out.scale = scalar(factor > 1.0 ? 1.0 : factor, flat_grad.scalar_type());
    return out;
  }

  void add_embedding_grad(const at::Tensor& dy, const at::Tensor& ids,
                          const at::Tensor& dweight) const override {
    dweight.index_add_(0, ids, dy);  // sequential over the rows
  }
};

}  // namespace

const Backend& cpu_backend() {
  static const CpuBackend backend;
  return backend;
}

namespace cpu {

void softmax_rows(const at::Tensor& scores, const KeyRanges& ranges, double scale,
                  const at::Tensor& lse) {
  with_type(scores, [&](auto type) {
    using T = decltype(type);
    softmax_rows(scores.mutable_data_ptr<T>(), scores.size(0) * scores.size(1), scores.size(2),
                 ranges, scale, lse.mutable_data_ptr<T>());
  });
}

void softmax_rows_backward(const at::Tensor& weights, const at::Tensor& dweights,
                           const KeyRanges& ranges, double scale, const at::Tensor& lse,
                           const at::Tensor& delta) {
  with_type(weights, [&](auto type) {
    using T = decltype(type);
    softmax_rows_backward(weights.mutable_data_ptr<T>(), dweights.mutable_data_ptr<T>(),
                          weights.size(0) * weights.size(1), weights.size(2), ranges, scale,
                          lse.const_data_ptr<T>(), delta.const_data_ptr<T>());
  });
}

}  // namespace cpu
}  // namespace cplm::ops
