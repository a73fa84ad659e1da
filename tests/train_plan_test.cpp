// The plan of a run on many GPUs: memory, traffic and time against figures worked out by hand, and
// the laws they keep.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "cplm/model.h"
#include "cplm/plan.h"
#include "support/config_text.h"

namespace cplm::test {
namespace {

using testing::HasSubstr;

// Shapes that are planned, not trained: SmolLM2-1.7B, SmolLM3-3B, Llama-2-7B.
struct Shape {
  const char* model;
  int64_t parameters;  // of the vanilla model, as its authors publish it
};
constexpr Shape k1700M{
    "{vocab_size: 49152, hidden_size: 2048, num_hidden_layers: 24, num_attention_heads: 32, "
    "num_key_value_heads: 32, intermediate_size: 8192, head: vanilla}",
    1'711'376'384};
constexpr Shape k3B{
    "{vocab_size: 128256, hidden_size: 2048, num_hidden_layers: 36, num_attention_heads: 16, "
    "num_key_value_heads: 4, intermediate_size: 11008, head: vanilla}",
    3'075'098'624};
constexpr Shape k7B{
    "{vocab_size: 32000, hidden_size: 4096, num_hidden_layers: 32, num_attention_heads: 32, "
    "num_key_value_heads: 32, intermediate_size: 11008, tie_word_embeddings: false, head: vanilla}",
    6'738'415'616};

Config config_of(const Shape& shape, const std::vector<std::string>& overrides = {}) {
  return parse_config(str("model: ", shape.model, R"(
data: {train: ["data/*.h5"], sequence_length: 4096}
train: {steps: 1000, batch_tokens: 2097152, micro_batch: 1, device: cuda, precision: bfloat16}
)"),
                      "shape.yaml", overrides);
}

int64_t part(const MemoryPlan& plan, const std::string& name) {
  for (const auto& [part, bytes] : plan.parts) {
    if (part == name) return bytes;
  }
  return 0;
}

TEST(MemoryPlan, ShapesThatAreOnlyPlannedHaveTheirParameters) {
  for (const Shape& shape : {k1700M, k3B, k7B}) {
    const Config config = config_of(shape);
    EXPECT_EQ(count_parameters(config.model).total, shape.parameters);
    EXPECT_EQ(part(plan_memory(config), "weights"), 2 * shape.parameters);
  }
}

TEST(MemoryPlan, ShardingDividesMastersAndMomentsOnly) {
  const MemoryPlan whole = plan_memory(config_of(k7B), 8);
  const MemoryPlan shard = plan_memory(config_of(k7B, {"optimizer.shard=true"}), 8);
  for (const char* name : {"weights", "gradients", "kept activations", "head work space"}) {
    EXPECT_EQ(part(shard, name), part(whole, name)) << name;
  }
  EXPECT_EQ(part(whole, "master weights"), 4 * k7B.parameters);
  EXPECT_EQ(part(shard, "master weights"), 4 * (k7B.parameters / 8));
  EXPECT_EQ(part(whole, "optimizer state"), 8 * k7B.parameters);
  EXPECT_EQ(part(shard, "optimizer state"), 8 * (k7B.parameters / 8));
  EXPECT_EQ(part(shard, "gradients"), 4 * k7B.parameters);
}

TEST(MemoryPlan, APartIsThereOnlyWhenItsSettingIs) {
  EXPECT_EQ(part(plan_memory(config_of(k3B)), "NCCL (assumed)"), 0);
  EXPECT_GT(part(plan_memory(config_of(k3B), 2), "NCCL (assumed)"), 0);
  EXPECT_EQ(part(plan_memory(config_of(k3B), 2), "rounded gradients"), 0);
  const Config rounded = config_of(k3B, {"distributed.reduction=bfloat16"});
  EXPECT_EQ(part(plan_memory(rounded, 2), "rounded gradients"), 2 * k3B.parameters);
  EXPECT_EQ(part(plan_memory(rounded, 1), "rounded gradients"), 0);
  EXPECT_EQ(plan_memory(config_of(k3B)).host_copy, 0);
  const Config async = config_of(k3B, {"checkpoint.async=true"});
  EXPECT_EQ(plan_memory(async).host_copy, 12 * k3B.parameters);
}

TEST(MemoryPlan, PartsAddUpToTheTotal) {
  const Config config = config_of(k3B, {"optimizer.shard=true", "distributed.reduction=bfloat16"});
  const MemoryPlan plan = plan_memory(config, 64);
  int64_t sum = 0;
  for (const auto& [name, bytes] : plan.parts) sum += bytes;
  EXPECT_EQ(plan.total, sum);
}

// A layer keeps 2 D + (heads + 2 groups) d + heads d + 2 F numbers a position; recomputed, D.
TEST(MemoryPlan, RecomputedLayersKeepTheirInputButForTheLastOne) {
  constexpr int64_t kAll = 2 * 2048 + 3 * 2048 + 2048 + 2 * 8192, kInput = 2048;
  const auto kept = [](const char* setting) {
    return part(plan_memory(config_of(k1700M, {str("train.activation_checkpointing=", setting)})),
                "kept activations");
  };
  EXPECT_EQ(kept("none"), 4096 * 2 * 24 * kAll);
  EXPECT_EQ(kept("full"), 4096 * 2 * (23 * kInput + kAll));
  EXPECT_EQ(kept("2"), 4096 * 2 * (11 * kInput + 13 * kAll));  // 2, 4 .. 22; 24 is the last
  EXPECT_EQ(kept("5"), 4096 * 2 * (4 * kInput + 20 * kAll));   // 5, 10, 15, 20
  EXPECT_EQ(kept("24"), kept("none"));
  EXPECT_EQ(kept("100"), kept("none"));
}

TEST(MemoryPlan, MoreRanksThanMicroBatchesHoldNoMoreThanTheirShare) {
  const Config config = config_of(k1700M, {"train.micro_batch=8"});
  const int64_t all = part(plan_memory(config, 1), "kept activations");  // 512 sequences
  EXPECT_EQ(part(plan_memory(config, 64), "kept activations"), all);
  EXPECT_EQ(part(plan_memory(config, 256), "kept activations"), all / 4);
  EXPECT_EQ(part(plan_memory(config, 1000), "kept activations"), all / 8);
}

// The shipped configs as they stand, on one GPU to a node of eight. 40 GB are 37.3 of check's GiB.
TEST(MemoryPlan, ShardingAndCheckpointingTogetherFit1700MOnGpusOf40Gigabytes) {
  const double capacity = gpu_model("a100-40gb").memory_gb * 1e9;
  ASSERT_EQ(capacity, 40e9);
  const std::string shard = "optimizer.shard=true", full = "train.activation_checkpointing=full";
  for (const std::string backbone : {"full", "sliding", "hybrid"}) {
    for (const std::string head : {"vanilla", "cplm"}) {
      const auto total = [&](int64_t ranks, std::vector<std::string> overrides) {
        overrides.push_back("train.device=cuda");
        const std::string file =
            str(CPLM_SOURCE_DIR, "/configs/1.7b-", backbone, "-", head, ".yaml");
        return static_cast<double>(plan_memory(load_config(file, overrides), ranks).total);
      };
      for (const int64_t ranks : {1, 2, 4, 8}) {
        EXPECT_GT(total(ranks, {}), capacity) << backbone << " " << head << " " << ranks;
        EXPECT_LT(total(ranks, {shard, full}), capacity) << backbone << " " << head << " " << ranks;
      }
      EXPECT_GT(total(1, {shard}), capacity) << "one GPU has nobody to share with";
      EXPECT_LT(total(8, {shard, full}), 0.5 * capacity) << backbone << " " << head;
    }
  }
}

TEST(WorkPlan, RecomputationIsTheForwardWithoutItsLastProduct) {
  const auto flops = [](const char* setting) {
    return plan_work(config_of(k1700M, {str("train.activation_checkpointing=", setting)}))
        .recomputed_flops_per_token;
  };
  // q, k, v, o, gate, up; and attention over (T + 1) / 2 keys.
  constexpr double kLayer = 2.0 * (4 * 2048 * 2048 + 2 * 2048 * 8192) + 4.0 * 2048 * (4096 + 1) / 2;
  EXPECT_EQ(flops("none"), 0);
  EXPECT_DOUBLE_EQ(flops("full"), 23 * kLayer);
  EXPECT_DOUBLE_EQ(flops("3"), 7 * kLayer);  // 3, 6 .. 21; 24 is the last
  EXPECT_EQ(plan_work(config_of(k1700M)).flops_per_token,
            plan_work(config_of(k1700M, {"train.activation_checkpointing=full"})).flops_per_token);
}

// 2,610 projected numbers and 864 mixed ones a position, a state of 9 x 48 x 96 a chunk in float32.
TEST(MemoryPlan, RecurrentLayersKeepAStateAChunk) {
  const Shape shape{
      "{vocab_size: 49152, hidden_size: 576, num_hidden_layers: 23, num_attention_heads: 9, "
      "num_key_value_heads: 3, intermediate_size: 1536, head: vanilla, backbone: recurrent}",
      135'570'558};
  const Config config = config_of(shape);
  EXPECT_EQ(count_parameters(config.model).total, shape.parameters);
  EXPECT_EQ(part(plan_memory(config), "kept activations"),
            4096 * 23 * (2 * (2 * 576 + 2610 + 864 + 2 * 1536) + 4 * 9 * 48 * 96 / 64));
  const WorkPlan work = plan_work(config);
  const WorkPlan longer = plan_work(config_of(shape, {"data.sequence_length=65536"}));
  EXPECT_EQ(longer.flops_per_token, work.flops_per_token) << "linear in the length";
  const double rule = 9 * (4 * 64 * 48 + 64 * 144 + 6 * 48 * 96 + 2 * 64 * 96);
  const double matrices = 2.0 * (135'570'558 - 23 * (1728 * 4 + 2 * 9 + 96 + 2 * 576) - 576);
  EXPECT_DOUBLE_EQ(work.flops_per_token, 3 * (matrices + 23 * rule));
}

TEST(TrafficPlan, IsThatOfRings) {
  const double gradients = 4.0 * k7B.parameters, weights = 2.0 * k7B.parameters;
  const TrafficPlan whole = plan_traffic(config_of(k7B), 4);
  EXPECT_DOUBLE_EQ(whole.gradients, 2 * 3.0 / 4 * gradients);
  EXPECT_EQ(whole.weights, 0);
  const TrafficPlan shard = plan_traffic(config_of(k7B, {"optimizer.shard=true"}), 4);
  EXPECT_DOUBLE_EQ(shard.gradients, 3.0 / 4 * gradients);
  EXPECT_DOUBLE_EQ(shard.weights, 3.0 / 4 * weights);
  const TrafficPlan rounded = plan_traffic(config_of(k7B, {"distributed.reduction=bfloat16"}), 4);
  EXPECT_DOUBLE_EQ(rounded.gradients, whole.gradients / 2);
  const TrafficPlan alone = plan_traffic(config_of(k7B, {"optimizer.shard=true"}), 1);
  EXPECT_EQ(alone.gradients + alone.weights, 0);
}

TEST(StepPlan, OneGpuOnlyComputesAndUpdates) {
  const GpuModel& gpu = gpu_model("h100");
  const StepPlan step = plan_step(config_of(k3B), gpu, 1);
  EXPECT_EQ(step.sequences, 512);
  EXPECT_EQ(step.reduction_s + step.reduction_wait_s + step.gather_s + step.recompute_s, 0);
  EXPECT_DOUBLE_EQ(step.total_s, step.compute_s + step.update_s);
  EXPECT_DOUBLE_EQ(step.compute_s, plan_work(config_of(k3B)).flops_per_step / (0.4 * 989e12));
  EXPECT_DOUBLE_EQ(step.scaling, 1);
  EXPECT_LT(step.utilisation, 0.4);
}

TEST(StepPlan, PartsAddUpAndScalingFallsWithRanks) {
  for (const Shape& shape : {k1700M, k3B, k7B}) {
    for (const char* sharded : {"true", "false"}) {
      const Config config = config_of(
          shape, {str("optimizer.shard=", sharded), "train.activation_checkpointing=full"});
      double scaling = 1.0 + 1e-12;
      for (const int64_t ranks : {1, 8, 64, 256, 1024}) {
        const StepPlan step = plan_step(config, gpu_model("h100"), ranks);
        EXPECT_DOUBLE_EQ(step.total_s, step.compute_s + step.recompute_s + step.reduction_wait_s +
                                           step.update_s + step.gather_s);
        EXPECT_LE(step.reduction_wait_s, step.reduction_s);
        // A sharded update of fewer weights may win more than little traffic costs.
        if (!config.optimizer.shard) {
          EXPECT_LE(step.scaling, scaling) << ranks;
        }
        EXPECT_GT(step.scaling, 0) << ranks;
        EXPECT_EQ(step.batch_sequences, std::max<int64_t>(512, ranks));
        EXPECT_EQ(step.sequences * ranks, step.batch_sequences);
        scaling = step.scaling;
      }
      EXPECT_LT(scaling, 0.9);  // one sequence a rank does not hide the reduction
    }
  }
}

// Small buckets cost latency while gradients are reduced, but weights travel in one piece.
TEST(StepPlan, GatheringDoesNotFeelTheBuckets) {
  const Config small = config_of(k1700M, {"optimizer.shard=true", "distributed.bucket_mb=25"});
  const Config large = config_of(k1700M, {"optimizer.shard=true", "distributed.bucket_mb=250"});
  const StepPlan a = plan_step(small, gpu_model("h100"), 512);
  const StepPlan b = plan_step(large, gpu_model("h100"), 512);
  EXPECT_DOUBLE_EQ(a.gather_s, b.gather_s);
  EXPECT_GT(a.reduction_s, 1.5 * b.reduction_s);
  // The wire alone, and the copy out of the room that it travels to.
  const GpuModel& gpu = gpu_model("h100");
  const double bytes = 2.0 * k1700M.parameters;
  const double least =
      511.0 / 512 * bytes / (0.8e9 * std::min(gpu.link_gb_per_s, 8 * gpu.network_gb_per_s)) +
      2 * bytes / (0.8e12 * gpu.memory_tb_per_s);
  EXPECT_GT(a.gather_s, least);
  EXPECT_LT(a.gather_s, least + 3e-3);
}

TEST(StepPlan, SlowLinksAndNetworksCostTime) {
  const Config config = config_of(k7B, {"distributed.bucket_mb=1024"});  // few hops' latencies
  GpuModel gpu = gpu_model("h100");
  const auto wire_s = [](double ranks, double gb_per_s) {
    return 2 * (ranks - 1) / ranks * 4.0 * k7B.parameters / (0.8e9 * gb_per_s);
  };
  const double in_node = plan_step(config, gpu, 8).reduction_s;
  EXPECT_GT(in_node, wire_s(8, 450));
  EXPECT_LT(in_node, 1.05 * wire_s(8, 450));
  EXPECT_GT(plan_step(config, gpu, 64).reduction_s, in_node);
  gpu.network_gb_per_s = 1;  // all eight adapters of a node carry the ring
  EXPECT_GT(plan_step(config, gpu, 64).reduction_s, wire_s(64, 8));
  EXPECT_LT(plan_step(config, gpu, 64).reduction_s, 1.05 * wire_s(64, 8));
}

TEST(StepPlan, OnlyTheLastBucketWaitsBehindALongBackward) {
  const Config few = config_of(k1700M, {"distributed.bucket_mb=25"});
  const Config one = config_of(k1700M, {"distributed.bucket_mb=65536"});
  const StepPlan hidden = plan_step(few, gpu_model("h100"), 8);
  const StepPlan exposed = plan_step(one, gpu_model("h100"), 8);
  EXPECT_LT(hidden.reduction_wait_s, 0.01 * hidden.reduction_s);
  EXPECT_DOUBLE_EQ(exposed.reduction_wait_s, exposed.reduction_s);
}

TEST(StepPlan, DoublePrecisionIsRefused) {
  const Config config = config_of(k3B, {"train.precision=float64", "train.device=cpu"});
  EXPECT_THAT(config_error_of([&] { plan_step(config, gpu_model("h100"), 8); }),
              HasSubstr("found float64"));
}

}  // namespace
}  // namespace cplm::test
