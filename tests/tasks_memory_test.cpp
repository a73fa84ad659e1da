// cplm eval memory: the figures of PROTOCOLS.md section 5.6 at 1.7B, windows, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cplm/base.h"
#include "cplm/decode.h"
#include "cplm/tasks.h"

namespace cplm::test {
namespace {

using testing::HasSubstr;

Subject subject_of(const std::string& name) {
  Subject subject;
  subject.name = name;
  subject.path = name + ".yaml";
  subject.config = load_config(std::string(CPLM_SOURCE_DIR) + "/configs/" + name + ".yaml");
  subject.identity = [name] { return name; };
  return subject;
}

TaskResult measure(const std::vector<std::string>& names, const std::string& arguments) {
  std::vector<Subject> subjects;
  for (const std::string& name : names) subjects.push_back(subject_of(name));
  TaskRun run;
  return parse_task("memory " + arguments)->run(subjects, run);
}

Json rows_of(const TaskResult& result, size_t subject) {
  return Json::parse(result.json)["subjects"][subject]["rows"];
}

TEST(MemoryTask, GivesTheFiguresAtOnePointSevenBillion) {
  const TaskResult result =
      measure({"1.7b-full-vanilla", "1.7b-sliding-cplm", "1.7b-hybrid-cplm", "1.7b-full-cplm"},
              "--lengths 4096");
  const Json full = rows_of(result, 0)[0], sliding = rows_of(result, 1)[0],
             hybrid = rows_of(result, 2)[0], copying = rows_of(result, 3)[0];
  const double kv = 98304;  // keys and values of a token, D = 2048
  EXPECT_EQ(full["keys_and_values"], 4096 * 98304 * 2);
  EXPECT_EQ(full["copy_keys"], 0);
  EXPECT_EQ(full["of_full_vanilla"], 1.0);
  EXPECT_FALSE(full.contains("documents_of_cache"));
  EXPECT_EQ(sliding["cache"], 256 * 98304 * 2 + 4096 * 2048 * 2);
  EXPECT_EQ(sliding["copy_ids"], 4096 * 4);
  EXPECT_DOUBLE_EQ(sliding["of_full_vanilla"].get<double>(),
                   (256 * kv + 4096 * 2048) / (4096 * kv));
  EXPECT_NEAR(1 / sliding["of_first"].get<double>(), 12.00, 0.005);
  EXPECT_NEAR(1 / hybrid["of_first"].get<double>(), 3.15, 0.005);
  EXPECT_DOUBLE_EQ(1 / copying["documents_of_cache"].get<double>(), 49.0);
  EXPECT_DOUBLE_EQ(1 / copying["documents_of_keys_and_values"].get<double>(), 48.0);
  EXPECT_THAT(result.table, HasSubstr("1/12.00"));
  EXPECT_THAT(result.table, HasSubstr("1/3.15"));
  EXPECT_THAT(result.table, HasSubstr("1/49.00"));
}

TEST(MemoryTask, GroupedKeysSaveLess) {  // PROTOCOLS.md: 1/8.9 and 1/9.1
  for (const auto& [size, want] : {std::pair{"135m", 8.9}, {"360m", 9.1}}) {
    const TaskResult result =
        measure({std::string(size) + "-sliding-cplm"}, "--lengths 4096 --bytes-per-number 4");
    EXPECT_NEAR(1 / rows_of(result, 0)[0]["of_full_vanilla"].get<double>(), want, 0.05) << size;
  }
}

TEST(MemoryTask, WindowsAreArithmetic) {
  const TaskResult result = measure({"135m-sliding-vanilla", "135m-full-vanilla"},
                                    "--windows 32,1024 --lengths 512,2048");
  const Json rows = rows_of(result, 0);
  ASSERT_EQ(rows.size(), 4u);
  const auto bytes = [&](size_t row) { return rows[row]["cache"].get<int64_t>(); };
  EXPECT_EQ(rows[1]["window"], 32);
  EXPECT_EQ(bytes(1), 32 * 11520 * 2);
  EXPECT_EQ(bytes(0), bytes(1));
  EXPECT_EQ(bytes(2), 512 * 11520 * 2) << "shorter than the window";
  EXPECT_EQ(bytes(3), 1024 * 11520 * 2);
  EXPECT_DOUBLE_EQ(rows[3]["of_first"].get<double>(), 4.0) << "of the first as configured, w 256";
  EXPECT_EQ(rows_of(result, 1).size(), 2u) << "nothing slides";
}

// 9 heads of 48 x 96 numbers in float32 and three inputs of each convolution, whatever the length.
TEST(MemoryTask, RecurrentStatesDoNotGrow) {
  const Json rows = rows_of(measure({"135m-recurrent-cplm"}, "--lengths 1024,65536"), 0);
  ASSERT_EQ(rows.size(), 2u);
  constexpr int64_t kStates = 23 * (9 * 48 * 96 * 4 + 3 * (2 * 432 + 864) * 2);
  for (size_t i = 0; i < 2; ++i) {
    const int64_t copy_keys = (i == 0 ? 1024 : 65536) * 576 * 2;
    EXPECT_EQ(rows[i]["states"], kStates);
    EXPECT_EQ(rows[i]["keys_and_values"], 0);
    EXPECT_EQ(rows[i]["cache"], kStates + copy_keys);
  }
}

TEST(MemoryTask, AsksForNoLengths) {
  const Json rows = rows_of(measure({"135m-full-cplm"}, ""), 0);
  ASSERT_EQ(rows.size(), 7u);
  EXPECT_EQ(rows[0]["length"], 1024);
  EXPECT_EQ(rows[6]["length"], 65536);
}

TEST(MemoryTask, RefusesWhatHasNoMeaning) {
  const auto message = [](const std::string& arguments) {
    try {
      measure({"135m-full-cplm"}, arguments);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadConfig);
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(message("--data x.h5"), HasSubstr("a config without weights"));
  EXPECT_THAT(message("--data x.h5 --windows 32"), HasSubstr("--windows"));
  EXPECT_THAT(message("--lengths 0"), HasSubstr("expected a whole number from 1"));
  EXPECT_THAT(message("--lengths x"), HasSubstr("expected a whole number from 1"));
}

}  // namespace
}  // namespace cplm::test
