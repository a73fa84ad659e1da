// One rank for comm_ranks_test.cpp: `comm_rank collectives`; `comm_rank kill|stop|hang|fail R`,
// where rank R ends in that way while the others go on with collectives; `comm_rank lead|lead-hang
// 0 S`, where rank 0 works alone for longer than the S seconds of the time limit.
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "cplm/comm.h"

namespace cplm {
namespace {

constexpr int64_t kLength = 1000;

at::Tensor own_numbers(int64_t rank) {
  return at::arange(kLength, at::kFloat).mul(0.1).add(static_cast<double>(rank) / 3.0);
}

void expect(bool condition, const char* what) {
  if (!condition) throw Error(str("wrong: ", what));
}

void check_reductions(Communicator& ranks) {
  const int64_t size = ranks.size();
  at::Tensor sum = own_numbers(ranks.rank());
  ranks.all_reduce(sum).wait();
  at::Tensor expected = own_numbers(0).to(at::kDouble);
  for (int64_t rank = 1; rank < size; ++rank) expected.add_(own_numbers(rank));
  expect(sum.sub(expected).abs().max().item<double>() < 1e-3, "sum");
  at::Tensor least = sum.clone(), most = sum.clone();  // the same bits everywhere
  ranks.all_reduce(least, ReduceOp::kMin).wait();
  ranks.all_reduce(most, ReduceOp::kMax).wait();
  expect(at::equal(least, most), "ranks hold different bits after a sum");

  at::Tensor own = at::zeros({kLength}, at::kDouble);
  const at::Tensor whole =
      at::full({size * kLength}, static_cast<double>(ranks.rank() + 1), at::kDouble);
  ranks.reduce_scatter(own, whole).wait();
  expect(own.eq(static_cast<double>(size * (size + 1) / 2)).all().item<bool>(), "reduce_scatter");
}

void check_copies(Communicator& ranks) {
  const int64_t size = ranks.size();
  at::Tensor gathered = at::zeros({size, kLength}, at::kFloat);
  ranks.all_gather(gathered.view({-1}), own_numbers(ranks.rank())).wait();
  for (int64_t rank = 0; rank < size; ++rank) {
    expect(at::equal(gathered.select(0, rank), own_numbers(rank)), "all_gather");
  }
  at::Tensor sent = own_numbers(ranks.rank());
  ranks.broadcast(sent).wait();
  expect(at::equal(sent, own_numbers(0)), "broadcast");
  const std::string text = "rank zero's\0 text";
  expect(ranks.host_broadcast(ranks.leads() ? text : "") == text, "host_broadcast");
  expect(ranks.host_broadcast(ranks.leads() ? "" : "x").empty(), "host_broadcast of nothing");
  // Two under way at once, waited for in the other order.
  at::Tensor first = at::full({1}, 1.0, at::kDouble), second = at::full({1}, 2.0, at::kDouble);
  PendingCollective pending_first = ranks.all_reduce(first);
  PendingCollective pending_second = ranks.host_all_reduce(second);
  pending_second.wait();
  pending_first.wait();
  expect(first.item<double>() == static_cast<double>(size), "first of two");
  expect(second.item<double>() == static_cast<double>(2 * size), "second of two");
  ranks.barrier();
}

void work_until(Communicator& ranks, const std::string& mode, int64_t culprit) {
  for (int64_t step = 0; step < 100000; ++step) {
    ranks.at_step(step);
    at::Tensor sum = own_numbers(ranks.rank());
    ranks.all_reduce(sum).wait();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    if (step < 20 || ranks.rank() != culprit) continue;
    if (mode == "kill") std::raise(SIGKILL);
    if (mode == "stop") std::raise(SIGSTOP);
    if (mode == "hang") std::this_thread::sleep_for(std::chrono::hours(1));
    if (mode == "fail") throw Error("the disk is full", ExitCode::kBadData);
  }
}

// Rank 0 at work of its own, which gets on, or does not.
void lead(Communicator& ranks, bool hangs, int64_t seconds) {
  bool done = false;
  ranks.leader_works([&] {
    if (hangs) std::this_thread::sleep_for(std::chrono::hours(1));
    for (int64_t i = 0; i < 20 * seconds; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      ranks.makes_progress();
    }
    done = true;
  });
  expect(done == ranks.leads(), "who did the leader's work");
  ranks.barrier();
}

int run(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  const int64_t timeout = argc > 3 ? std::atoi(argv[3]) : 60;
  install_stop_signals();
  std::signal(SIGPIPE, SIG_IGN);  // as `cplm train`
  const Launch launch = read_launch();
  std::fprintf(stderr, "joining\n");
  Communicator ranks(launch, at::kCPU, std::chrono::seconds(timeout));
  try {
    if (mode == "collectives") {
      check_reductions(ranks);
      check_copies(ranks);
    } else if (mode.starts_with("lead")) {
      lead(ranks, mode == "lead-hang", timeout);
    } else {
      work_until(ranks, mode, std::atoi(argv[2]));
    }
  } catch (const Error& error) {
    ranks.announce_failure(error.what(), error.code());
    throw;
  }
  return 0;
}

}  // namespace
}  // namespace cplm

int main(int argc, char** argv) {
  try {
    return cplm::run(argc, argv);
  } catch (const cplm::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    std::_Exit(static_cast<int>(error.code()));
  }
}
