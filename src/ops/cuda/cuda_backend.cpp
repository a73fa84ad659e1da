// See cuda_backend.h.
#include "ops/cuda/cuda_backend.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "kernels/adamw.h"
#include "kernels/cp_decode.h"
#include "kernels/cp_score.h"
#include "kernels/embedding_grad.h"
#include "kernels/grad_norm.h"
#include "kernels/head_rows.h"
#include "kernels/mix_distribution.h"
#include "kernels/mixture_rows.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"
#include "kernels/sample.h"
#include "kernels/scatter_sum.h"
#include "kernels/swiglu.h"

namespace cplm::ops {
namespace {

// body(T{}) with T the kernels' element type.
template <class Body>
void with_type(const at::Tensor& x, const Body& body) {
  if (x.scalar_type() == at::kBFloat16) {
    body(kernels::Bf16{});
  } else {
    body(float{});
  }
}

template <class T>
T* data(const at::Tensor& x) {
  return x.defined() ? static_cast<T*>(x.mutable_data_ptr()) : nullptr;
}

int32_t narrow(int64_t value) { return static_cast<int32_t>(value); }

int64_t stride_of(const at::Tensor& x) { return x.defined() ? x.stride(0) : 0; }

// From row `first` on of x [R, ...]; null where undefined.
template <class T>
T* data_from(const at::Tensor& x, int64_t first) {
  return x.defined() ? data<T>(x) + first * x.stride(0) : nullptr;
}

kernels::DistributionMode mode_of(CopyMode mode) {
  using Mode = kernels::DistributionMode;
  if (mode == CopyMode::kNatural) return Mode::kNatural;
  return mode == CopyMode::kNoCopy ? Mode::kNoCopy : Mode::kForceCopy;
}

// Rows of the tile's sequences of x [B, T].
template <class T>
T* sequence_data(const at::Tensor& x, const CopyTile& tile) {
  return x.defined() ? data<T>(x) + tile.sequence * x.size(1) : nullptr;
}

class CudaBackend : public Backend {
 public:
  explicit CudaBackend(const CudaRuntime& runtime) : runtime_(runtime) {}

  bool has_rows(at::ScalarType dtype) const override {
    return dtype == at::kFloat || dtype == at::kBFloat16;
  }
  bool has_attention_rows(at::ScalarType) const override { return false; }  // flash, or composed

  void matmul(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, double alpha,
              double beta) const override {
    runtime_.matmul(out, a, b, alpha, beta);
  }

  // Rows in whole tiles of the products while as many fit.
  CopyTile largest_copy_tile(const CpScoreInput& in) const override {
    const int64_t positions = std::max<int64_t>(1, in.q.size(1));
    const int64_t row_bytes = positions * (4 + static_cast<int64_t>(in.q.element_size()));
    const int64_t fitting = std::max<int64_t>(1, kCopyTileBytes / row_bytes);
    const int64_t whole = fitting < 128 ? fitting : fitting / 128 * 128;
    const int64_t rows = std::min({int64_t{1024}, positions, whole});
    return {0, fitting / rows, 0, rows, 0};
  }

  // A chunk costs a pass over the weight's gradient, so it is large: 768 MiB of logits.
  int64_t vocabulary_chunk_rows(const at::Tensor& weight) const override {
    return std::max<int64_t>((int64_t{768} << 20) / (4 * weight.size(0)), 128);
  }

  int64_t largest_norm_width() const override { return kernels::kMaxRmsNormWidth; }

  void rms_norm(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight,
                double eps, const at::Tensor& y, const at::Tensor& rstd) const override {
    with_type(x, [&](auto type) {
      using T = decltype(type);
      kernels::rms_norm<T>({data<T>(x), data<T>(residual), data<T>(x), data<T>(weight), data<T>(y),
                            data<float>(rstd), x.size(0), narrow(x.size(1)), x.stride(0),
                            stride_of(residual), x.stride(0), y.stride(0), static_cast<float>(eps)},
                           stream(x));
    });
  }

  void rms_norm_apply(const at::Tensor& x, const at::Tensor& rstd, const at::Tensor& weight,
                      const at::Tensor& y) const override {
    with_type(x, [&](auto type) {
      using T = decltype(type);
      kernels::rms_norm_apply<T>({data<T>(x), data<float>(rstd), data<T>(weight), data<T>(y),
                                  x.size(0), narrow(x.size(1)), x.stride(0), y.stride(0)},
                                 stream(x));
    });
  }

  void rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& rstd,
                         const at::Tensor& weight, const at::Tensor& dx,
                         const at::Tensor& dweight) const override {
    at::Tensor partials;
    if (dweight.defined()) {
      const int64_t rows = kernels::rms_norm_partials(x.size(0), narrow(x.size(1)));
      partials = at::empty({rows, x.size(1)}, dweight.options());
    }
    with_type(x, [&](auto type) {
      using T = decltype(type);
      kernels::rms_norm_backward<T>(
          {data<T>(dy), data<T>(x), data<float>(rstd), data<T>(weight), data<T>(dx),
           data<float>(dweight), data<float>(partials), x.size(0), narrow(x.size(1)), dy.stride(0),
           x.stride(0), dx.stride(0), /*write_dx=*/false},
          stream(x));
    });
  }

  void rope(const at::Tensor& x, const RopeTable& table, RopeDirection direction) const override {
    with_type(x, [&](auto type) {
      using T = decltype(type);
      kernels::rope<T>(
          {data<T>(x), data<float>(table.cos), data<float>(table.sin), x.size(0) * x.size(1),
           narrow(x.size(1)), narrow(x.size(2)), narrow(x.size(3) / 2), x.stride(1), x.stride(2),
           direction == RopeDirection::kInverse},
          stream(x));
    });
  }

  void swiglu(const at::Tensor& gate_up, const at::Tensor& act) const override {
    with_type(act, [&](auto type) {
      using T = decltype(type);
      kernels::swiglu<T>({data<T>(gate_up), data<T>(act), rows_in(act), narrow(act.size(-1))},
                         stream(act));
    });
  }

  void swiglu_backward(const at::Tensor& dact, const at::Tensor& gate_up) const override {
    with_type(dact, [&](auto type) {
      using T = decltype(type);
      kernels::swiglu_backward<T>(
          {data<T>(dact), data<T>(gate_up), rows_in(dact), narrow(dact.size(-1))}, stream(dact));
    });
  }

  void copy_rows(const CpScoreInput& in, const CopyTile& tile, const at::Tensor& products,
                 double scale, const CpScores& out) const override {
    kernels::cp_score_rows(
        {tile_of(in, tile, products, scale), sequence_data<float>(out.context_lse, tile),
         sequence_data<float>(out.match_lse, tile)},
        stream(products));
  }

  void copy_rows_backward(const CpScoreInput& in, const CopyTile& tile, const at::Tensor& products,
                          double scale, const CpScores& scores, const at::Tensor& grad_context_lse,
                          const at::Tensor& grad_match_lse,
                          const at::Tensor& dproducts) const override {
    with_type(dproducts, [&](auto type) {
      using T = decltype(type);
      kernels::cp_score_rows_backward<T>(
          {tile_of(in, tile, products, scale), sequence_data<float>(scores.context_lse, tile),
           sequence_data<float>(scores.match_lse, tile),
           sequence_data<float>(grad_context_lse, tile), sequence_data<float>(grad_match_lse, tile),
           data<T>(dproducts), dproducts.stride(0), dproducts.stride(1)},
          stream(products));
    });
  }

  void vocabulary_rows(const at::Tensor& logits, const at::Tensor& targets,
                       const VocabRows& out) const override {
    const at::Tensor narrow_targets = targets.to(at::kInt);
    kernels::head_statistics(
        {data<float>(logits), data<int32_t>(narrow_targets), data<float>(out.vocab_lse),
         data<float>(out.target_logit), logits.size(0), logits.stride(0), narrow(logits.size(1))},
        stream(logits));
  }

  void mixture_scores(const MixtureInput& in, const at::Tensor& targets,
                      const MixtureScores& out) const override {
    const at::Tensor narrow_targets = targets.to(at::kInt);
    kernels::mixture_rows(
        {data<float>(in.vocab_lse), data<float>(in.target_logit), data<float>(in.copy_logit),
         data<float>(in.context_lse), data<float>(in.match_lse), data<float>(in.sink_score),
         data<int32_t>(narrow_targets), data<float>(out.log_prob),
         data<float>(out.log_prob_no_copy), data<float>(out.copy_gate), data<float>(out.sink_mass),
         data<float>(out.copy_weight), in.vocab_lse.numel()},
        stream(in.vocab_lse));
  }

  void loss_rows(const at::Tensor& logits, const at::Tensor& targets, const CopyRows& copy,
                 double target_weight, const at::Tensor& dlogits,
                 const LossRows& out) const override {
    const at::Tensor narrow_targets = targets.to(at::kInt);
    const kernels::HeadCopyRows copy_rows{
        data<float>(copy.copy_logit),     data<float>(copy.context_lse),
        data<float>(copy.match_lse),      data<float>(copy.sink_score),
        data<float>(out.grad.copy_logit), data<float>(out.grad.context_lse),
        data<float>(out.grad.match_lse),  data<float>(out.grad.sink_score)};
    with_type(dlogits, [&](auto type) {
      using T = decltype(type);
      kernels::head_training<T>(
          {data<float>(logits), data<int32_t>(narrow_targets), copy_rows, data<T>(dlogits),
           data<float>(out.log_prob), logits.size(0), logits.stride(0), dlogits.stride(0),
           narrow(logits.size(1)), static_cast<float>(target_weight),
           runtime_.shared_memory_limit(logits)},
          stream(logits));
    });
  }

  void cp_decode(const at::Tensor& q, const at::Tensor& keys, const KeyRange& range, double scale,
                 const DecodeScores& out) const override {
    const int32_t max_keys = narrow(keys.size(1));
    const at::Tensor workspace =
        at::empty({q.size(0), kernels::cp_decode_splits(max_keys), 2}, out.scores.options());
    with_type(q, [&](auto type) {
      using T = decltype(type);
      kernels::cp_decode<T>(
          {data<T>(q), data<T>(keys), data<int32_t>(range.end), data<int32_t>(range.begin),
           data<float>(out.scores), data<float>(out.context_lse), data<float>(workspace),
           q.stride(0), keys.stride(0), keys.stride(1), out.scores.stride(0), narrow(q.size(0)),
           max_keys, narrow(q.size(1)), static_cast<float>(scale)},
          stream(q));
    });
  }

  void next_token_distribution(const NextTokenInput& in, const at::Tensor& vocab_lse,
                               const at::Tensor& out) const override {
    constexpr int64_t kMostRows = 64;  // 8 bytes a row and token of copied mass
    const int64_t rows = in.logits.size(0), vocab = in.logits.size(1);
    at::Tensor mass, totals;
    if (in.mode != CopyMode::kNoCopy) {
      const auto integers = in.logits.options().dtype(at::kLong);
      mass = at::zeros({std::min(rows, kMostRows), vocab}, integers);
      totals = at::zeros({rows}, integers);
    }
    for (int64_t first = 0; first < rows; first += kMostRows) {  // mixing leaves mass zeroed
      const int64_t count = std::min(kMostRows, rows - first);
      if (mass.defined()) scatter_mass(in, first, count, mass, totals);
      kernels::mix_distribution(
          {data_from<float>(in.logits, first), data_from<float>(vocab_lse, first),
           data_from<float>(in.copy_logit, first), data_from<float>(in.copy.context_lse, first),
           data_from<float>(in.sink_score, first), data<uint64_t>(mass),
           data_from<uint64_t>(totals, first), data_from<float>(out, first), count,
           in.logits.stride(0), vocab, out.stride(0), narrow(vocab), mode_of(in.mode),
           in.log_space},
          stream(in.logits));
    }
  }

  void sample_tokens(const at::Tensor& log_prob, const at::Tensor& counter,
                     const Sampling& sampling, const at::Tensor& tokens) const override {
    static_assert(sizeof(kernels::TokenScore) == sizeof(int64_t));
    const int32_t vocab = narrow(log_prob.size(1));
    const at::Tensor narrow_tokens = at::empty(tokens.sizes(), tokens.options().dtype(at::kInt));
    const at::Tensor workspace =
        at::empty({log_prob.size(0), kernels::sample_parts(vocab)}, tokens.options());
    const kernels::Sample args{data<float>(log_prob),
                               data<uint64_t>(counter),
                               data<int32_t>(narrow_tokens),
                               data<kernels::TokenScore>(workspace),
                               log_prob.size(0),
                               log_prob.stride(0),
                               vocab,
                               sampling.seed,
                               static_cast<float>(sampling.temperature)};
    sampling.temperature == 0 ? kernels::sample_greedy(args, stream(log_prob))
                              : kernels::sample_temperature(args, stream(log_prob));
    tokens.copy_(narrow_tokens);
  }

  void adamw(const AdamWInput& in) const override {
    with_type(in.value, [&](auto type) {
      using T = decltype(type);
      T* value = in.value.is_alias_of(in.master) ? nullptr : data<T>(in.value);
      kernels::adamw<T>({data<float>(in.master), value, data<float>(in.grad),
                         data<float>(in.exp_avg), data<float>(in.exp_avg_sq), data<float>(in.step),
                         data<float>(in.grad_scale), data<float>(in.blocked), in.master.numel(),
                         in.learning_rate, in.beta1, in.beta2, in.eps, in.weight_decay},
                        stream(in.master));
    });
  }

  GradNorm grad_norm(const at::Tensor& flat_grad, double limit) const override {
    const auto doubles = flat_grad.options().dtype(at::kDouble);
    const at::Tensor partials =
        at::empty({kernels::grad_norm_partials(flat_grad.numel())}, doubles);
    GradNorm out{at::empty({}, doubles), at::empty({}, flat_grad.options())};
    kernels::grad_norm({data<float>(flat_grad), data<double>(partials), data<double>(out.norm),
                        data<float>(out.scale), flat_grad.numel(), limit},
                       stream(flat_grad));
    return out;
  }

  void add_embedding_grad(const at::Tensor& dy, const at::Tensor& ids,
                          const at::Tensor& dweight) const override {
    const auto [sorted, order] = at::sort(ids.to(at::kInt), /*stable=*/true, 0, false);
    const at::Tensor positions = order.to(at::kInt);
    const at::Tensor partials = at::empty(
        {kernels::embedding_grad_partials(ids.numel()), dweight.size(1)}, dweight.options());
    with_type(dy, [&, &sorted = sorted](auto type) {
      using T = decltype(type);
      kernels::embedding_grad<T>(
          {data<T>(dy), data<int32_t>(positions), data<int32_t>(sorted), data<float>(dweight),
           data<float>(partials), ids.numel(), narrow(dweight.size(1)), dy.stride(0)},
          stream(dy));
    });
  }

 private:
  kernels::Stream stream(const at::Tensor& on) const { return runtime_.current_stream(on); }

  static int64_t rows_in(const at::Tensor& x) {
    return x.size(-1) == 0 ? 0 : x.numel() / x.size(-1);
  }

  // Copy weights of `count` rows summed by token id into mass, and altogether into their totals;
  // both come zeroed.
  void scatter_mass(const NextTokenInput& in, int64_t first, int64_t count, const at::Tensor& mass,
                    const at::Tensor& totals) const {
    const int64_t ids_stride = in.ids.size(0) > 1 ? in.ids.stride(0) : 0;
    kernels::scatter_sum(
        {data_from<float>(in.copy.scores, first), data<int32_t>(in.ids) + first * ids_stride,
         data_from<float>(in.copy.context_lse, first), data_from<int32_t>(in.range.begin, first),
         data_from<int32_t>(in.range.end, first), data<uint64_t>(mass),
         data_from<uint64_t>(totals, first), count, in.copy.scores.stride(0), ids_stride,
         mass.stride(0), narrow(in.copy.scores.size(1)), 1.0F},
        stream(in.logits));
  }

  kernels::CpScoreTile tile_of(const CpScoreInput& in, const CopyTile& tile,
                               const at::Tensor& products, double scale) const {
    return {data<float>(products),
            sequence_data<int32_t>(in.ids, tile),
            sequence_data<int32_t>(in.targets, tile),
            sequence_data<int32_t>(in.document_start.device(), tile),
            products.stride(0),
            products.stride(1),
            narrow(tile.count),
            narrow(tile.rows()),
            narrow(tile.begin),
            narrow(tile.keys()),
            narrow(tile.key_begin),
            narrow(in.q.size(1)),
            static_cast<float>(scale),
            in.include_current};
  }

  CudaRuntime runtime_;
};

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(const CudaRuntime& runtime) {
  return std::make_unique<CudaBackend>(runtime);
}

}  // namespace cplm::ops
