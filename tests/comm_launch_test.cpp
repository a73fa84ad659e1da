// Who a process is, by each launcher's variables.
#include <gmock/gmock.h>
#include <unistd.h>

#include <map>

#include "cplm/comm.h"

namespace cplm::test {
namespace {

using testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

Launch launch_of(const Variables& variables) {
  return read_launch([&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  });
}

std::string refusal_of(const Variables& variables) {
  try {
    launch_of(variables);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadConfig);
    return error.what();
  }
  return "accepted";
}

TEST(CommLaunch, NothingSetIsOneProcessAlone) {
  const Launch launch = launch_of({{"SLURM_PROCID", "0"}, {"SLURM_JOB_ID", "7"}});
  EXPECT_TRUE(launch.alone());
  EXPECT_EQ(launch.rank, 0);
}

TEST(CommLaunch, Torchrun) {
  const Launch launch = launch_of({{"RANK", "5"},
                                   {"WORLD_SIZE", "8"},
                                   {"LOCAL_RANK", "1"},
                                   {"LOCAL_WORLD_SIZE", "4"},
                                   {"MASTER_ADDR", "node7"},
                                   {"MASTER_PORT", "1234"},
                                   {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                   {"TORCHELASTIC_RESTART_COUNT", "2"},
                                   {"SLURM_STEP_NUM_TASKS", "2"}});
  EXPECT_EQ(launch.launcher, "torchrun");
  EXPECT_EQ(launch.rank, 5);
  EXPECT_EQ(launch.size, 8);
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.local_size, 4);
  EXPECT_EQ(launch.address, "node7");
  EXPECT_EQ(launch.port, 1234);
  EXPECT_EQ(launch.attempt, "2");
  EXPECT_EQ(launch.job, "");
  EXPECT_TRUE(launch.launcher_listens);
}

Variables slurm(const std::string& nodes) {
  return {{"SLURM_PROCID", "9"},          {"SLURM_STEP_NUM_TASKS", "16"},
          {"SLURM_LOCALID", "1"},         {"SLURM_STEP_TASKS_PER_NODE", "8(x2)"},
          {"SLURM_STEP_NODELIST", nodes}, {"SLURM_JOB_ID", "41"},
          {"SLURM_STEP_ID", "0"}};
}

TEST(CommLaunch, Slurm) {
  const Launch launch = launch_of(slurm("gpu[03-07,9],other1"));
  EXPECT_EQ(launch.launcher, "srun");
  EXPECT_EQ(launch.rank, 9);
  EXPECT_EQ(launch.size, 16);
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.local_size, 8);
  EXPECT_EQ(launch.address, "gpu03");
  EXPECT_EQ(launch.port, 20000 + 41 * 31);
  EXPECT_EQ(launch.job, "41.0");
  EXPECT_EQ(launch_of(slurm("a1,b2")).address, "a1");
  EXPECT_EQ(launch_of(slurm("host")).address, "host");
  EXPECT_EQ(launch_of(slurm("rack[1,5]-ib")).address, "rack1-ib");
  Variables named = slurm("a1");
  named["MASTER_ADDR"] = "10.0.0.1";
  named["MASTER_PORT"] = "99";
  EXPECT_EQ(launch_of(named).address, "10.0.0.1");
  EXPECT_EQ(launch_of(named).port, 99);
}

TEST(CommLaunch, MpirunOnOneAndOnSeveralMachines) {
  Variables variables = {{"OMPI_COMM_WORLD_RANK", "1"},
                         {"OMPI_COMM_WORLD_SIZE", "2"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
  EXPECT_EQ(launch_of(variables).address, "127.0.0.1");
  EXPECT_EQ(launch_of(variables).rank, 1);
  variables["OMPI_COMM_WORLD_SIZE"] = "4";
  EXPECT_THAT(refusal_of(variables), HasSubstr("MASTER_ADDR is not set"));
  variables["MASTER_ADDR"] = "head";
  EXPECT_EQ(launch_of(variables).address, "head");
}

TEST(CommLaunch, TheJobIsTheLaunchersNameOfIt) {
  Variables variables = {{"RANK", "0"},
                         {"WORLD_SIZE", "2"},
                         {"LOCAL_RANK", "0"},
                         {"MASTER_ADDR", "h"},
                         {"SLURM_JOB_ID", "17"}};
  EXPECT_EQ(launch_of(variables).job, "17");
  variables["TORCHELASTIC_RUN_ID"] = "mine";
  EXPECT_EQ(launch_of(variables).job, "mine");
  Variables mpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                   {"OMPI_COMM_WORLD_SIZE", "2"},
                   {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                   {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
  EXPECT_EQ(launch_of(mpi).job, std::to_string(::getppid()));
  mpi["PMIX_NAMESPACE"] = "prterun@7";
  EXPECT_EQ(launch_of(mpi).job, "prterun@7");
}

// A rank that took itself for the only one would train alone, beside others that do the same.
TEST(CommLaunch, ARankWithoutAWorldIsRefused) {
  for (const char* name : {"RANK", "LOCAL_RANK"}) {
    EXPECT_THAT(refusal_of({{name, "1"}}),
                HasSubstr(std::string("launch: ") + name + " is set, but WORLD_SIZE is not set"));
    Variables step = slurm("a1");  // tells all that is needed
    step[name] = "9";
    EXPECT_EQ(launch_of(step).launcher, "srun");
  }
}

TEST(CommLaunch, HalfSetOrWrongVariablesAreNamed) {
  const Variables good = {
      {"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}, {"MASTER_ADDR", "h"}};
  EXPECT_EQ(refusal_of(good), "accepted");
  for (const auto& [name, value] : good) {
    Variables lacking = good;
    lacking.erase(name);
    if (name == "WORLD_SIZE" || name == "RANK" || name == "LOCAL_RANK" || name == "MASTER_ADDR") {
      EXPECT_THAT(refusal_of(lacking), HasSubstr(name + " is not set"));
    }
  }
  for (const std::string wrong : {"2", "-1", "x", "", "0x1", "1e3"}) {
    Variables bad = good;
    bad["RANK"] = wrong;
    EXPECT_THAT(refusal_of(bad), HasSubstr("RANK")) << wrong;
  }
  Variables port = good;
  port["MASTER_PORT"] = "70000";
  EXPECT_THAT(refusal_of(port), HasSubstr("MASTER_PORT is \"70000\""));
}

}  // namespace
}  // namespace cplm::test
