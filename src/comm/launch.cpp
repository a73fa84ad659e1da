// Reads who this process is from the environment that torchrun, srun or mpirun gave it.
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "cplm/comm.h"

namespace cplm {
namespace {

constexpr int64_t kDefaultPort = 29500;

class Reader {
 public:
  explicit Reader(const Environment& environment) : environment_(environment) {}

  bool has(const std::string& name) const { return environment_(name).has_value(); }
  std::optional<std::string> text(const std::string& name) const { return environment_(name); }
  std::string required(const std::string& name, const std::string& because) const {
    const auto value = environment_(name);
    if (!value || value->empty()) {
      throw Error(str("launch: ", because, ", but ", name,
                      " is not set; start with torchrun, srun or mpirun, or set it"),
                  ExitCode::kBadConfig);
    }
    return *value;
  }
  int64_t number(const std::string& name, const std::string& because, int64_t least,
                 int64_t most) const {
    const std::string value = required(name, because);
    int64_t number = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (error != std::errc() || end != value.data() + value.size() || number < least ||
        number > most) {
      throw Error(str("launch: ", name, " is \"", value, "\"; expected a whole number from ", least,
                      " to ", most),
                  ExitCode::kBadConfig);
    }
    return number;
  }

 private:
  const Environment& environment_;
};

constexpr int64_t kMostRanks = 1 << 20;

void read_ranks(const Reader& reader, Launch& launch, const std::string& rank,
                const std::string& size, const std::string& local_rank,
                const std::string& local_size) {
  launch.size = reader.number(size, rank + " is set", 1, kMostRanks);
  launch.rank = reader.number(rank, size + " is set", 0, launch.size - 1);
  launch.local_rank = reader.number(local_rank, rank + " is set", 0, launch.size - 1);
  if (reader.has(local_size)) {
    launch.local_size =
        reader.number(local_size, rank + " is set", launch.local_rank + 1, launch.size);
  }
}

// MASTER_ADDR and MASTER_PORT win over what a scheduler's variables imply.
void read_address(const Reader& reader, Launch& launch, const std::string& implied_address,
                  int64_t implied_port) {
  launch.address = reader.text("MASTER_ADDR").value_or(implied_address);
  if (launch.address.empty()) {
    launch.address = reader.required(
        "MASTER_ADDR", str(launch.launcher, " started processes on several machines"));
  }
  launch.port = reader.has("MASTER_PORT")
                    ? reader.number("MASTER_PORT", "MASTER_ADDR is set", 1, 65535)
                    : implied_port;
}

// "node[03-07,9],gpu1" -> "node03": the first host of a Slurm list.
std::string first_host(const std::string& hosts) {
  const size_t end = hosts.find_first_of("[,");
  if (end == std::string::npos || hosts[end] == ',') return hosts.substr(0, end);
  const size_t number_end = hosts.find_first_of("-,]", end);
  if (number_end == std::string::npos) return {};
  const size_t close = hosts.find(']', number_end);
  const size_t comma = hosts.find(',', close);
  const std::string suffix =
      close == std::string::npos ? "" : hosts.substr(close + 1, comma - close - 1);
  return hosts.substr(0, end) + hosts.substr(end + 1, number_end - end - 1) + suffix;
}

Launch read_torchrun(const Reader& reader) {
  Launch launch;
  launch.launcher = "torchrun";
  read_ranks(reader, launch, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE");
  if (launch.alone()) return launch;
  launch.address = reader.required("MASTER_ADDR", "WORLD_SIZE is set");
  read_address(reader, launch, launch.address, kDefaultPort);
  launch.launcher_listens = reader.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  launch.attempt = reader.text("TORCHELASTIC_RESTART_COUNT").value_or("0");
  launch.job =
      reader.text("TORCHELASTIC_RUN_ID").value_or(reader.text("SLURM_JOB_ID").value_or(""));
  return launch;
}

Launch read_slurm(const Reader& reader) {
  Launch launch;
  launch.launcher = "srun";
  read_ranks(reader, launch, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "");
  // "4(x2),3": so many on each of two machines, then 3. The first number is the most.
  const std::string tasks = reader.text("SLURM_STEP_TASKS_PER_NODE").value_or("");
  std::from_chars(tasks.data(), tasks.data() + tasks.size(), launch.local_size);
  launch.local_size = std::clamp(launch.local_size, launch.local_rank + 1, launch.size);
  const int64_t job = reader.number("SLURM_JOB_ID", "SLURM_PROCID is set", 0, INT64_MAX);
  const int64_t step = reader.number("SLURM_STEP_ID", "SLURM_PROCID is set", 0, INT64_MAX);
  read_address(reader, launch, first_host(reader.text("SLURM_STEP_NODELIST").value_or("")),
               20000 + (job * 31 + step) % 20000);
  launch.attempt = reader.text("SLURM_RESTART_COUNT").value_or("0");
  launch.job = str(job, ".", step);
  return launch;
}

Launch read_mpi(const Reader& reader, const std::string& rank, const std::string& size,
                const std::string& local_rank, const std::string& local_size) {
  Launch launch;
  launch.launcher = "mpirun";
  read_ranks(reader, launch, rank, size, local_rank, local_size);
  // The processes of one machine share their parent, so two jobs there choose different ports.
  const bool one_machine = launch.local_size == launch.size;
  read_address(reader, launch, one_machine ? "127.0.0.1" : "",
               one_machine ? 20000 + ::getppid() % 20000 : kDefaultPort);
  launch.job = reader.text("PMIX_NAMESPACE").value_or(one_machine ? str(::getppid()) : "");
  return launch;
}

}  // namespace

Launch read_launch(const Environment& environment) {
  const Reader reader(environment);
  if (reader.has("WORLD_SIZE") || (reader.has("RANK") && reader.has("MASTER_ADDR"))) {
    return read_torchrun(reader);
  }
  // Only a step's tasks have it; the shell of an sbatch or salloc job is alone.
  if (reader.has("SLURM_STEP_NUM_TASKS") && reader.text("SLURM_STEP_NUM_TASKS") != "1") {
    return read_slurm(reader);
  }
  if (reader.has("OMPI_COMM_WORLD_SIZE")) {
    return read_mpi(reader, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                    "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE");
  }
  if (reader.has("PMI_SIZE") && reader.has("MPI_LOCALRANKID")) {
    return read_mpi(reader, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS");
  }
  // Several processes that each took themselves for the only one would write one folder.
  for (const char* name : {"RANK", "LOCAL_RANK"}) {
    if (reader.has(name)) reader.required("WORLD_SIZE", str(name, " is set"));
  }
  return {};
}

Launch read_launch() {
  return read_launch([](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    if (value == nullptr) return std::nullopt;
    return std::string(value);
  });
}

}  // namespace cplm
