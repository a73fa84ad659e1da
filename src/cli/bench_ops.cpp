// cplm bench ops: the heads' ops alone at the shapes of real models, against the composed path and
// against the bare matrix products that they contain.
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>

#include <chrono>
#include <cstdio>

#include "cli/bench.h"
#include "cplm/base.h"
#include "cplm/train.h"
#include "model/head.h"
#include "ops/matmul.h"

namespace cplm {
namespace {

struct OpsArguments {
  std::vector<std::string> sizes = {"135m"};
  std::vector<int64_t> lengths = {512, 1024, 2048, 4096};
  int64_t tokens = 4096, repeats = 5, threads = 0;
  std::string device = "auto", precision = "float32";
  std::string only;  // the name of one op; empty: all
  bool json = false;
};

struct HeadShape {
  std::string name;
  int64_t vocab_size, width;
};

HeadShape shape_of(const std::string& size) {
  if (size == "135m") return {size, 49152, 576};
  if (size == "360m") return {size, 49152, 960};
  if (size == "1.7b") return {size, 49152, 2048};
  HeadShape shape{size, 0, 0};
  if (std::sscanf(size.c_str(), "%ldx%ld", &shape.vocab_size, &shape.width) == 2 &&
      shape.vocab_size > 0 && shape.width > 0) {
    return shape;
  }
  throw Error(str("--size: expected 135m, 360m, 1.7b or VxD such as 8192x256, found ", size),
              ExitCode::kBadConfig);
}

// One op on both paths; the run keeps its inputs alive.
struct OpRun {
  std::string name;
  std::function<void(OpsKind)> run;
};

struct Problem {
  int64_t batch, positions;
  at::TensorOptions options, wide, ids_options;
  HeadShape shape;
  at::Tensor normal(const std::vector<int64_t>& sizes, double scale) const {
    return at::randn(sizes, wide.device(at::kCPU)).mul_(scale).to(options);
  }
  at::Tensor ids() const { return at::randint(shape.vocab_size, {batch, positions}, ids_options); }
};

at::Tensor wide_normal(const Problem& p, const std::vector<int64_t>& sizes, double scale) {
  return at::randn(sizes, p.wide.device(at::kCPU)).mul_(scale).to(p.wide);
}

OpRun cp_score_run(const Problem& p, bool backward) {
  ops::CpScoreInput in;
  in.q = p.normal({p.batch, p.positions, p.shape.width}, 1.0);
  in.k = p.normal({p.batch, p.positions, p.shape.width}, 1.0);
  in.ids = p.ids();
  in.targets = p.ids();
  const at::Tensor grad = at::zeros({p.batch, p.positions}, p.wide).fill_(1e-3);
  const ops::CpScores scores = ops::cp_score(in, OpsKind::kFused);
  if (!backward) return {"cp_score", [=](OpsKind path) { ops::cp_score(in, path); }};
  return {"cp_score backward",
          [=](OpsKind path) { ops::cp_score_backward(in, scores, grad, grad, path); }};
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
  return {"linear_cross_entropy + mixture, forward and backward", [=](OpsKind path) {
            ops::linear_cross_entropy_forward_backward({h, weight, targets}, copy, 1e-3, dh,
                                                       dweight, path);
          }};
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
  return {kind == HeadKind::kCplm ? "loss head (LM + CP)" : "loss head (LM alone)",
          [=](OpsKind path) {
            const auto& one = path == OpsKind::kFused ? fused : composed;
            one->head->forward_backward(h, input, 1e-3, dh);
          }};
}

// What a decoding step of `batch` sequences with T cached positions does, and evaluation's rows.
std::vector<OpRun> row_runs(const Problem& p) {
  const int64_t tokens = p.batch * p.positions;
  const auto column = [&] { return wide_normal(p, {tokens}, 1.0); };
  const ops::MixtureInput mixture{column().add_(8), column(),         column(),
                                  column(),         column().sub_(5), column()};
  const at::Tensor targets = p.ids().view(-1);
  const at::Tensor q = p.normal({p.batch, p.shape.width}, 1.0);
  const at::Tensor keys = p.normal({p.batch, p.positions, p.shape.width}, 1.0);
  const ops::KeyRange range{{}, at::full({p.batch}, p.positions, p.ids_options.dtype(at::kInt))};
  ops::NextTokenInput next;
  next.logits = wide_normal(p, {p.batch, p.shape.vocab_size}, 1.0);
  next.copy_logit = wide_normal(p, {p.batch}, 1.0).add_(10);
  next.sink_score = wide_normal(p, {p.batch}, 1.0);
  next.copy = ops::cp_decode(q, keys, range, OpsKind::kFused);
  next.ids = p.ids().to(at::kInt);
  next.range = range;
  next.log_space = true;
  const at::Tensor log_prob = ops::next_token_distribution(next, OpsKind::kFused);
  const at::Tensor counter = at::arange(p.batch, p.ids_options);
  return {
      {"mixture of evaluation", [=](OpsKind path) { ops::mixture_scores(mixture, targets, path); }},
      {"cp_decode", [=](OpsKind path) { ops::cp_decode(q, keys, range, path); }},
      {"next_token_distribution", [=](OpsKind path) { ops::next_token_distribution(next, path); }},
      {"sample_tokens, drawn", [=](OpsKind path) {
         ops::sample_tokens(log_prob, counter, {1.0, 1}, path);
       }}};
}

// The products of one call, made again on matrices of their shapes and layouts: what they cost
// alone.
class BareProducts {
 public:
  BareProducts(const std::vector<ops::MatmulCall>& calls, const at::TensorOptions& options)
      : calls_(calls) {
    int64_t largest[3] = {0, 0, 0};
    for (const ops::MatmulCall& c : calls) {
      largest[0] = std::max(largest[0], c.batch * c.rows * c.inner);
      largest[1] = std::max(largest[1], c.batch * c.inner * c.cols);
      largest[2] = std::max(largest[2], c.batch * c.rows * c.cols);
    }
    for (int i = 0; i < 3; ++i) {
      wide_[i] = at::zeros(
          {largest[i]},
          options.dtype(ops::accumulation_dtype(c10::typeMetaToScalarType(options.dtype()))));
      wide_[i].normal_();  // a GPU clocks higher on zeros
      narrow_[i] = wide_[i].to(options);
    }
  }
  void run() const {
    for (const ops::MatmulCall& c : calls_) {
      ops::matmul_into(matrix(2, c.out_dtype, c.batch, c.rows, c.cols, false),
                       matrix(0, c.dtype, c.batch, c.rows, c.inner, c.a_transposed),
                       matrix(1, c.dtype, c.batch, c.inner, c.cols, c.b_transposed), c.beta);
    }
  }
  double flops() const {
    double sum = 0;
    for (const ops::MatmulCall& c : calls_) {
      sum += 2.0 * static_cast<double>(c.batch * c.rows) * static_cast<double>(c.inner * c.cols);
    }
    return sum;
  }
  // Operands and results, each once a call.
  double bytes() const {
    double sum = 0;
    for (const ops::MatmulCall& c : calls_) {
      const double in = static_cast<double>(c.batch * (c.rows + c.cols) * c.inner);
      const double out = static_cast<double>(c.batch * c.rows * c.cols) * (c.beta == 0 ? 1 : 2);
      sum += in * static_cast<double>(c10::elementSize(c.dtype)) +
             out * static_cast<double>(c10::elementSize(c.out_dtype));
    }
    return sum;
  }

 private:
  at::Tensor matrix(int which, at::ScalarType dtype, int64_t batch, int64_t rows, int64_t cols,
                    bool transposed) const {
    const at::Tensor& from = wide_[which].scalar_type() == dtype ? wide_[which] : narrow_[which];
    const at::Tensor flat = from.narrow(0, 0, batch * rows * cols);
    const at::Tensor x = transposed ? flat.view({batch, cols, rows}).transpose(1, 2)
                                    : flat.view({batch, rows, cols});
    return batch == 1 ? x.select(0, 0) : x;
  }
  std::vector<ops::MatmulCall> calls_;
  at::Tensor wide_[3], narrow_[3];
};

class OpsBench {
 public:
  OpsBench(at::Device device, int64_t repeats)
      : device_(device), synchronize_(device_synchronizer(device)), repeats_(repeats) {}

  BenchJson measure(const OpRun& op, const Problem& p) const {
    op.run(OpsKind::kComposed);  // the first runs fill caches and choose algorithms
    std::vector<ops::MatmulCall> calls;
    ops::record_matmuls(&calls);
    op.run(OpsKind::kFused);
    ops::record_matmuls(nullptr);
    const BareProducts products(calls, p.options);
    std::vector<double> fused, composed, bare;
    for (int64_t i = 0; i < repeats_; ++i) {  // in turn, so that a busy spell meets all three
      fused.push_back(seconds([&] { op.run(OpsKind::kFused); }));
      bare.push_back(seconds([&] { products.run(); }));
      composed.push_back(seconds([&] { op.run(OpsKind::kComposed); }));
    }
    const double time = median_of(fused), bare_time = median_of(bare);
    BenchJson row{{"op", op.name},
                  {"size", p.shape.name},
                  {"vocab_size", p.shape.vocab_size},
                  {"width", p.shape.width},
                  {"length", p.positions},
                  {"tokens", p.batch * p.positions},
                  {"ms", 1000 * time},
                  {"gflop_per_s", products.flops() / time / 1e9},
                  {"product_bytes", products.bytes()},
                  {"extra_mb", extra_bytes([&] { op.run(OpsKind::kFused); }) / 1048576.0}};
    row["time_over_composed"] = time / median_of(composed);
    row["time_over_products"] = bare_time > 0 ? BenchJson(time / bare_time) : BenchJson(nullptr);
    return row;
  }

 private:
  template <class Body>
  double seconds(const Body& body) const {
    if (synchronize_) synchronize_();
    const auto start = std::chrono::steady_clock::now();
    body();
    if (synchronize_) synchronize_();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  template <class Body>
  double extra_bytes(const Body& body) const {
    const PeakMemory peak(device_);
    body();
    return static_cast<double>(peak.bytes());
  }

  at::Device device_;
  std::function<void()> synchronize_;
  int64_t repeats_;
};

at::ScalarType dtype_of(const std::string& precision) {
  if (precision == "bfloat16") return at::kBFloat16;
  return precision == "float64" ? at::kDouble : at::kFloat;
}

BenchJson bench_ops(const OpsArguments& arguments) {
  c10::InferenceMode inference;
  keep_freed_memory();
  const int threads = set_threads(arguments.threads);
  const at::Device device =
      resolve_device(arguments.device == "cuda"  ? Device::kCuda
                     : arguments.device == "cpu" ? Device::kCpu
                                                 : Device::kAuto,
                     arguments.precision == "float64" ? Precision::kFloat64 : Precision::kFloat32);
  const at::ScalarType dtype = dtype_of(arguments.precision);
  const auto options = at::TensorOptions().dtype(dtype).device(device);
  const OpsBench bench(device, arguments.repeats);
  BenchJson report{
      {"device", device.str()}, {"threads", threads}, {"precision", arguments.precision}};
  for (const std::string& size : arguments.sizes) {
    for (const int64_t length : arguments.lengths) {
      const Problem p{std::max<int64_t>(1, arguments.tokens / length),
                      length,
                      options,
                      options.dtype(ops::accumulation_dtype(dtype)),
                      options.dtype(at::kLong),
                      shape_of(size)};
      std::vector<OpRun> runs = row_runs(p);
      for (OpRun op : {cp_score_run(p, false), cp_score_run(p, true), cross_entropy_run(p),
                       head_run(p, HeadKind::kVanilla), head_run(p, HeadKind::kCplm)}) {
        runs.push_back(std::move(op));
      }
      for (const OpRun& op : runs) {
        if (arguments.only.empty() || op.name == arguments.only) {
          report["ops"].push_back(bench.measure(op, p));
        }
      }
    }
  }
  return report;
}

void print_table(const BenchJson& report) {
  std::printf("%-48s %-9s %6s %9s %9s %9s %9s %9s\n", "op", "size", "T", "ms", "GFLOP/s",
              "extra MiB", "/composed", "/products");
  for (const BenchJson& row : report["ops"]) {
    const double over =
        row["time_over_products"].is_null() ? 0.0 : row["time_over_products"].get<double>();
    std::printf("%-48s %-9s %6ld %9.2f %9.1f %9.1f %9.3f %9.3f\n",
                row["op"].get<std::string>().c_str(), row["size"].get<std::string>().c_str(),
                row["length"].get<int64_t>(), row["ms"].get<double>(),
                row["gflop_per_s"].get<double>(), row["extra_mb"].get<double>(),
                row["time_over_composed"].get<double>(), over);
  }
}

}  // namespace

void add_bench_ops(CLI::App& bench) {
  auto arguments = std::make_shared<OpsArguments>();
  CLI::App* app = bench.add_subcommand("ops", "The heads' ops at the shapes of real models");
  app->add_option("--size", arguments->sizes, "135m, 360m, 1.7b, or VxD such as 8192x256")
      ->delimiter(',')
      ->capture_default_str();
  app->add_option("--length", arguments->lengths, "Sequence lengths T")
      ->delimiter(',')
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app->add_option("--tokens", arguments->tokens, "Tokens a call, in sequences of T (one at least)")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app->add_option("--repeats", arguments->repeats, "Timed alternations; the median counts")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app->add_option("--op", arguments->only, "Only the op of this name");
  app->add_option("--threads", arguments->threads, "CPU threads, 0: all cores")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app->add_option("--device", arguments->device, "Where")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  app->add_option("--precision", arguments->precision, "Of operands")
      ->check(CLI::IsMember({"float64", "float32", "bfloat16"}))
      ->capture_default_str();
  app->add_flag("--json", arguments->json, "JSON for programs");
  app->callback([arguments] {
    const BenchJson report = bench_ops(*arguments);
    arguments->json ? print_report(report, true) : print_table(report);
  });
}

}  // namespace cplm
