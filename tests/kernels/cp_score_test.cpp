// The Copy-Paste score kernels on tiles of raw products: M, Lam and d(q.k) against double precision
// for every limit on the keys, every alignment and extreme scores; bit-equal under all schedules.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/kernels/cp_score_tile.h"

namespace cplm::test {
namespace {

struct TileName {
  template <class Info>
  std::string operator()(const Info& info) const {
    return info.param.name;
  }
};

class CpScoreTest : public ::testing::TestWithParam<TileCase> {};

TEST_P(CpScoreTest, StatisticsMatchTheReference) {
  const Tile tile = make_tile(GetParam());
  const auto [context, match] = run_forward(tile);
  const Statistics expected = expected_statistics(tile);
  expect_rows(context, expected.context);
  expect_rows(match, expected.match);
}

TEST_P(CpScoreTest, GradientsMatchTheReference) {
  const Tile tile = make_tile(GetParam());
  const Statistics lse = expected_statistics(tile);
  const Cotangents g = make_cotangents(tile);
  const std::vector<double> expected = expected_gradient(tile, lse, g);
  EXPECT_TRUE(
      close(tile_elements(tile, run_backward<float>(tile, lse, g)), expected, kSingleBound));
  EXPECT_TRUE(close(tile_elements(tile, run_backward<Bf16>(tile, lse, g)), expected, kBf16Bound));
}

std::vector<TileCase> tile_cases() {
  TileCase one{.name = "OnePosition", .positions = 1, .num_rows = 1, .num_keys = 1};
  TileCase not_itself = one;
  not_itself.name = "OnePositionNotItself";
  not_itself.include_current = false;
  return {one,
          not_itself,
          {.name = "Whole", .positions = 33, .num_rows = 33, .num_keys = 33},
          {.name = "NotItself",
           .positions = 31,
           .num_rows = 31,
           .num_keys = 31,
           .include_current = false},
          {.name = "LastRowsOfMany",
           .positions = 1200,
           .first_row = 1196,
           .num_rows = 4,
           .num_keys = 1200,
           .spread = 6},
          {.name = "Documents",
           .positions = 640,
           .first_row = 600,
           .num_rows = 7,
           .num_keys = 607,
           .document_length = 150},
          {.name = "ShortDocumentsNotItself",
           .positions = 64,
           .first_row = 44,
           .num_rows = 20,
           .num_keys = 64,
           .include_current = false,
           .document_length = 3},
          {.name = "MisalignedRows",
           .positions = 1031,
           .first_row = 1025,
           .num_rows = 5,
           .num_keys = 1030,
           .padding = 3,
           .misalignment = 1},
          {.name = "OneTokenEverywhere",
           .positions = 130,
           .first_row = 120,
           .num_rows = 10,
           .num_keys = 130,
           .vocab = 1}};
}

INSTANTIATE_TEST_SUITE_P(Tiles, CpScoreTest, ::testing::ValuesIn(tile_cases()), TileName{});

// A first key inside a group, in rows that take every thread more than one group.
TEST(CpScoreTileTest, DocumentsMayStartInsideAGroup) {
  Tile tile = make_tile({.positions = 1200, .first_row = 1190, .num_rows = 4, .num_keys = 1200});
  tile.starts.assign(tile.ids.size(), 5);
  const Statistics expected = expected_statistics(tile);
  const auto [context, match] = run_forward(tile);
  expect_rows(context, expected.context);
  expect_rows(match, expected.match);
  const Cotangents g = make_cotangents(tile);
  EXPECT_TRUE(close(tile_elements(tile, run_backward<Bf16>(tile, expected, g)),
                    expected_gradient(tile, expected, g), kBf16Bound));
}

// Keys before first_key are not in the tile: documents must start behind it.
TEST(CpScoreTileTest, SkipsKeysBeforeTheTile) {
  TileCase c{.positions = 96, .first_row = 64, .num_rows = 32, .first_key = 40, .num_keys = 56};
  Tile tile = make_tile(c);
  tile.starts.assign(tile.ids.size(), 41);
  const auto [context, match] = run_forward(tile);
  const Statistics expected = expected_statistics(tile);
  expect_rows(context, expected.context);
  expect_rows(match, expected.match);
}

// Rows 50 .. 59 may see keys 0 .. 59, of which the tile holds 20 .. 54.
TEST(CpScoreTileTest, LooksAtTheTilesKeysAlone) {
  const Tile tile = make_tile(
      {.positions = 60, .first_row = 50, .num_rows = 10, .first_key = 20, .num_keys = 35});
  const auto [context, match] = run_forward(tile);
  const Statistics expected = expected_statistics(tile);
  expect_rows(context, expected.context);
  expect_rows(match, expected.match);
}

TEST(CpScoreTileTest, IgnoredTargetsMatchNoIdEvenANegativeOne) {
  Tile tile = make_tile({.positions = 20, .num_rows = 20, .num_keys = 20});
  for (int32_t& id : tile.ids) id = -1;
  for (int32_t& target : tile.targets) target = -1;
  const auto [context, match] = run_forward(tile);
  for (const float x : match) EXPECT_EQ(x, kNone);
}

TEST(CpScoreTileTest, EmptySetsAreMinusInfinityWithZeroGradient) {
  const TileCase c{.positions = 40, .num_rows = 40, .num_keys = 40, .include_current = false};
  Tile tile = make_tile(c);
  tile.starts.resize(tile.ids.size());
  for (size_t i = 0; i < tile.starts.size(); ++i) tile.starts[i] = static_cast<int>(i % 40);
  const auto [context, match] = run_forward(tile);
  for (const float x : context) EXPECT_EQ(x, kNone);
  for (const float x : match) EXPECT_EQ(x, kNone);
  const Cotangents g{std::vector<float>(80, 1.0f), std::vector<float>(80, -1.0f)};
  for (const float d : run_backward<float>(tile, expected_statistics(tile), g)) EXPECT_EQ(d, 0.0f);
}

// As if the key were not there, also where it alone matches or is all there is.
TEST(CpScoreTileTest, ScoresOfMinusInfinityWeighNothing) {
  Tile tile = make_tile({.sequences = 1, .positions = 9, .num_rows = 9, .num_keys = 9, .vocab = 9});
  for (int j = 0; j < 9; ++j) tile.ids[static_cast<size_t>(j)] = j;
  tile.targets = {0, 0, 1, 1, 1, 1, 1, 1, 1};
  for (int row = 0; row < 9; ++row) tile.products[tile.at(0, row, 1)] = static_cast<float>(kNone);
  tile.products[tile.at(0, 0, 0)] = static_cast<float>(kNone);
  const auto [context, match] = run_forward(tile);
  EXPECT_EQ(context[0], kNone);
  for (size_t row = 1; row < 9; ++row) {
    EXPECT_TRUE(std::isfinite(context[row]));
    EXPECT_EQ(match[row] == kNone, row > 1) << row;
  }
  const Statistics lse{{context.begin(), context.end()}, {match.begin(), match.end()}};
  const Cotangents g{std::vector<float>(9, 1.0f), std::vector<float>(9, -1.0f)};
  const std::vector<double> gradient = tile_elements(tile, run_backward<float>(tile, lse, g));
  EXPECT_TRUE(all_finite(gradient));
  for (size_t row = 0; row < 9; ++row) EXPECT_EQ(gradient[row * 9 + 1], 0.0) << row;
}

TEST(CpScoreTileTest, TargetsThatNoKeyHolds) {
  const TileCase c{.positions = 24, .num_rows = 24, .num_keys = 24};
  Tile tile = make_tile(c);
  for (int& target : tile.targets) target = 77;
  const auto [context, match] = run_forward(tile);
  for (const float x : match) EXPECT_EQ(x, kNone);
  const Statistics lse = expected_statistics(tile);
  const Cotangents g = make_cotangents(tile);
  EXPECT_TRUE(close(tile_elements(tile, run_backward<float>(tile, lse, g)),
                    expected_gradient(tile, lse, g), kSingleBound));
}

TEST(CpScoreTileTest, RowSumsAreTheCotangents) {
  const TileCase c{.positions = 200, .first_row = 185, .num_rows = 15, .num_keys = 200};
  const Tile tile = make_tile(c);
  const Statistics lse = expected_statistics(tile);
  const Cotangents g = make_cotangents(tile);
  const std::vector<float> d = run_backward<float>(tile, lse, g);
  for (int row = 0; row < c.num_rows; ++row) {
    double sum = 0;
    for (int j = 0; j < c.num_keys; ++j) sum += d[tile.at(1, row, j)];
    const size_t t = tile.position(1, row);
    const double match = lse.match[t] == kNone ? 0.0 : g.match[t];
    EXPECT_NEAR(sum / kScale, g.context[t] + match, kRowSumBound);
  }
}

TEST(CpScoreTileTest, InPlaceGivesTheSameBits) {
  const TileCase c{.positions = 300, .first_row = 290, .num_rows = 10, .num_keys = 300};
  const Tile tile = make_tile(c);
  const Statistics lse = expected_statistics(tile);
  const Cotangents g = make_cotangents(tile);
  DeviceTile device(tile);
  const DeviceBuffer<float> context(single(lse.context)), match(single(lse.match));
  const DeviceBuffer<float> grad_context(g.context), grad_match(g.match);
  kernels::cp_score_rows_backward<float>(
      {device.args(), context.data(), match.data(), grad_context.data(), grad_match.data(),
       device.products.data(), tile.sequence_stride(), tile.row_stride()},
      nullptr);
  EXPECT_EQ(device.products.values(), run_backward<float>(tile, lse, g));
}

TEST(CpScoreTileTest, HugeScores) {
  for (const double spread : {1e4, 1e30}) {
    const TileCase c{
        .positions = 150, .first_row = 140, .num_rows = 10, .num_keys = 150, .spread = spread};
    const Tile tile = make_tile(c);
    const auto [context, match] = run_forward(tile);
    const Statistics expected = expected_statistics(tile);
    expect_rows(context, expected.context, 2e-7);
    expect_rows(match, expected.match, 2e-7);
    const Statistics lse{{context.begin(), context.end()}, {match.begin(), match.end()}};
    EXPECT_TRUE(
        all_finite(tile_elements(tile, run_backward<float>(tile, lse, make_cotangents(tile)))));
  }
}

TEST(CpScoreTileTest, NanReachesStatisticsAndGradientsWhereAllowed) {
  const TileCase c{
      .sequences = 1, .positions = 140, .first_row = 130, .num_rows = 9, .num_keys = 140};
  Tile tile = make_tile(c);
  tile.targets.assign(tile.targets.size(), 1);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (int row = 0; row < c.num_rows; ++row) tile.products[tile.at(0, row, 135)] = nan;
  const auto [context, match] = run_forward(tile);
  const Statistics lse{{context.begin(), context.end()}, {match.begin(), match.end()}};
  const std::vector<float> d = run_backward<float>(tile, lse, make_cotangents(tile));
  for (int row = 0; row < c.num_rows; ++row) {
    const bool sees = c.first_row + row >= 135;
    EXPECT_EQ(std::isnan(context[tile.position(0, row)]), sees) << row;
    EXPECT_EQ(std::isnan(d[tile.at(0, row, 3)]), sees) << row;
    EXPECT_EQ(d[tile.at(0, row, 139)], 0.0f) << row;
  }
}

// Rows without weight have both cotangents zero; their scores, even NaN, reach nothing.
TEST(CpScoreTileTest, RowsThatDoNotCountWriteZeros) {
  const TileCase c{.positions = 40, .first_row = 30, .num_rows = 10, .num_keys = 40};
  Tile tile = make_tile(c);
  for (float& x : tile.products) x = std::numeric_limits<float>::quiet_NaN();
  const std::vector<double> nan(80, std::numeric_limits<double>::quiet_NaN());
  const Cotangents g{std::vector<float>(80, 0.0f), std::vector<float>(80, 0.0f)};
  for (const float d : run_backward<float>(tile, {nan, nan}, g)) EXPECT_EQ(d, 0.0f);
}

// One block, every warp at work: small enough for threads under ThreadSanitizer.
TEST(RaceCheck, OneRow) {
  const TileCase c{
      .sequences = 1, .positions = 1100, .first_row = 1098, .num_rows = 1, .num_keys = 1100};
  const Tile tile = make_tile(c);
  const auto [context, match] = run_forward(tile);
  const Statistics lse = expected_statistics(tile);
  expect_rows(context, lse.context);
  expect_rows(match, lse.match);
  const Cotangents g = make_cotangents(tile);
  EXPECT_TRUE(close(tile_elements(tile, run_backward<Bf16>(tile, lse, g)),
                    expected_gradient(tile, lse, g), kBf16Bound));
}

TEST(CpScoreTileTest, EmptyTileLaunchesNothing) {
  kernels::CpScoreTile none{};
  EXPECT_NO_THROW(kernels::cp_score_rows({none, nullptr, nullptr}, nullptr));
  none.num_sequences = 1;
  none.num_rows = 3;
  EXPECT_NO_THROW(kernels::cp_score_rows_backward<float>(
      {none, nullptr, nullptr, nullptr, nullptr, nullptr, 0, 0}, nullptr));
}

TEST(CpScoreTileTest, MoreRowsThanAGridHasBlocksAreRefused) {
  kernels::CpScoreTile tile{};
  tile.num_sequences = 1 << 20;
  tile.num_rows = 1 << 20;
  EXPECT_THROW(kernels::cp_score_rows({tile, nullptr, nullptr}, nullptr), std::invalid_argument);
}

}  // namespace
}  // namespace cplm::test
