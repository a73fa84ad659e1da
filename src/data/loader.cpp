// Streams a rank's rows of the global batches from one reader thread.
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "cplm/base.h"
#include "cplm/data.h"

namespace cplm {
namespace {

void check_options(const LoaderOptions& options) {
  CPLM_CHECK(options.global_rows > 0, "[data.loader] expected global_rows > 0, got ",
             options.global_rows);
  CPLM_CHECK(0 <= options.first_row && options.first_row <= options.last_row &&
                 options.last_row <= options.global_rows,
             "[data.loader] expected 0 <= first_row <= last_row <= global_rows = ",
             options.global_rows, ", got rows ", options.first_row, " to ", options.last_row);
  CPLM_CHECK(options.first_step >= 0 && options.first_step < INT64_MAX / options.global_rows / 2,
             "[data.loader] first_step ", options.first_step, " is out of range");
  CPLM_CHECK(options.prefetch > 0, "[data.loader] expected prefetch > 0, got ", options.prefetch);
}

}  // namespace

struct BatchLoader::Impl {
  Impl(const WindowSet& window_set, const LoaderOptions& loader_options)
      : windows(window_set),
        options(loader_options),
        order(loader_options.seed, window_set.sources()) {
    check_options(options);
    thread = std::jthread([this](const std::stop_token& stop) { read_ahead(stop); });
  }

  // Checked before every row, so that destruction never waits for a whole batch.
  std::optional<TokenBatch> read_step(int64_t step, const std::stop_token& stop) const {
    const int64_t num_rows = options.last_row - options.first_row;
    TokenBatch batch = TokenBatch::sized(num_rows, windows.sequence_length());
    for (int64_t row = 0; row < num_rows; ++row) {
      if (stop.stop_requested()) return std::nullopt;
      const int64_t sequence = step * options.global_rows + options.first_row + row;
      windows.read_row(order.window_of(sequence), batch, row);
    }
    return batch;
  }

  void read_ahead(const std::stop_token& stop) {
    try {
      for (int64_t step = options.first_step; !stop.stop_requested(); ++step) {
        std::optional<TokenBatch> batch = read_step(step, stop);
        if (!batch) return;
        std::unique_lock lock(mutex);
        const auto has_room = [this] {
          return static_cast<int64_t>(queue.size()) < options.prefetch;
        };
        if (!changed.wait(lock, stop, has_room)) return;
        queue.push_back(std::move(*batch));
        changed.notify_all();
      }
    } catch (...) {
      const std::lock_guard lock(mutex);
      failure = std::current_exception();
      changed.notify_all();
    }
  }

  TokenBatch next() {
    const auto begin = std::chrono::steady_clock::now();
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return !queue.empty() || failure; });
    wait_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (queue.empty()) std::rethrow_exception(failure);
    TokenBatch batch = std::move(queue.front());
    queue.pop_front();
    changed.notify_all();
    return batch;
  }

  const WindowSet& windows;
  const LoaderOptions options;
  const TrainingOrder order;
  std::mutex mutex;
  std::condition_variable_any changed;
  std::deque<TokenBatch> queue;  // guarded by mutex
  std::exception_ptr failure;    // guarded by mutex
  double wait_seconds = 0;       // of the caller's thread only
  std::jthread thread;           // last: stopped and joined before the rest goes
};

BatchLoader::BatchLoader(const WindowSet& windows, const LoaderOptions& options)
    : impl_(std::make_unique<Impl>(windows, options)) {}
BatchLoader::~BatchLoader() = default;

TokenBatch BatchLoader::next() { return impl_->next(); }

double BatchLoader::take_wait_seconds() { return std::exchange(impl_->wait_seconds, 0.0); }

}  // namespace cplm
