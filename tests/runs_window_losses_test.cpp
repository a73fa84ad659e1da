// Per-window validation losses: written whole, read back exactly, damage named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "cplm/base.h"
#include "cplm/runs.h"
#include "data/hdf5_file.h"
#include "support/temp_dir.h"

namespace cplm {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

WindowLosses example() {
  return {.step = 500,
          .tokens = 4096000,
          .sequence_length = 256,
          .validation_id = std::string(64, 'a'),
          .loss_sum = {1.0 / 3.0, std::numeric_limits<double>::infinity(), 0.0},
          .counted = {256, 255, 0}};
}

std::string error_of(const std::filesystem::path& file) {
  try {
    read_window_losses(file);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadData);
    return error.what();
  }
  return "no error";
}

TEST(WindowLosses, ComeBackExactly) {
  const test::TempDir dir;
  const WindowLosses written = example();
  write_window_losses(dir.path(), written);
  EXPECT_EQ(window_losses_path(dir.path(), 500), dir / "validation/step_500.h5");
  const WindowLosses read = read_window_losses(dir / "validation/step_500.h5");
  EXPECT_EQ(read.step, written.step);
  EXPECT_EQ(read.tokens, written.tokens);
  EXPECT_EQ(read.sequence_length, written.sequence_length);
  EXPECT_EQ(read.validation_id, written.validation_id);
  EXPECT_EQ(read.loss_sum, written.loss_sum);
  EXPECT_EQ(read.counted, written.counted);
}

TEST(WindowLosses, EqualContentsGiveEqualBytesAndLeaveNothingAside) {
  const test::TempDir dir;
  write_window_losses(dir / "a", example());
  write_window_losses(dir / "b", example());
  write_window_losses(dir / "b", example());  // over an earlier one
  EXPECT_EQ(read_file(window_losses_path(dir / "a", 500)),
            read_file(window_losses_path(dir / "b", 500)));
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(dir / "b/validation")) {
    names.push_back(entry.path().filename());
  }
  EXPECT_THAT(names, ElementsAre("step_500.h5"));
}

TEST(WindowLosses, ColumnsOfDifferentLengthAreRefused) {
  const test::TempDir dir;
  WindowLosses losses = example();
  losses.counted.pop_back();
  EXPECT_THROW(write_window_losses(dir.path(), losses), Error);

  Hdf5File file = Hdf5File::create(dir / "odd.h5");
  for (const char* name : {"step", "tokens", "sequence_length"}) file.write_int_attribute(name, 1);
  file.write_string_attribute("validation_id", "v");
  file.write_dataset("loss_sum", std::vector<double>{1.0, 2.0});
  file.write_dataset("counted", std::vector<int64_t>{1});
  file.close();
  EXPECT_THAT(error_of(dir / "odd.h5"), AllOf(HasSubstr("odd.h5"), HasSubstr("found 2 and 1")));
}

TEST(WindowLosses, ANegativeCountIsNamed) {
  const test::TempDir dir;
  WindowLosses losses = example();
  losses.counted[1] = -3;
  write_window_losses(dir.path(), losses);
  EXPECT_THAT(error_of(window_losses_path(dir.path(), 500)),
              HasSubstr("window 1: expected a count of at least 0, found -3"));
}

TEST(WindowLosses, AForeignOrTruncatedFileIsNamed) {
  const test::TempDir dir;
  EXPECT_THAT(error_of(dir.write("text.h5", "not HDF5")), HasSubstr("text.h5"));
  write_window_losses(dir.path(), example());
  const std::string bytes = read_file(window_losses_path(dir.path(), 500));
  EXPECT_THAT(error_of(dir.write("cut.h5", bytes.substr(0, bytes.size() / 2))),
              HasSubstr("cut.h5"));
}

TEST(WindowLosses, AChangedByteIsRefusedOrChangesNothing) {
  const test::TempDir dir;
  write_window_losses(dir.path(), example());
  const std::string whole = read_file(window_losses_path(dir.path(), 500));
  for (size_t at = 0; at < whole.size(); at += 7) {
    std::string mutated = whole;
    mutated[at] = static_cast<char>(mutated[at] ^ 0x41);
    const auto file = dir.write("mutated.h5", mutated);
    try {
      const WindowLosses read = read_window_losses(file);
      EXPECT_EQ(read.loss_sum, example().loss_sum) << "byte " << at;
      EXPECT_EQ(read.counted, example().counted) << "byte " << at;
      EXPECT_EQ(read.tokens, example().tokens) << "byte " << at;
      EXPECT_EQ(read.validation_id, example().validation_id) << "byte " << at;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("mutated.h5")) << "byte " << at;
    }
  }
}

TEST(WindowLosses, AFileThatCannotBeWrittenIsNamedAndNothingStays) {
  const test::TempDir dir;
  dir.write("validation", "a file where the folder should be");
  EXPECT_THROW(write_window_losses(dir.path(), example()), Error);
}

}  // namespace
}  // namespace cplm
