// Expectations that several tests of the program share.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cplm/base.h"
#include "support/training_folder.h"

namespace cplm::test {

// Ended with `code` and one line of error that matches.
inline void expect_error(const ProcessResult& result, ExitCode code,
                         const testing::Matcher<std::string>& line) {
  EXPECT_EQ(result.exit_code, static_cast<int>(code)) << result.err;
  EXPECT_THAT(error_line(result), line);
}

}  // namespace cplm::test
