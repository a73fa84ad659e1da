// Lines of kind "settings" in metrics.jsonl: one for each step at which a run went on with others,
// however often it was killed there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cplm/base.h"
#include "cplm/config_changes.h"
#include "cplm/runs.h"
#include "support/temp_dir.h"

namespace cplm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kLine[] =
    R"({"kind":"settings","step":20,"tokens":200,"changes":[{"key":"a","before":"1","now":"2"}]})"
    "\n";

class SettingsTest : public ::testing::Test {
 protected:
  test::TempDir dir_;

  std::string text() const { return read_file(dir_ / "metrics.jsonl"); }
  std::string stale() const {
    const auto path = dir_ / "metrics.stale.jsonl";
    return std::filesystem::exists(path) ? read_file(path) : "";
  }
  // At step 20; the checkpoint's values against those of now, absent ones as "".
  void resume(const std::string& a_saved, const std::string& a_now, const std::string& b_saved = "",
              const std::string& b_now = "") const {
    ResumePoint point{20, 200, {}, {{"a", a_now}, {"c", "9"}}};
    if (!b_now.empty()) point.settings["b"] = b_now;
    const auto shown = [](const std::string& text) { return text.empty() ? kNotGiven : text; };
    if (a_saved != a_now) point.changes.push_back({"a", a_saved, a_now});
    if (b_saved != b_now) point.changes.push_back({"b", shown(b_saved), shown(b_now)});
    MetricsWriter(dir_.path(), point);
  }
  void start(const std::string& more = "") const {
    dir_.write("metrics.jsonl", "{\"step\":20}\n" + more);
  }
};

TEST_F(SettingsTest, AreWrittenBehindTheLinesThatStay) {
  start("{\"step\":21}\n");
  resume("1", "2");
  EXPECT_EQ(text(), std::string("{\"step\":20}\n") + kLine);
  EXPECT_EQ(stale(), "{\"step\":21}\n");
}

TEST_F(SettingsTest, OfARunThatBeginsWithAnothersCheckpointAreItsFirstLine) {
  resume("1", "2");
  EXPECT_EQ(text(), kLine);
}

TEST_F(SettingsTest, ThatAreAsTheyWereLeaveTheFileUntouched) {
  start();
  const auto before = std::filesystem::last_write_time(dir_ / "metrics.jsonl");
  resume("1", "1");
  EXPECT_EQ(text(), "{\"step\":20}\n");
  EXPECT_EQ(std::filesystem::last_write_time(dir_ / "metrics.jsonl"), before);
}

TEST_F(SettingsTest, OfARunKilledBehindThemAreNotWrittenTwice) {
  start();
  resume("1", "2");
  resume("1", "2");
  EXPECT_EQ(text(), std::string("{\"step\":20}\n") + kLine);
  EXPECT_EQ(stale(), "");
}

TEST_F(SettingsTest, ThatAreSetBackBeforeAStepWasSavedGo) {
  start();
  resume("1", "2");
  resume("1", "1");
  EXPECT_EQ(text(), "{\"step\":20}\n");
  EXPECT_EQ(stale(), kLine);
}

TEST_F(SettingsTest, ThatAreChangedOnceMoreBeforeAStepWasSavedCountFromTheCheckpoint) {
  start();
  resume("1", "2");
  resume("1", "3", "", "x");
  EXPECT_EQ(text(),
            "{\"step\":20}\n"
            R"({"kind":"settings","step":20,"tokens":200,"changes":[{"key":"a","before":"1",)"
            R"("now":"3"},{"key":"b","before":")"
            "(not given)"
            R"(","now":"x"}]})"
            "\n");
}

// train.steps was lowered to the step of the checkpoint: it was saved again, with that.
TEST_F(SettingsTest, OfACheckpointSavedAgainWithoutAStepCountFromTheLastStep) {
  start();
  resume("1", "2");
  resume("2", "2");
  EXPECT_EQ(text(), std::string("{\"step\":20}\n") + kLine);
  resume("2", "1");
  EXPECT_EQ(text(), "{\"step\":20}\n");
}

TEST_F(SettingsTest, OfEarlierStepsStay) {
  const std::string earlier =
      R"({"kind":"settings","step":10,"tokens":100,"changes":[{"key":"a","before":"0","now":"1"}]})"
      "\n";
  dir_.write("metrics.jsonl", earlier + "{\"step\":20}\n");
  resume("1", "2");
  EXPECT_EQ(text(), earlier + "{\"step\":20}\n" + kLine);
  MetricsWriter(dir_.path(), 20);  // who says nothing of settings leaves them
  EXPECT_EQ(text(), earlier + "{\"step\":20}\n" + kLine);
  MetricsWriter(dir_.path(), 10);
  EXPECT_EQ(text(), earlier);
}

TEST_F(SettingsTest, DamagedOnesAreSetAside) {
  const std::string damaged = R"({"kind":"settings","step":20,"changes":[{"key":1}]})"
                              "\n";
  start(damaged);
  resume("1", "2");
  EXPECT_EQ(text(), std::string("{\"step\":20}\n") + kLine);
  EXPECT_EQ(stale(), damaged);
}

TEST_F(SettingsTest, ComeBack) {
  resume("1", "2");
  const Metrics metrics = read_metrics(dir_.path());
  ASSERT_EQ(metrics.settings.size(), 1u);
  EXPECT_EQ(metrics.settings[0], (SettingsRecord{20, 200, {{"a", "1", "2"}}}));
}

TEST_F(SettingsTest, OfAnotherFormAreNamedByFileAndLine) {
  start("{\"kind\":\"settings\",\"step\":20,\"tokens\":1,\"changes\":[{\"key\":\"a\"}]}\n");
  dir_.write("metrics.jsonl", text().substr(text().find('\n') + 1));
  try {
    read_metrics(dir_.path());
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadData);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("metrics.jsonl:1: expected \"step\", \"tokens\" and"),
                                    HasSubstr("found {\"changes\"")));
  }
}

}  // namespace
}  // namespace cplm
