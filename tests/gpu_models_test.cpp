// The table of GPUs: peaks by the drivers' names, and what is not in it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cplm/plan.h"
#include "support/config_text.h"

namespace cplm::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Optional;

TEST(GpuModels, DriversNamesLeadToPeaks) {
  const auto peak = [](const char* name) { return known_peak_tflops(name, Precision::kBFloat16); };
  EXPECT_THAT(peak("NVIDIA H100 80GB HBM3"), Optional(989.0));
  EXPECT_THAT(peak("NVIDIA H100 PCIe"), Optional(756.0));
  EXPECT_THAT(peak("NVIDIA H100 NVL"), Optional(835.0));
  EXPECT_THAT(peak("NVIDIA H200"), Optional(989.0));
  EXPECT_THAT(peak("NVIDIA A100-SXM4-40GB"), Optional(312.0));
  EXPECT_THAT(peak("NVIDIA A100-PCIE-40GB"), Optional(312.0));
  EXPECT_THAT(peak("NVIDIA L40S"), Optional(362.0));
  EXPECT_THAT(peak("NVIDIA GeForce RTX 4090"), Optional(165.2));
  EXPECT_THAT(known_peak_tflops("NVIDIA H100 80GB HBM3", Precision::kFloat32), Optional(67.0));
}

TEST(GpuModels, OthersHaveNoPeak) {
  for (const char* name : {"", "Tesla V100-SXM2-32GB", "NVIDIA L40", "NVIDIA A10G",
                           "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 4090 D",
                           "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "AMD Instinct MI300X"}) {
    EXPECT_EQ(known_peak_tflops(name, Precision::kBFloat16), std::nullopt) << name;
  }
  EXPECT_EQ(known_peak_tflops("NVIDIA H100 80GB HBM3", Precision::kFloat64), std::nullopt);
  EXPECT_THAT(config_error_of([] { gpu_model("H-100"); }),
              AllOf(HasSubstr("expected one of"), HasSubstr("a100-40gb"), HasSubstr("\"H-100\"")));
}

TEST(GpuModels, EveryNameOfTheTableIsItsOwn) {
  for (const GpuModel& gpu : gpu_models()) {
    EXPECT_EQ(&gpu_model(gpu.name), &gpu);
    EXPECT_THAT(known_peak_tflops(str("NVIDIA ", gpu.driver_words), Precision::kBFloat16),
                Optional(gpu.bf16_tflops))
        << gpu.name;
    EXPECT_GT(gpu.bf16_tflops, gpu.fp32_tflops) << gpu.name;
    EXPECT_GE(gpu.link_gb_per_s, gpu.network_gb_per_s) << gpu.name;
  }
}

TEST(GpuModels, UtilisationIsModelFlopsOverAllPeaks) {
  EXPECT_DOUBLE_EQ(model_flops_utilisation(1e9, 4e5, 2, 400), 0.5);
}

}  // namespace
}  // namespace cplm::test
