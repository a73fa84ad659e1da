// What `cplm compare` prints and writes, and the Python child that draws its pictures.
#include "runs/compare_output.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/python_script.h"
#include "runs/text_table.h"
#include "support/fake_run.h"
#include "support/temp_dir.h"

namespace cplm {
namespace {

using nlohmann::json;
using test::FakeRun;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class CompareOutputTest : public ::testing::Test {
 protected:
  test::TempDir dir_;
  std::vector<std::filesystem::path> dirs_ = {dir_ / "a", dir_ / "b"};

  CompareOutputTest() {
    FakeRun{.name = "vanilla",
            .losses = {{20, 6.0}, {40, 5.0}, {60, 4.5}, {80, 4.2}, {100, 3.9}},
            .window_loss_sums = {64, 128, 64, 128}}
        .write_to(dirs_[0]);
    FakeRun{.name = "copy, \"paste\"",
            .head = "cplm",
            .losses = {{20, 5.0}, {40, 4.0}, {60, 3.5}, {80, 3.3}, {100, 3.0}},
            .window_loss_sums = {48, 112, 32, 112}}
        .write_to(dirs_[1]);
  }
  Comparison comparison() const { return compare(load_compared_runs(dirs_)); }
};

TEST_F(CompareOutputTest, TheTableHoldsEveryFigure) {
  const std::string table = comparison_table(comparison());
  EXPECT_THAT(table, HasSubstr("vanilla        vanilla      1  16,000  3.9000       49.40"));
  EXPECT_THAT(table, HasSubstr("3.5000  -1.2500 [-1.7400, -0.7600]"));
  EXPECT_THAT(table, HasSubstr("before the cooldown: loss 4.2000, which took the baseline 12,800"));
  EXPECT_THAT(table, HasSubstr("5,760  45.0 %       7,040  44.0 %"));
  EXPECT_THAT(table, HasSubstr("normal approximation over 4 validation windows"));
}

TEST_F(CompareOutputTest, TheTableShowsTheSpreadOfSeeds) {
  FakeRun{.name = "second",
          .head = "cplm",
          .seed = 2,
          .losses = {{20, 9.0}, {40, 9.0}, {60, 9.0}, {80, 9.0}, {100, 3.2}}}
      .write_to(dir_ / "c");
  dirs_.push_back(dir_ / "c");
  EXPECT_THAT(comparison_table(comparison()),
              AllOf(HasSubstr("3.1000 +- 0.1414"), HasSubstr("- (45.0 % to not reached)"),
                    HasSubstr("(44.0 % to 97.6 %)")));
}

TEST_F(CompareOutputTest, TheJsonHoldsNumbersAndCurves) {
  const json object = json::parse(comparison_json(comparison()));
  EXPECT_EQ(object.at("baseline"), "vanilla");
  EXPECT_EQ(object.at("targets").at("before_cooldown").at("tokens"), 12800.0);
  const json& arm = object.at("arms").at(1);
  EXPECT_NEAR(arm.at("before_cooldown").at("share").get<double>(), 0.45, 1e-12);
  EXPECT_TRUE(arm.at("at_end").at("reached").get<bool>());
  EXPECT_EQ(arm.at("at_end").at("by_run").size(), 1u);
  EXPECT_EQ(arm.at("difference").at("mean"), -1.25);
  EXPECT_EQ(arm.at("cooldown_tokens"), 12800.0);
  EXPECT_EQ(arm.at("curve").size(), 5u);
  EXPECT_EQ(arm.at("curve").at(0).at("loss").at("mean"), 5.0);
  EXPECT_EQ(object.at("runs").at(1).at("validations").at(4).at("loss_no_copy"), 3.5);
  EXPECT_TRUE(object.at("arms").at(0).at("at_end").is_null());
}

TEST_F(CompareOutputTest, TheCsvHoldsOneValidationALine) {
  const std::string csv = comparison_csv(comparison());
  EXPECT_EQ(csv.substr(0, csv.find('\n')),
            "run,arm,head,seed,step,tokens,loss,perplexity,counted_tokens,loss_no_copy,copy_gate,"
            "sink_mass,copy_weight");
  EXPECT_THAT(csv, HasSubstr("\nvanilla,vanilla,vanilla,1,20,3200,6.0,0.0,64,,,,\n"));
  EXPECT_THAT(csv,
              HasSubstr("\n\"copy, \"\"paste\"\"\",\"copy, \"\"paste\"\"\",cplm,1,20,3200,5.0,0.0,"
                        "64,5.5,0.25,0.5,0.125\n"));
}

TEST_F(CompareOutputTest, WritesEveryFileAndPictures) {
  const auto out = dir_ / "out folder";
  ::testing::internal::CaptureStdout();
  compare_runs({.runs = dirs_, .out = out});
  EXPECT_THAT(::testing::internal::GetCapturedStdout(), HasSubstr("Final validation"));
  EXPECT_EQ(read_file(out / "compare.json"), comparison_json(comparison()));
  EXPECT_EQ(read_file(out / "compare.csv"), comparison_csv(comparison()));
  EXPECT_EQ(read_file(out / "compare.png").substr(1, 3), "PNG");
  EXPECT_THAT(read_file(out / "compare.svg"),
              AllOf(HasSubstr("<svg"), Not(HasSubstr("<dc:date>"))));
}

// A matplotlib that cannot be imported stands in front of the real one.
TEST_F(CompareOutputTest, WithoutMatplotlibNumbersStayAndTheMessageSaysWhatToDo) {
  dir_.write("path/matplotlib/__init__.py", "raise ImportError('none here')\n");
  ::setenv("PYTHONPATH", (dir_ / "path").c_str(), 1);
  ::testing::internal::CaptureStdout();
  std::string message;
  try {
    compare_runs({.runs = dirs_, .out = dir_ / "out"});
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kFailed);
    message = error.what();
  }
  ::testing::internal::GetCapturedStdout();
  ::unsetenv("PYTHONPATH");
  EXPECT_THAT(message,
              AllOf(HasSubstr("compare.json and compare.csv were written"),
                    HasSubstr("cannot import matplotlib (none here): use .venv/bin/python")));
  EXPECT_TRUE(std::filesystem::exists(dir_ / "out/compare.csv"));
}

TEST(PythonScript, PassesArgumentsUnchangedAndReturnsWhatIsPrinted) {
  const test::TempDir root;
  root.write("scripts/echo.py", "import sys\nprint(sys.argv[1:])\n");
  EXPECT_EQ(run_python_script(root.path(), "echo.py", {"a b", "$HOME;", "'\""}),
            "['a b', '$HOME;', '\\'\"']\n");
}

TEST(PythonScript, FailureGivesTheLastLine) {
  const test::TempDir root;
  root.write("scripts/bad.py", "print('first')\nraise ValueError('the reason')\n");
  root.write("scripts/killed.py", "import os\nos.kill(os.getpid(), 9)\n");
  const auto message = [&](const std::string& script) -> std::string {
    try {
      run_python_script(root.path(), script, {});
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(message("bad.py"), "scripts/bad.py failed with exit code 1: ValueError: the reason");
  EXPECT_EQ(message("killed.py"), "scripts/killed.py was ended by signal 9: it printed nothing");
  EXPECT_THAT(message("absent.py"), HasSubstr("absent.py does not exist"));
}

TEST(PythonScript, PrefersTheProjectsOwnPython) {
  const test::TempDir root;
  EXPECT_EQ(find_python(root.path()), "python3");
  root.write("scripts/x.py", "");
  const auto own = root.write(".venv/bin/python", "not a program");
  EXPECT_EQ(find_python(root.path()), own);
  EXPECT_THROW(run_python_script(root.path(), "x.py", {}), Error);  // not executable
  EXPECT_TRUE(std::filesystem::exists(project_root() / "scripts/plot_compare.py"));
}

TEST(CompareRules, NameTheFormulaAndTheBaseline) {
  EXPECT_THAT(compare_rules(), AllOf(HasSubstr("mean -+ 1.96 se"), HasSubstr("baseline")));
}

TEST(TextTable, AlignsByCharactersNotBytes) {
  TextTable table({{"name", Align::kLeft}, {"n", Align::kRight}});
  table.add_row({"\xC3\xA9", "12"});
  table.add_row({"abcde", "3"});
  EXPECT_EQ(table.text(), "name    n\n-----  --\n\xC3\xA9      12\nabcde   3\n");
  EXPECT_THROW(table.add_row({"one cell"}), Error);
}

}  // namespace
}  // namespace cplm
