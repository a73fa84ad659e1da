// See warm_files.h.
#include "data/warm_files.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>

#include "data/hdf5_gaps.h"

namespace cplm {

void warm_headers(const std::vector<std::filesystem::path>& paths) {
  constexpr size_t kThreads = 16;  // they wait, they do not compute
  constexpr size_t kFilesPerThread = 4;
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < paths.size(); i = next++) {
      try {
        if (std::filesystem::is_regular_file(paths[i])) read_structures(paths[i]);  // no pipe
      } catch (const std::exception&) {  // opening it will say what is wrong
      }
    }
  };
  std::vector<std::jthread> threads;
  const size_t num_threads = std::min(kThreads, paths.size() / kFilesPerThread);
  for (size_t i = 0; i < num_threads; ++i) threads.emplace_back(work);
}

}  // namespace cplm
