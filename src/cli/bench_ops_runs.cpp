// The runs of cplm bench ops: inputs at the shapes of real models, and modelled costs.
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "cli/bench_ops.h"
#include "cplm/model.h"
#include "model/head.h"
#include "ops/backend.h"

namespace cplm {

at::Tensor Problem::normal(const std::vector<int64_t>& sizes, double scale) const {
  return at::randn(sizes, wide.device(at::kCPU)).mul_(scale).to(options);
}

at::Tensor Problem::ids() const {
  return at::randint(shape.vocab_size, {batch, positions}, ids_options);
}

namespace {

at::Tensor wide_normal(const Problem& p, const std::vector<int64_t>& sizes, double scale) {
  return at::randn(sizes, p.wide.device(at::kCPU)).mul_(scale).to(p.wide);
}

// ---- modelled cost of the rows between the products: the formulas of kernels/*.h, with s bytes an
// operand and w a statistic, score or logit
double value_bytes(const Problem& p) { return static_cast<double>(p.options.dtype().itemsize()); }
double wide_bytes(const Problem& p) { return static_cast<double>(p.wide.dtype().itemsize()); }
double tokens_of(const Problem& p) { return static_cast<double>(p.batch * p.positions); }

// Pairs of a query and a key: those that are allowed, and those in tiles that are computed.
struct Pairs {
  double allowed = 0, computed = 0;
};

Pairs pairs_of(const Problem& p, const ops::CpScoreInput& in) {
  const auto positions = static_cast<double>(p.positions);
  Pairs pairs{static_cast<double>(p.batch) * positions * (positions + 1) / 2, 0};
  const int64_t rows = ops::backend_of(in.q).largest_copy_tile(in).rows();
  for (int64_t begin = 0; begin < p.positions; begin += rows) {
    const int64_t end = std::min(begin + rows, p.positions);
    pairs.computed += static_cast<double>(p.batch * (end - begin) * end);
  }
  return pairs;
}

OpCost copy_rows_cost(const Problem& p, const Pairs& pairs) {
  return {5 * pairs.allowed, wide_bytes(p) * pairs.allowed + 24 * tokens_of(p)};
}

OpCost copy_backward_cost(const Problem& p, const Pairs& pairs) {
  return {6 * pairs.allowed, wide_bytes(p) * pairs.allowed + value_bytes(p) * pairs.computed};
}

// A row of logits that fits the 227 KiB of shared memory beside 2 KiB is read once.
OpCost loss_rows_cost(const Problem& p) {
  const auto vocab = static_cast<double>(p.shape.vocab_size);
  const double reads = vocab * wide_bytes(p) <= 225 * 1024 ? 1 : 2;
  const double logits = tokens_of(p) * vocab;
  return {8 * logits, (reads * wide_bytes(p) + value_bytes(p)) * logits};
}

// log P by token: logits for u and for P, X zeroed and read, P written; and the keys' masses.
OpCost distribution_cost(const Problem& p, double rows, double keys) {
  const double tokens = rows * static_cast<double>(p.shape.vocab_size);
  return {14 * tokens + 4 * rows * keys,
          (3 * wide_bytes(p) + 16) * tokens + (wide_bytes(p) + 20) * rows * keys};
}

// ---- runs
OpRun cp_score_run(const Problem& p, bool backward) {
  ops::CpScoreInput in;
  in.q = p.normal({p.batch, p.positions, p.shape.width}, 1.0);
  in.k = p.normal({p.batch, p.positions, p.shape.width}, 1.0);
  in.ids = p.ids();
  in.targets = p.ids();
  const Pairs pairs = pairs_of(p, in);
  if (!backward) {
    return {[=](OpsKind path) { ops::cp_score(in, path); }, copy_rows_cost(p, pairs)};
  }
  const at::Tensor grad = at::zeros({p.batch, p.positions}, p.wide).fill_(1e-3);
  const ops::CpScores scores = ops::cp_score(in, OpsKind::kFused);
  return {[=](OpsKind path) { ops::cp_score_backward(in, scores, grad, grad, path); },
          copy_backward_cost(p, pairs)};
}

OpRun cross_entropy_run(const Problem& p) {
  const int64_t tokens = p.batch * p.positions;
  const at::Tensor h = p.normal({tokens, p.shape.width}, 1.0);
  const at::Tensor weight = p.normal({p.shape.vocab_size, p.shape.width}, 0.05);
  const at::Tensor targets = p.ids().view(-1);
  const at::Tensor dh = at::empty(h.sizes(), h.options());
  const at::Tensor dweight = at::zeros(weight.sizes(), p.wide);
  const auto column = [&] { return wide_normal(p, {tokens}, 1.0); };
  const ops::CopyRows copy{column(), column(), column().sub_(5), column()};
  return {[=](OpsKind path) {
            ops::linear_cross_entropy_forward_backward({h, weight, targets}, copy, 1e-3, dh,
                                                       dweight, path);
          },
          loss_rows_cost(p)};
}

// A head with weights of its own, as training runs it: projections, both losses, both backwards.
struct HeadOnPath {
  HeadOnPath(const Problem& p, HeadKind kind, OpsKind path) {
    ModelConfig config;
    config.vocab_size = p.shape.vocab_size;
    config.hidden_size = p.shape.width;
    config.head = kind;
    const ModelOptions options{p.options, path, {}};
    const size_t embedding = store.add(
        {{"model.embed_tokens.weight", {config.vocab_size, config.hidden_size}, Init::kNormal}});
    head = kind == HeadKind::kCplm ? make_copy_head(store, config, options, embedding)
                                   : make_vanilla_head(store, config, options, embedding);
    store.allocate(p.options);
    store.allocate_gradients();
    config.initializer_range = 0.05;
    config.num_hidden_layers = 1;
    initialize(store, config, 1);
  }
  ParameterStore store;
  std::unique_ptr<Head> head;
};

OpRun head_run(const Problem& p, HeadKind kind) {
  const auto fused = std::make_shared<HeadOnPath>(p, kind, OpsKind::kFused);
  const auto composed = std::make_shared<HeadOnPath>(p, kind, OpsKind::kComposed);
  const at::Tensor h = p.normal({p.batch, p.positions, p.shape.width}, 1.0);
  const at::Tensor dh = at::empty(h.sizes(), h.options());
  const ModelInput input{p.ids(), p.ids(), {}};
  OpCost rows = loss_rows_cost(p);
  if (kind == HeadKind::kCplm) {
    ops::CpScoreInput in;
    in.q = h;
    const Pairs pairs = pairs_of(p, in);
    // Per token ten passes over D: gates and sink from h and q, and the gradients' way back.
    const double passes = 10 * value_bytes(p) * static_cast<double>(p.shape.width);
    rows = rows + copy_rows_cost(p, pairs) + copy_backward_cost(p, pairs) +
           OpCost{0, passes * tokens_of(p)};
  }
  return {[=](OpsKind path) {
            const auto& one = path == OpsKind::kFused ? fused : composed;
            one->head->forward_backward(h, input, 1e-3, dh, nullptr);
          },
          rows};
}

OpRun mixture_run(const Problem& p) {
  const int64_t tokens = p.batch * p.positions;
  const auto column = [&] { return wide_normal(p, {tokens}, 1.0); };
  const ops::MixtureInput mixture{column().add_(8), column(),         column(),
                                  column(),         column().sub_(5), column()};
  const at::Tensor targets = p.ids().view(-1);
  return {[=](OpsKind path) { ops::mixture_scores(mixture, targets, path); },
          {80 * tokens_of(p), (11 * wide_bytes(p) + 4) * tokens_of(p)}};
}

// `rows` queries against T keys each: every sequence's own, or one list for all.
struct DecodingInputs {
  DecodingInputs(const Problem& p, int64_t rows, bool one_list) {
    q = p.normal({rows, p.shape.width}, 1.0);
    range = {{}, at::full({rows}, p.positions, p.ids_options.dtype(at::kInt))};
    next.logits = wide_normal(p, {rows, p.shape.vocab_size}, 1.0);
    next.copy_logit = wide_normal(p, {rows}, 1.0).add_(10);
    next.sink_score = wide_normal(p, {rows}, 1.0);
    next.copy.scores = wide_normal(p, {rows, p.positions}, 1.0);
    next.copy.context_lse = next.copy.scores.logsumexp(-1);
    next.ids = at::randint(p.shape.vocab_size, {one_list ? 1 : rows, p.positions}, p.ids_options)
                   .to(at::kInt);
    next.range = range;
    next.log_space = true;
  }
  at::Tensor q;
  ops::KeyRange range;
  ops::NextTokenInput next;
};

OpRun cp_decode_run(const Problem& p) {
  const DecodingInputs in(p, p.batch, false);
  const at::Tensor keys = p.normal({p.batch, p.positions, p.shape.width}, 1.0);
  const double tokens = tokens_of(p), products = tokens * static_cast<double>(p.shape.width);
  return {[=](OpsKind path) { ops::cp_decode(in.q, keys, in.range, path); },
          {2 * products, value_bytes(p) * products + wide_bytes(p) * tokens + tokens / 2}};
}

OpRun next_token_run(const Problem& p) {
  const DecodingInputs in(p, p.batch, false);
  return {[=](OpsKind path) { ops::next_token_distribution(in.next, path); },
          distribution_cost(p, static_cast<double>(p.batch), static_cast<double>(p.positions))};
}

// p_CP of an evaluation's rows: scatter_sum and what divides by its total.
OpRun scatter_sum_run(const Problem& p) {
  constexpr int64_t kRows = 64;
  DecodingInputs in(p, kRows, true);
  in.next.mode = CopyMode::kForceCopy;
  in.next.log_space = false;
  return {[=](OpsKind path) { ops::next_token_distribution(in.next, path); },
          distribution_cost(p, kRows, static_cast<double>(p.positions))};
}

OpRun sample_run(const Problem& p) {
  const at::Tensor log_prob =
      wide_normal(p, {p.batch, p.shape.vocab_size}, 1.0).log_softmax(-1).contiguous();
  const at::Tensor counter = at::arange(p.batch, p.ids_options);
  const double tokens = static_cast<double>(p.batch * p.shape.vocab_size);
  return {[=](OpsKind path) {
            ops::sample_tokens(log_prob, counter, {1.0, 1}, path);
          },
          {60 * tokens, wide_bytes(p) * tokens}};
}

}  // namespace

std::vector<NamedOp> bench_ops_of(const Problem& p) {
  return {{"mixture of evaluation", [p] { return mixture_run(p); }},
          {"cp_decode", [p] { return cp_decode_run(p); }},
          {"next_token_distribution", [p] { return next_token_run(p); }},
          {"scatter_sum, p_CP of 64 rows", [p] { return scatter_sum_run(p); }},
          {"sample_tokens, drawn", [p] { return sample_run(p); }},
          {"cp_score", [p] { return cp_score_run(p, false); }},
          {"cp_score backward", [p] { return cp_score_run(p, true); }},
          {"linear_cross_entropy + mixture, forward and backward",
           [p] { return cross_entropy_run(p); }},
          {"loss head (LM alone)", [p] { return head_run(p, HeadKind::kVanilla); }},
          {"loss head (LM + CP)", [p] { return head_run(p, HeadKind::kCplm); }}};
}

}  // namespace cplm
