// Starts a program as several ranks of one run on this machine, as torchrun or a shell loop would.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "support/process.h"

namespace cplm::test {

int free_port();
// One result a rank. adjust(rank, options) may change a rank's options (arguments, signals).
std::vector<ProcessResult> run_ranks(
    const std::filesystem::path& program, int size, const ProcessOptions& options,
    const std::function<void(int rank, ProcessOptions& options)>& adjust = {});

}  // namespace cplm::test
