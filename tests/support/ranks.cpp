// See ranks.h.
#include "support/ranks.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <stdexcept>
#include <thread>

namespace cplm::test {

int free_port() {
  const int descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  const bool ok =
      descriptor >= 0 &&
      ::bind(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
      ::getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length) == 0;
  if (descriptor >= 0) ::close(descriptor);
  if (!ok) throw std::runtime_error("no free port");
  return ntohs(address.sin_port);
}

std::vector<ProcessResult> run_ranks(
    const std::filesystem::path& program, int size, const ProcessOptions& options,
    const std::function<void(int rank, ProcessOptions& options)>& adjust) {
  const std::string port = std::to_string(free_port());
  std::vector<ProcessResult> results(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    ProcessOptions own = options;
    const std::string number = std::to_string(rank), count = std::to_string(size);
    own.environment.insert({{"RANK", number},
                            {"LOCAL_RANK", number},
                            {"WORLD_SIZE", count},
                            {"LOCAL_WORLD_SIZE", count},
                            {"MASTER_ADDR", "127.0.0.1"},
                            {"MASTER_PORT", port},
                            {"OMP_NUM_THREADS", "1"}});
    if (adjust) adjust(rank, own);
    threads.emplace_back([&program, own, &result = results[static_cast<size_t>(rank)]] {
      result = run_process(program, own);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

}  // namespace cplm::test
