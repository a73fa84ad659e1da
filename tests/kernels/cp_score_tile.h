// Tiles of raw copy scores for tests: data, what the kernels must make of them in double precision,
// and runs of the kernels under every schedule of the emulator.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "emulator/buffers.h"
#include "emulator/schedules.h"
#include "kernels/cp_score.h"
#include "support/compare.h"
#include "support/random.h"
#include "tests/kernels/bf16_values.h"
#include "tests/kernels/bounds.h"

namespace cplm::test {

using emulator::DeviceBuffer;
using kernels::Bf16;
inline constexpr double kNone = -std::numeric_limits<double>::infinity();

struct TileCase {
  std::string name = {};
  int sequences = 2, positions = 0;   // T
  int first_row = 0, num_rows = 0;    // of the tile
  int first_key = 0, num_keys = 0;    //
  bool include_current = true;        //
  double document_length = 0;         // mean; 0: no document starts
  int vocab = 5;                      // ids below this; 1: all equal
  double spread = 1;                  // of the scores
  int padding = 0, misalignment = 0;  // of rows, in elements
};

// A tile's data and where its rows lie.
struct Tile {
  TileCase c;
  std::vector<int32_t> ids, targets, starts;
  std::vector<float> products;
  int row_stride() const { return c.num_keys + c.padding; }
  int64_t sequence_stride() const { return int64_t{row_stride()} * c.num_rows + c.padding; }
  size_t at(int s, int row, int column) const {
    return static_cast<size_t>(s * sequence_stride() + int64_t{row} * row_stride() + column);
  }
  size_t position(int s, int row) const {
    return static_cast<size_t>(s * c.positions + c.first_row + row);
  }
  bool allowed(int s, int row, int column) const {
    const int t = c.first_row + row, key = c.first_key + column;
    const int start = starts.empty() ? 0 : starts[position(s, row)];
    return key >= start && key <= (c.include_current ? t : t - 1);
  }
  bool matches(int s, int row, int column) const {
    const auto key = static_cast<size_t>(s * c.positions + c.first_key + column);
    return targets[position(s, row)] >= 0 && ids[key] == targets[position(s, row)];
  }
};

inline constexpr float kScale = 0.125f;

inline Tile make_tile(const TileCase& c, uint64_t seed = 1) {
  Random random(seed);
  Tile tile{c, {}, {}, {}, {}};
  const auto count = static_cast<size_t>(c.sequences * c.positions);
  tile.ids = random.ids(count, c.vocab);
  tile.targets = random.targets(count, c.vocab, 0.2);
  for (int s = 0; s < c.sequences && c.document_length > 0; ++s) {
    const auto starts = random.document_starts(static_cast<size_t>(c.positions), c.document_length);
    tile.starts.insert(tile.starts.end(), starts.begin(), starts.end());
  }
  tile.products.resize(static_cast<size_t>(c.sequences * tile.sequence_stride()));
  // Gaps between rows must not be used.
  for (float& x : tile.products) x = std::numeric_limits<float>::quiet_NaN();
  for (int s = 0; s < c.sequences; ++s) {
    for (int row = 0; row < c.num_rows; ++row) {
      for (int j = 0; j < c.num_keys; ++j) {
        tile.products[tile.at(s, row, j)] = static_cast<float>(c.spread * random.normal()) / kScale;
      }
    }
  }
  return tile;
}

// Tile on the "device".
struct DeviceTile {
  explicit DeviceTile(const Tile& t)
      : tile(t),
        products(t.products, static_cast<size_t>(t.c.misalignment)),
        ids(t.ids, static_cast<size_t>(t.c.misalignment)),
        targets(t.targets),
        starts(t.starts) {}
  kernels::CpScoreTile args() const {
    const TileCase& c = tile.c;
    return {.products = products.data(),
            .ids = ids.data(),
            .targets = targets.data(),
            .document_start = tile.starts.empty() ? nullptr : starts.data(),
            .sequence_stride = tile.sequence_stride(),
            .row_stride = tile.row_stride(),
            .num_sequences = c.sequences,
            .num_rows = c.num_rows,
            .first_row = c.first_row,
            .num_keys = c.num_keys,
            .first_key = c.first_key,
            .num_positions = c.positions,
            .scale = kScale,
            .include_current = c.include_current};
  }
  const Tile& tile;
  DeviceBuffer<float> products;
  DeviceBuffer<int32_t> ids, targets, starts;
};

inline double log_sum_exp(const std::vector<double>& x) {
  double high = kNone, sum = 0;
  for (const double value : x) high = std::fmax(high, value);
  for (const double value : x) sum += std::exp(value - high);
  return x.empty() ? kNone : high + std::log(sum);
}

struct Statistics {
  std::vector<double> context, match;  // [sequences, T], NaN outside the tile's rows
};

inline Statistics expected_statistics(const Tile& tile) {
  const auto count = static_cast<size_t>(tile.c.sequences * tile.c.positions);
  const std::vector<double> unset(count, std::numeric_limits<double>::quiet_NaN());
  Statistics out{unset, unset};
  for (int s = 0; s < tile.c.sequences; ++s) {
    for (int row = 0; row < tile.c.num_rows; ++row) {
      std::vector<double> all, matching;
      for (int j = 0; j < tile.c.num_keys; ++j) {
        if (!tile.allowed(s, row, j)) continue;
        const double a = double{kScale} * tile.products[tile.at(s, row, j)];
        all.push_back(a);
        if (tile.matches(s, row, j)) matching.push_back(a);
      }
      out.context[tile.position(s, row)] = log_sum_exp(all);
      out.match[tile.position(s, row)] = log_sum_exp(matching);
    }
  }
  return out;
}

// M and Lam as the kernel writes them, the same under every schedule.
inline std::tuple<std::vector<float>, std::vector<float>> run_forward(const Tile& tile) {
  const DeviceTile device(tile);
  return emulator::run_under_every_schedule(
      [&] {
        const size_t count = tile.ids.size();
        DeviceBuffer<float> context(count), match(count);
        kernels::cp_score_rows({device.args(), context.data(), match.data()}, nullptr);
        return std::tuple(context.values(), match.values());
      },
      1);
}

// At the tile's rows equal within the bound, elsewhere untouched.
inline void expect_rows(const std::vector<float>& actual, const std::vector<double>& expected,
                        double bound = kScoreBound) {
  for (size_t i = 0; i < actual.size(); ++i) {
    if (std::isnan(expected[i])) {
      EXPECT_TRUE(std::isnan(actual[i])) << "row " << i << " is not the tile's";
    } else {
      EXPECT_LE(distance(actual[i], expected[i]), bound * std::fmax(1, std::fabs(expected[i])))
          << "row " << i << ": " << actual[i] << ", expected " << expected[i];
    }
  }
}

struct Cotangents {
  std::vector<float> context, match;
};

// Of the size that the mixture gives; some rows do not count.
inline Cotangents make_cotangents(const Tile& tile) {
  Random random(9);
  Cotangents g;
  for (size_t i = 0; i < tile.ids.size(); ++i) {
    const bool counted = tile.targets[i] >= 0;
    g.context.push_back(counted ? static_cast<float>(random.uniform()) : 0.0f);
    g.match.push_back(counted ? static_cast<float>(-random.uniform()) : 0.0f);
  }
  return g;
}

inline std::vector<float> single(const std::vector<double>& x) { return {x.begin(), x.end()}; }

inline std::vector<double> expected_gradient(const Tile& tile, const Statistics& lse,
                                             const Cotangents& g) {
  std::vector<double> out;
  for (int s = 0; s < tile.c.sequences; ++s) {
    for (int row = 0; row < tile.c.num_rows; ++row) {
      for (int j = 0; j < tile.c.num_keys; ++j) {
        const size_t t = tile.position(s, row);
        const double a = double{kScale} * tile.products[tile.at(s, row, j)];
        double d = 0;
        if (tile.allowed(s, row, j) && tile.targets[t] >= 0) {
          d = g.context[t] * std::exp(a - lse.context[t]);
          if (tile.matches(s, row, j)) d += g.match[t] * std::exp(a - lse.match[t]);
        }
        out.push_back(kScale * d);
      }
    }
  }
  return out;
}

// The tile's elements of a strided buffer.
template <class T>
std::vector<double> tile_elements(const Tile& tile, const std::vector<T>& x) {
  std::vector<double> out;
  for (int s = 0; s < tile.c.sequences; ++s) {
    for (int row = 0; row < tile.c.num_rows; ++row) {
      for (int j = 0; j < tile.c.num_keys; ++j) out.push_back(wide(x[tile.at(s, row, j)]));
    }
  }
  return out;
}

// The M and Lam that a forward pass rounds to float.
template <class T>
std::vector<T> run_backward(const Tile& tile, const Statistics& lse, const Cotangents& g) {
  const DeviceTile device(tile);
  const DeviceBuffer<float> context(single(lse.context)), match(single(lse.match));
  const DeviceBuffer<float> grad_context(g.context), grad_match(g.match);
  return emulator::run_under_every_schedule(
      [&] {
        DeviceBuffer<T> out(tile.products.size(), static_cast<size_t>(tile.c.misalignment));
        kernels::cp_score_rows_backward<T>({.tile = device.args(),
                                            .context_lse = context.data(),
                                            .match_lse = match.data(),
                                            .grad_context_lse = grad_context.data(),
                                            .grad_match_lse = grad_match.data(),
                                            .grad_products = out.data(),
                                            .grad_sequence_stride = tile.sequence_stride(),
                                            .grad_row_stride = tile.row_stride()},
                                           nullptr);
        return out.values();
      },
      1);
}

}  // namespace cplm::test
