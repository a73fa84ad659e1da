// See bench_ops_turns.h.
#include "cli/bench_ops_turns.h"

#include <ctime>

#include "cli/bench_products.h"

namespace cplm {

struct OpsBench::Turn {
  const BenchCase& one;
  OpRun op;
  BareProducts products;
  double extra_bytes;
  std::vector<double> fused, composed, bare;  // seconds of each round

  double tokens() const { return static_cast<double>(one.problem.batch * one.problem.positions); }
};

namespace {

double median_ratio(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> ratios;
  for (size_t i = 0; i < a.size(); ++i) ratios.push_back(a[i] / b[i]);
  return median_of(std::move(ratios));
}

}  // namespace

OpsBench::OpsBench(at::Device device, int64_t rounds, bool cpu_time)
    : device_(device),
      synchronize_(device_synchronizer(device)),
      rounds_(rounds),
      cpu_time_(cpu_time) {}

double OpsBench::seconds(const std::function<void()>& body) const {
  const auto now = [this] {
    timespec time{};
    ::clock_gettime(cpu_time_ ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  if (synchronize_) synchronize_();
  const double start = now();
  body();
  if (synchronize_) synchronize_();
  return now() - start;
}

// The first runs fill caches and choose algorithms: both paths go once before any time is taken.
OpsBench::Turn OpsBench::prepare(const BenchCase& one) const {
  OpRun op = one.op.make();
  op.run(OpsKind::kComposed);
  std::vector<ops::MatmulCall> calls;
  ops::record_matmuls(&calls);
  op.run(OpsKind::kFused);
  ops::record_matmuls(nullptr);
  const PeakMemory peak(device_);
  op.run(OpsKind::kFused);
  const auto extra_bytes = static_cast<double>(peak.bytes());
  return {one, std::move(op), BareProducts(calls, one.problem.options), extra_bytes, {}, {}, {}};
}

BenchJson OpsBench::row_of(const Turn& turn) {
  const Problem& p = turn.one.problem;
  const double time = median_of(turn.fused);
  const double flops = turn.products.flops() + turn.op.rows.flops;
  const double bytes = turn.products.bytes() + turn.op.rows.bytes;
  BenchJson row{{"op", turn.one.op.name},
                {"size", p.shape.name},
                {"vocab_size", p.shape.vocab_size},
                {"width", p.shape.width},
                {"length", p.positions},
                {"tokens", p.batch * p.positions},
                {"ms", 1000 * time},
                {"us_per_token", 1e6 * time / turn.tokens()},
                {"flops", flops},
                {"product_flops", turn.products.flops()},
                {"bytes", bytes},
                {"gflop_per_s", flops / time / 1e9},
                {"gb_per_s", bytes / time / 1e9},
                {"extra_mb", turn.extra_bytes / 1048576.0}};
  row["time_over_composed"] = median_ratio(turn.fused, turn.composed);
  row["time_over_products"] = turn.products.flops() > 0
                                  ? BenchJson(median_ratio(turn.fused, turn.bare))
                                  : BenchJson(nullptr);
  return row;
}

std::vector<BenchJson> OpsBench::measure(const std::vector<BenchCase>& cases) const {
  std::vector<Turn> turns;
  turns.reserve(cases.size());
  for (const BenchCase& one : cases) turns.push_back(prepare(one));
  for (int64_t round = 0; round < rounds_; ++round) {
    for (Turn& turn : turns) {
      turn.fused.push_back(seconds([&] { turn.op.run(OpsKind::kFused); }));
      turn.bare.push_back(seconds([&] { turn.products.run(); }));
      turn.composed.push_back(seconds([&] { turn.op.run(OpsKind::kComposed); }));
    }
  }
  const auto find = [&](const auto& is_wanted) -> const Turn* {
    for (const Turn& turn : turns) {
      if (is_wanted(turn)) return &turn;
    }
    return nullptr;
  };
  std::vector<BenchJson> rows;
  for (const Turn& turn : turns) {
    BenchJson row = row_of(turn);
    const Turn* first =
        find([&](const Turn& other) { return other.one.op.name == turn.one.op.name; });
    row["token_time_over_first_length"] =
        median_ratio(turn.fused, first->fused) * first->tokens() / turn.tokens();
    const Turn* rival = find([&](const Turn& other) {
      return other.one.op.name == turn.one.op.rival &&
             other.one.problem.positions == turn.one.problem.positions;
    });
    if (rival != nullptr) {
      row["rival"] = rival->one.op.name;
      row["time_over_rival"] = median_ratio(turn.fused, rival->fused);
      row["memory_over_rival"] = turn.extra_bytes / rival->extra_bytes;
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace cplm
