// Runs that are written for a test and compared.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <vector>

#include "runs/compare.h"
#include "support/fake_run.h"
#include "support/temp_dir.h"

namespace cplm::test {

class ComparedFakeRuns : public ::testing::Test {
 protected:
  TempDir dir_;

  Comparison compare_all(const std::vector<FakeRun>& runs) const {
    std::vector<std::filesystem::path> dirs;
    for (size_t i = 0; i < runs.size(); ++i) {
      dirs.push_back(dir_ / str("run", i));
      runs[i].write_to(dirs.back());
    }
    return compare(load_compared_runs(dirs));
  }
};

}  // namespace cplm::test
