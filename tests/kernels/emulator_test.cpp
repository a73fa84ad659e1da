// The emulator itself: every planted fault is caught and named, sound kernels pass under every
// schedule and on both back-ends, a missing barrier shows under starve.
#include "emulator/emulator.h"

#include <gmock/gmock.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>
#include <vector>

#include "emulator/buffers.h"
#include "emulator/schedules.h"
#include "kernels/planted/faults.cuh"

namespace cplm::emulator {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using Rotation = void (*)(const float*, float*);

constexpr int kThreads = 128;

std::vector<float> ramp(int n) {
  std::vector<float> values(static_cast<std::size_t>(n));
  std::iota(values.begin(), values.end(), 1.0f);
  return values;
}

std::vector<float> launch_rotation(Rotation kernel) {
  const DeviceBuffer<float> in(ramp(kThreads));
  DeviceBuffer<float> out(kThreads);
  CPLM_LAUNCH(kernel, dim3(1), kThreads, 0, nullptr, in.data(), out.data());
  return out.values();
}

// Launches on one block of two warps with room for the outputs.
void launch_planted(void (*kernel)(float*)) {
  DeviceBuffer<float> out(64);
  CPLM_LAUNCH(kernel, dim3(1), 64, 0, nullptr, out.data());
}

// The text of the fault that `launch` raises, which must name the kernel; empty: none.
std::string fault_of(const std::function<void()>& launch) {
  try {
    launch();
  } catch (const KernelFault& fault) {
    EXPECT_THAT(fault.what(), HasSubstr(fault.kernel + ": block (0, 0, 0)"));
    return fault.what();
  }
  return "";
}

void expect_fault(const std::function<void()>& launch, const char* text) {
  for (const Options& options : every_schedule()) {
    const ScopedOptions scope(options);
    EXPECT_THAT(fault_of(launch), HasSubstr(text)) << options;
  }
}

TEST(Emulator, SoundKernelsAgreeUnderEverySchedule) {
  const std::vector<float> once =
      run_under_every_schedule([] { return launch_rotation(planted::rotate<true>); });
  EXPECT_EQ(once[0], 33.0f);
  EXPECT_EQ(once[kThreads - 1], 32.0f);
  const std::vector<float> twice =
      run_under_every_schedule([] { return launch_rotation(planted::rotate_twice<true>); });
  EXPECT_EQ(twice[0], 130.0f);
  const std::vector<float> in_warp =
      run_under_every_schedule([] { return launch_rotation(planted::rotate_in_warp<true>); });
  EXPECT_EQ(in_warp[31], 1.0f);
}

TEST(Emulator, StarveShowsARemovedBarrier) {
  const std::vector<float> right = launch_rotation(planted::rotate<true>);
  const std::vector<float> right_twice = launch_rotation(planted::rotate_twice<true>);
  const std::vector<float> right_sum = launch_rotation(planted::sum_repeatedly<true>);
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    const ScopedOptions scope({.schedule = Schedule::kStarve, .seed = seed});
    EXPECT_FALSE(same_bytes(launch_rotation(planted::rotate<false>), right)) << seed;
    EXPECT_FALSE(same_bytes(launch_rotation(planted::rotate_twice<false>), right_twice)) << seed;
    EXPECT_FALSE(same_bytes(launch_rotation(planted::sum_repeatedly<false>), right_sum)) << seed;
  }
}

TEST(Emulator, ARemovedWarpBarrierShows) {
  EXPECT_FALSE(same_bytes(launch_rotation(planted::rotate_in_warp<false>),
                          launch_rotation(planted::rotate_in_warp<true>)));
}

TEST(Emulator, ScheduleHelperFailsWhereOutputsDiffer) {
  const auto depends = [] {
    return std::vector<int>{options().schedule == Schedule::kReverse ? 1 : 0};
  };
  EXPECT_NONFATAL_FAILURE(run_under_every_schedule(depends), "fibers, reverse, seed 0");
}

TEST(Emulator, DivergentBarriers) {
  expect_fault([] { CPLM_LAUNCH(planted::barrier_of_half_a_block, dim3(1), 64, 0, nullptr); },
               "divergent barrier");
  expect_fault([] { CPLM_LAUNCH(planted::barriers_in_two_branches, dim3(1), 64, 0, nullptr); },
               "divergent barrier");
}

TEST(Emulator, CollectivesThatNotAllReach) {
  expect_fault([] { launch_planted(planted::half_warp_shuffle); }, "__shfl_xor_sync at ");
  expect_fault([] { launch_planted(planted::barrier_against_shuffle); }, "deadlock: ");
  const std::string fault = fault_of([] { launch_planted(planted::half_warp_shuffle); });
  EXPECT_THAT(fault,
              AllOf(HasSubstr("thread "), HasSubstr("planted/faults.cuh:"), HasSubstr("lane 16")));
}

TEST(Emulator, MasksAndMixedCollectives) {
  expect_fault([] { launch_planted(planted::lane_outside_its_mask); }, "outside its own mask");
  expect_fault([] { launch_planted(planted::source_outside_the_mask); },
               "which is outside the mask");
  expect_fault([] { launch_planted(planted::two_collectives_meet); }, "two collectives meet");
  expect_fault([] { launch_planted(planted::two_masks_meet); }, "another mask");
  expect_fault([] { CPLM_LAUNCH(planted::ballot_of_full_warps, dim3(1), 40, 0, nullptr); },
               "lanes that the block does not have");
}

#if !defined(__SANITIZE_ADDRESS__)  // which stops at the access itself: planted/out_of_bounds.cpp
TEST(Emulator, WritesOutsideOfSharedArrays) {
  expect_fault([] { CPLM_LAUNCH(planted::shared_out_of_bounds, dim3(1), 32, 0, nullptr, 0); },
               "shared array inside (128 bytes): byte 128 was written");
  expect_fault([] { CPLM_LAUNCH(planted::shared_out_of_bounds, dim3(1), 32, 0, nullptr, -33); },
               "shared array inside (128 bytes): byte -");
  expect_fault([] { CPLM_LAUNCH(planted::dynamic_out_of_bounds, dim3(1), 32, 400, nullptr, 100); },
               "dynamic shared memory (400 bytes): byte 400 was written");
}

TEST(Emulator, WritesOutsideOfDeviceBuffers) {
  for (const int index : {32, -1}) {
    DeviceBuffer<float> out(32, 3);
    EXPECT_EQ(out.damage(), "");
    CPLM_LAUNCH(planted::global_out_of_bounds, dim3(1), 32, 0, nullptr, out.data(), index);
    EXPECT_THAT(out.damage(), HasSubstr(index < 0 ? "before its begin" : "behind its end"));
  }
  const auto die_damaged = [] {
    DeviceBuffer<float> out(32);
    CPLM_LAUNCH(planted::global_out_of_bounds, dim3(1), 32, 0, nullptr, out.data(), 32);
  };
  EXPECT_NONFATAL_FAILURE(die_damaged(), "behind its end (32 elements of 4 bytes)");
}
#endif

TEST(Emulator, UninitialisedMemoryIsNaN) {
  for (const Options& options : every_schedule()) {
    const ScopedOptions scope(options);
    for (int repeat = 0; repeat < 2; ++repeat) {  // also after the memory was used before
      DeviceBuffer<float> out(32);
      EXPECT_THAT(out, Each(testing::IsNan()));
      CPLM_LAUNCH(planted::uninitialised_read, dim3(1), 32, 0, nullptr, out.data());
      EXPECT_THAT(out, Each(testing::IsNan())) << options;
    }
  }
}

TEST(Emulator, MisalignedVectorsAndTooMuchSharedMemory) {
  DeviceBuffer<float> in(8), out(8);
  expect_fault(
      [&] {
        CPLM_LAUNCH(planted::misaligned_vector, dim3(1), 1, 0, nullptr, in.data(), out.data());
      },
      "a vector access of 16 bytes");
  expect_fault([] { CPLM_LAUNCH(planted::too_much_shared_memory, dim3(1), 32, 0, nullptr); },
               "over 48 KiB");
}

// CUDA counts static and dynamic arrays together, also where the dynamic ones alone would fit.
TEST(Emulator, StaticAndDynamicSharedMemoryShareOneLimit) {
  const auto launch_with = [](std::size_t bytes) {
    CPLM_LAUNCH(planted::large_static_array_beside_dynamic_memory, dim3(1), 32, bytes, nullptr);
  };
  EXPECT_NO_THROW(launch_with(44 * 1024));
  expect_fault([&] { launch_with(46 * 1024); },
               "4096 bytes of static and 47104 of dynamic shared memory, the launch has 49152");
  EXPECT_NO_THROW(launch_with(48 * 1024));  // asked for
  expect_fault([&] { launch_with(225 * 1024); }, "the launch has 232448");
}

TEST(Emulator, ImpossibleLaunches) {
  const auto launch_with = [](dim3 grid, int threads, std::size_t bytes) {
    CPLM_LAUNCH(planted::barrier_of_half_a_block, grid, threads, bytes, nullptr);
  };
  EXPECT_THROW(launch_with(dim3(0), 32, 0), std::invalid_argument);
  EXPECT_THROW(launch_with(dim3(1, 65536), 32, 0), std::invalid_argument);
  EXPECT_THROW(launch_with(dim3(1), 0, 0), std::invalid_argument);
  EXPECT_THROW(launch_with(dim3(1), 1025, 0), std::invalid_argument);
  EXPECT_THROW(launch_with(dim3(1), 32, 228 * 1024), std::invalid_argument);
}

TEST(Emulator, ThreadsAgreeWithFibers) {
  for (const Rotation kernel : {planted::rotate<true>, planted::rotate_twice<true>,
                                planted::rotate_in_warp<true>, planted::sum_repeatedly<true>}) {
    const std::vector<float> fibers = launch_rotation(kernel);
    const ScopedOptions scope({.backend = Backend::kThreads});
    EXPECT_EQ(launch_rotation(kernel), fibers);
  }
}

TEST(Emulator, ThreadsFindFaultsToo) {
  const ScopedOptions scope({.backend = Backend::kThreads});
  EXPECT_THAT(fault_of([] { launch_planted(planted::half_warp_shuffle); }),
              HasSubstr("has exited"));
  EXPECT_THAT(fault_of([] { launch_planted(planted::two_collectives_meet); }),
              HasSubstr("two collectives meet"));
  EXPECT_THAT(fault_of([] { launch_planted(planted::lane_outside_its_mask); }),
              HasSubstr("outside its own mask"));
  EXPECT_THAT(
      fault_of([] { CPLM_LAUNCH(planted::barrier_of_half_a_block, dim3(1), 64, 0, nullptr); }),
      HasSubstr("divergent barrier"));
}

TEST(Emulator, AtomicsOfAllBlocksCount) {
  for (const Backend backend : {Backend::kFibers, Backend::kThreads}) {
    const ScopedOptions scope({.backend = backend});
    DeviceBuffer<unsigned long long> count(std::vector<unsigned long long>{0});
    CPLM_LAUNCH(planted::count_blocks<true>, dim3(3, 2, 2), 32, 0, nullptr, count.data());
    EXPECT_EQ(count[0], 12u);
  }
}

}  // namespace
}  // namespace cplm::emulator
