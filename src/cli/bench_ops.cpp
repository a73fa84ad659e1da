// cplm bench ops: the heads' ops and the mixers alone at the shapes of real models, against the
// composed path and against the bare matrix products that they contain.
#include "cli/bench_ops.h"

#include <c10/core/InferenceMode.h>

#include <chrono>
#include <cstdio>

#include "cli/bench.h"
#include "cli/bench_products.h"
#include "cplm/base.h"
#include "cplm/train.h"

namespace cplm {
namespace {

struct OpsArguments {
  std::vector<std::string> sizes = {"135m", "360m", "1.7b"};
  std::vector<int64_t> lengths = {512, 1024, 2048, 4096};
  int64_t tokens = 4096, repeats = 5, threads = 0;
  std::string device = "auto", precision = "float32";
  std::string only;  // the name of one op; empty: all
  bool json = false;
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

class OpsBench {
 public:
  OpsBench(at::Device device, int64_t repeats)
      : device_(device), synchronize_(device_synchronizer(device)), repeats_(repeats) {}

  BenchJson measure(const NamedOp& named, const Problem& p) const {
    const OpRun op = named.make();
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
    const double flops = products.flops() + op.rows.flops;
    const double bytes = products.bytes() + op.rows.bytes;
    BenchJson row{{"op", named.name},
                  {"size", p.shape.name},
                  {"vocab_size", p.shape.vocab_size},
                  {"width", p.shape.width},
                  {"length", p.positions},
                  {"tokens", p.batch * p.positions},
                  {"ms", 1000 * time},
                  {"flops", flops},
                  {"product_flops", products.flops()},
                  {"bytes", bytes},
                  {"gflop_per_s", flops / time / 1e9},
                  {"gb_per_s", bytes / time / 1e9},
                  {"extra_mb", extra_bytes([&] { op.run(OpsKind::kFused); }) / 1048576.0}};
    row["time_over_composed"] = time / median_of(composed);
    row["time_over_products"] =
        products.flops() > 0 ? BenchJson(time / bare_time) : BenchJson(nullptr);
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

void print_head() {
  std::printf("%-48s %-9s %6s %9s %9s %9s %9s %9s %9s\n", "op", "size", "T", "ms", "GFLOP/s",
              "GB/s", "extra MiB", "/composed", "/products");
}

void print_row(const BenchJson& row) {
  const double over =
      row["time_over_products"].is_null() ? 0.0 : row["time_over_products"].get<double>();
  std::printf("%-48s %-9s %6ld %9.2f %9.1f %9.1f %9.1f %9.3f %9.3f\n",
              row["op"].get<std::string>().c_str(), row["size"].get<std::string>().c_str(),
              row["length"].get<int64_t>(), row["ms"].get<double>(),
              row["gflop_per_s"].get<double>(), row["gb_per_s"].get<double>(),
              row["extra_mb"].get<double>(), row["time_over_composed"].get<double>(), over);
  std::fflush(stdout);  // a large op takes its time
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
      std::vector<NamedOp> all = bench_ops_of(p);
      for (NamedOp& mixer : bench_mixers_of(p)) all.push_back(std::move(mixer));
      for (const NamedOp& op : all) {
        if (!arguments.only.empty() && op.name != arguments.only) continue;
        report["ops"].push_back(bench.measure(op, p));
        if (!arguments.json) print_row(report["ops"].back());
      }
    }
  }
  CPLM_CHECK(!report["ops"].empty(), "--op: no op is called ", arguments.only);
  return report;
}

}  // namespace

void add_bench_ops(CLI::App& bench) {
  auto arguments = std::make_shared<OpsArguments>();
  CLI::App* app =
      bench.add_subcommand("ops", "The heads' ops and the mixers at the shapes of real models");
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
    if (!arguments->json) print_head();
    const BenchJson report = bench_ops(*arguments);
    if (arguments->json) print_report(report, true);
  });
}

}  // namespace cplm
