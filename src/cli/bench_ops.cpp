// cplm bench ops: the heads' ops and the mixers alone at the shapes of real models, against the
// composed path and against the bare matrix products that they contain; the mixers of all lengths
// in turn, against each other.
#include "cli/bench_ops.h"

#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cstdio>

#include "base/argument_checks.h"
#include "cli/bench.h"
#include "cli/bench_ops_turns.h"
#include "cplm/base.h"
#include "cplm/train.h"

namespace cplm {
namespace {

struct OpsArguments {
  std::vector<std::string> sizes = {"135m", "360m", "1.7b"};
  std::vector<int64_t> lengths = {512, 1024, 2048, 4096};
  int64_t tokens = 4096, repeats = 5, threads = 0;
  std::string device = "auto", precision = "float32";
  std::vector<std::string> only;  // names of ops; empty: all
  bool cpu_time = false, json = false;
};

HeadShape shape_of(const std::string& size) {
  if (size == "135m") return {size, 49152, 576};
  if (size == "360m") return {size, 49152, 960};
  if (size == "1.7b") return {size, 49152, 2048};
  const size_t by = std::min(size.find('x'), size.size());
  const auto vocab_size = read_whole_number<int64_t>(std::string_view(size).substr(0, by));
  const auto width =
      read_whole_number<int64_t>(std::string_view(size).substr(std::min(by + 1, size.size())));
  if (vocab_size.value_or(0) > 0 && width.value_or(0) > 0) return {size, *vocab_size, *width};
  throw Error(str("--size: expected 135m, 360m, 1.7b or VxD such as 8192x256, found ", size),
              ExitCode::kBadConfig);
}

at::ScalarType dtype_of(const std::string& precision) {
  if (precision == "bfloat16") return at::kBFloat16;
  return precision == "float64" ? at::kDouble : at::kFloat;
}

void print_head() {
  std::printf("%-48s %-9s %6s %9s %9s %9s %9s %9s %9s %9s %9s\n", "op", "size", "T", "ms",
              "us/token", "/first T", "GFLOP/s", "GB/s", "extra MiB", "/composed", "/products");
}

void print_row(const BenchJson& row) {
  const auto number = [&](const char* name) {
    return row[name].is_null() ? 0.0 : row[name].get<double>();
  };
  const auto name = row["op"].get<std::string>();
  std::printf("%-48s %-9s %6ld %9.2f %9.3f %9.3f %9.1f %9.1f %9.1f %9.3f %9.3f\n", name.c_str(),
              row["size"].get<std::string>().c_str(), row["length"].get<int64_t>(), number("ms"),
              number("us_per_token"), number("token_time_over_first_length"), number("gflop_per_s"),
              number("gb_per_s"), number("extra_mb"), number("time_over_composed"),
              number("time_over_products"));
  if (row.contains("rival")) {
    std::printf("    over %s: %.3f of its time, %.3f of its memory\n",
                row["rival"].get<std::string>().c_str(), number("time_over_rival"),
                number("memory_over_rival"));
  }
  std::fflush(stdout);  // a large op takes its time
}

bool is_asked_for(const std::vector<std::string>& names, const std::string& name) {
  return names.empty() || std::find(names.begin(), names.end(), name) != names.end();
}

void check_names(const std::vector<std::string>& names, const Problem& p) {
  std::vector<std::string> known;
  for (const auto& ops : {bench_ops_of(p), bench_mixers_of(p)}) {
    for (const NamedOp& op : ops) known.push_back(op.name);
  }
  for (const std::string& name : names) {
    if (is_asked_for(known, name)) continue;
    std::string all;
    for (const std::string& each : known) all += str(all.empty() ? "\"" : "\", \"", each);
    throw Error(str("--op: expected one of ", all, "\", found \"", name, "\""),
                ExitCode::kBadConfig);
  }
}

class OpsReport {
 public:
  OpsReport(const OpsArguments& arguments, const OpsBench& bench, BenchJson head)
      : arguments_(arguments), bench_(bench), report_(std::move(head)) {}

  // The heads' ops one by one, since their weights are large; the mixers of all lengths together.
  void measure(const std::vector<Problem>& lengths) {
    std::vector<BenchCase> mixers;
    for (const Problem& p : lengths) {
      for (NamedOp& op : bench_ops_of(p)) {
        if (is_asked_for(arguments_.only, op.name)) add({{std::move(op), p}});
      }
      for (NamedOp& op : bench_mixers_of(p)) {
        if (is_asked_for(arguments_.only, op.name)) mixers.push_back({std::move(op), p});
      }
    }
    add(mixers);
  }
  const BenchJson& json() const { return report_; }

 private:
  void add(const std::vector<BenchCase>& cases) {
    for (BenchJson& row : bench_.measure(cases)) {
      if (!arguments_.json) print_row(row);
      report_["ops"].push_back(std::move(row));
    }
  }
  const OpsArguments& arguments_;
  const OpsBench& bench_;
  BenchJson report_;
};

at::Device device_of(const OpsArguments& arguments) {
  return resolve_device(
      arguments.device == "cuda"  ? Device::kCuda
      : arguments.device == "cpu" ? Device::kCpu
                                  : Device::kAuto,
      arguments.precision == "float64" ? Precision::kFloat64 : Precision::kFloat32);
}

BenchJson bench_ops(const OpsArguments& arguments) {
  c10::InferenceMode inference;
  keep_freed_memory();
  const int threads = set_threads(arguments.threads);
  const at::Device device = device_of(arguments);
  if (arguments.cpu_time && (threads != 1 || !device.is_cpu())) {
    throw Error(str("--cpu-time: expected --threads 1 on a CPU, found ", threads, " threads on ",
                    device.str()),
                ExitCode::kBadConfig);
  }
  const at::ScalarType dtype = dtype_of(arguments.precision);
  const auto options = at::TensorOptions().dtype(dtype).device(device);
  const OpsBench bench(device, arguments.repeats, arguments.cpu_time);
  OpsReport report(arguments, bench,
                   {{"device", device.str()},
                    {"threads", threads},
                    {"precision", arguments.precision},
                    {"clock", arguments.cpu_time ? "cpu" : "wall"}});
  for (const std::string& size : arguments.sizes) {
    std::vector<Problem> lengths;
    for (const int64_t length : arguments.lengths) {
      lengths.push_back({std::max<int64_t>(1, arguments.tokens / length), length, options,
                         options.dtype(ops::accumulation_dtype(dtype)), options.dtype(at::kLong),
                         shape_of(size)});
    }
    check_names(arguments.only, lengths.front());
    report.measure(lengths);
  }
  return report.json();
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
      ->check(whole_from(1))
      ->capture_default_str();
  app->add_option("--tokens", arguments->tokens, "Tokens a call, in sequences of T (one at least)")
      ->check(whole_from(1))
      ->capture_default_str();
  app->add_option("--repeats", arguments->repeats, "Timed rounds; the median counts")
      ->check(whole_from(1))
      ->capture_default_str();
  app->add_option("--op", arguments->only, "Only the ops of these names; may be given repeatedly");
  app->add_option("--threads", arguments->threads, "CPU threads, 0: all cores")
      ->check(whole_from(0))
      ->capture_default_str();
  app->add_option("--device", arguments->device, "Where")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  app->add_option("--precision", arguments->precision, "Of operands")
      ->check(CLI::IsMember({"float64", "float32", "bfloat16"}))
      ->capture_default_str();
  app->add_flag("--cpu-time", arguments->cpu_time,
                "CPU time, which other processes change less; needs --threads 1");
  app->add_flag("--json", arguments->json, "JSON for programs");
  app->callback([arguments] {
    if (!arguments->json) print_head();
    const BenchJson report = bench_ops(*arguments);
    if (arguments->json) print_report(report, true);
  });
}

}  // namespace cplm
