// One step of decoding, all its kernels in a row: logits statistics, copy scores, scatter-sum,
// mixed distribution and a draw, against the paper's definition over the whole vocabulary and
// context.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "emulator/buffers.h"
#include "emulator/schedules.h"
#include "kernels/cp_decode.h"
#include "kernels/head_rows.h"
#include "kernels/mix_distribution.h"
#include "kernels/sample.h"
#include "kernels/scatter_sum.h"
#include "support/compare.h"
#include "support/random.h"
#include "tests/kernels/bounds.h"

namespace cplm::test {
namespace {

using emulator::DeviceBuffer;
using kernels::DistributionMode;
constexpr int kVocab = 30, kKeys = 75, kWidth = 20, kBatch = 2;
constexpr float kScale = 0.25f;

struct Step {
  std::vector<float> query, keys, logits, copy_logit, sink_score;
  std::vector<int32_t> ids, length;
};

Step make_step() {
  Random random(21);
  Step step;
  const auto normals = [&](size_t count, double std) {
    const std::vector<double> x = random.normals(count, std);
    return std::vector<float>(x.begin(), x.end());
  };
  step.query = normals(kBatch * kWidth, 1);
  step.keys = normals(kBatch * kKeys * kWidth, 1);
  step.logits = normals(kBatch * kVocab, 2);
  step.copy_logit = {3, 5};
  step.sink_score = {1, 3};
  step.ids = random.ids(kBatch * kKeys, kVocab);
  step.length = {kKeys, 41};
  return step;
}

// exp(a_j) of the context, SPEC.md section 2.
std::vector<double> attention(const Step& step, int b) {
  std::vector<double> out;
  for (int j = 0; j < step.length[static_cast<size_t>(b)]; ++j) {
    double dot = 0;
    for (int d = 0; d < kWidth; ++d) {
      dot += double{step.query[static_cast<size_t>(b * kWidth + d)]} *
             step.keys[static_cast<size_t>((b * kKeys + j) * kWidth + d)];
    }
    out.push_back(std::exp(kScale * dot));
  }
  return out;
}

// P(v) = z_v + c sum of alpha_i at x_i = v + c s p_LM(v); no_copy: p_LM; force_copy: p_CP.
std::vector<double> expected(const Step& step, int b, DistributionMode mode) {
  const auto row = static_cast<size_t>(b);
  const std::vector<double> weight = attention(step, b);
  const double sink = std::exp(double{step.sink_score[row]});
  double context = 0, real = 0;
  std::vector<double> copied(kVocab, 0.0), lm;
  for (size_t j = 0; j < weight.size(); ++j) {
    context += weight[j];
    copied[static_cast<size_t>(step.ids[row * kKeys + j])] += weight[j];
  }
  for (size_t v = 0; v < kVocab; ++v) real += std::exp(double{step.logits[row * kVocab + v]});
  const double gate = std::exp(double{step.copy_logit[row]});
  const double c = gate / (real + gate), s = sink / (context + sink);
  std::vector<double> p;
  for (size_t v = 0; v < kVocab; ++v) {
    const double p_lm = std::exp(double{step.logits[row * kVocab + v]}) / real;
    const double p_cp = copied[v] / context;
    const double natural = (1 - c) * p_lm + c * (1 - s) * p_cp + c * s * p_lm;
    p.push_back(mode == DistributionMode::kNatural  ? natural
                : mode == DistributionMode::kNoCopy ? p_lm
                                                    : p_cp);
  }
  return p;
}

struct Outcome {
  std::vector<float> log_prob;  // [B, V]
  std::vector<int32_t> greedy, drawn;
};

Outcome run_step(const Step& step, DistributionMode mode) {
  const DeviceBuffer<float> query(step.query), keys(step.keys), logits(step.logits);
  const DeviceBuffer<float> copy_logit(step.copy_logit), sink_score(step.sink_score);
  const DeviceBuffer<int32_t> ids(step.ids), length(step.length), targets(std::vector{-1, -1});
  DeviceBuffer<float> scores(kBatch * kKeys), context(kBatch), u(kBatch), out(kBatch * kVocab);
  DeviceBuffer<float> workspace(static_cast<size_t>(2 * kBatch * kernels::cp_decode_splits(kKeys)));
  DeviceBuffer<uint64_t> mass(kBatch * kVocab), total_mass(kBatch);
  std::fill(mass.begin(), mass.end(), 0);
  std::fill(total_mass.begin(), total_mass.end(), 0);
  kernels::head_statistics(
      {logits.data(), targets.data(), u.data(), nullptr, kBatch, kVocab, kVocab}, nullptr);
  kernels::cp_decode<float>({.query = query.data(),
                             .keys = keys.data(),
                             .key_end = length.data(),
                             .key_begin = nullptr,
                             .scores = scores.data(),
                             .context_lse = context.data(),
                             .workspace = workspace.data(),
                             .query_stride = kWidth,
                             .keys_sequence_stride = kKeys * kWidth,
                             .keys_row_stride = kWidth,
                             .scores_stride = kKeys,
                             .batch = kBatch,
                             .max_keys = kKeys,
                             .width = kWidth,
                             .scale = kScale},
                            nullptr);
  kernels::scatter_sum({scores.data(), ids.data(), context.data(), nullptr, length.data(),
                        mass.data(), total_mass.data(), kBatch, kKeys, kKeys, kVocab, kKeys, 1.0f},
                       nullptr);
  kernels::mix_distribution(
      {logits.data(), u.data(), copy_logit.data(), context.data(), sink_score.data(), mass.data(),
       total_mass.data(), out.data(), kBatch, kVocab, kVocab, kVocab, kVocab, mode, true},
      nullptr);
  for (const uint64_t units : mass) EXPECT_EQ(units, 0u) << "not clean for the next token";
  const DeviceBuffer<uint64_t> counter(std::vector<uint64_t>{3, 4});
  DeviceBuffer<int32_t> greedy(kBatch), drawn(kBatch);
  DeviceBuffer<kernels::TokenScore> parts(kBatch);
  kernels::Sample args{
      out.data(), counter.data(), greedy.data(), parts.data(), kBatch, kVocab, kVocab, 17, 1.0f};
  kernels::sample_greedy(args, nullptr);
  args.token = drawn.data();
  kernels::sample_temperature(args, nullptr);
  return {out.values(), greedy.values(), drawn.values()};
}

TEST(DecodeStepTest, EveryModeIsThePapersDistribution) {
  const Step step = make_step();
  for (const auto mode :
       {DistributionMode::kNatural, DistributionMode::kNoCopy, DistributionMode::kForceCopy}) {
    const Outcome outcome = run_step(step, mode);
    for (int b = 0; b < kBatch; ++b) {
      const auto row = static_cast<size_t>(b);
      const std::vector<double> p = expected(step, b, mode);
      for (size_t v = 0; v < kVocab; ++v) {
        EXPECT_LE(distance(outcome.log_prob[row * kVocab + v], std::log(p[v])), kScoreBound);
      }
      EXPECT_EQ(outcome.greedy[row], std::max_element(p.begin(), p.end()) - p.begin());
      EXPECT_GT(p[static_cast<size_t>(outcome.drawn[row])], 0) << "drew what cannot be";
    }
  }
}

// Natural sampling without the mixed distribution: <copy> or a token from the V + 1 softmax; on
// <copy> a position or the sink; on the sink a token again. Chi-square against the kernels' P.
TEST(DecodeStepTest, SamplingBySteps) {
  const Step step = make_step();
  const std::vector<float> log_prob = run_step(step, DistributionMode::kNatural).log_prob;
  const std::vector<double> weight = attention(step, 0);
  std::vector<double> token_weight, position_weight = weight;
  for (size_t v = 0; v < kVocab; ++v) token_weight.push_back(std::exp(double{step.logits[v]}));
  position_weight.push_back(std::exp(double{step.sink_score[0]}));
  std::vector<double> gated = token_weight;
  gated.push_back(std::exp(double{step.copy_logit[0]}));
  Random random(4);
  const auto draw = [&](const std::vector<double>& weights) {
    double total = 0, sum = 0;
    for (const double w : weights) total += w;
    const double goal = random.uniform() * total;
    size_t i = 0;
    while (i + 1 < weights.size() && (sum += weights[i]) < goal) ++i;
    return i;
  };
  constexpr int kDraws = 60000;
  std::array<double, kVocab> counts{};
  for (int i = 0; i < kDraws; ++i) {
    size_t token = draw(gated);
    if (token == kVocab) {
      const size_t position = draw(position_weight);
      token =
          position == weight.size() ? draw(token_weight) : static_cast<size_t>(step.ids[position]);
    }
    ++counts[token];
  }
  double chi_square = 0;
  for (size_t v = 0; v < kVocab; ++v) {
    const double mean = kDraws * std::exp(double{log_prob[v]});
    chi_square += (counts[v] - mean) * (counts[v] - mean) / mean;
  }
  EXPECT_LE(chi_square, kVocab - 1 + 5 * std::sqrt(2.0 * (kVocab - 1)));
}

}  // namespace
}  // namespace cplm::test
