// RULER's scores, its files however damaged, and the questions that we make for it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "cplm/base.h"
#include "cplm/retrieval_text.h"
#include "cplm/tokenizer.h"
#include "support/temp_dir.h"
#include "support/tokenizer_file.h"
#include "tasks/ruler_data.h"
#include "tasks/ruler_tasks.h"

namespace cplm::test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

TEST(RulerScore, IsTheShareOfReferencesFound) {
  EXPECT_EQ(ruler_score("niah_single_1", "it is 1234567.", {"1234567"}), 100);
  EXPECT_EQ(ruler_score("niah_single_1", "it is 123456", {"1234567"}), 0);
  EXPECT_EQ(ruler_score("vt", "AAAAA, bbbbb", {"aaaaa", "BBBBB", "CCCCC", "DDDDD"}), 50);
  EXPECT_EQ(ruler_score("qa_1", "in Paris", {"London", "paris"}), 100) << "one is enough";
  EXPECT_EQ(ruler_score("qa_2", "", {"London"}), 0);
  EXPECT_EQ(ruler_score("cwe", "anything", {""}), 100) << "as Python's `in`";
}

TEST(RulerScore, CaseIsIgnoredBeyondAscii) {
  EXPECT_EQ(lower_case("ÀÉÖ×ß ŁĄŹ ΔΩΊΌΏ ЖЁЯ Ÿ 漢字"), "àéö×ß łąź δωίόώ жёя ÿ 漢字");
  EXPECT_EQ(ruler_score("qa_1", "CAFÉ ŁÓDŹ", {"café łódź"}), 100);
}

TEST(RulerScore, AnswersAreCleaned) {
  EXPECT_EQ(ruler_cleaned(" \n a\x01"
                          "b\tc \r\n"),
            "a\nb\nc");
  EXPECT_EQ(ruler_cleaned("\x02"), "");
}

TEST(RulerTasks, HaveTheirAnswerLengths) {
  EXPECT_THAT(ruler_tasks(), SizeIs(13));
  EXPECT_EQ(ruler_tasks()[kRulerNeedleTasks], "vt");
  EXPECT_EQ(ruler_answer_tokens("niah_multikey_1_filler"), 128);
  EXPECT_EQ(ruler_answer_tokens("vt"), 30);
  EXPECT_EQ(ruler_answer_tokens("cwe"), 120);
  EXPECT_EQ(ruler_answer_tokens("fwe"), 50);
  EXPECT_EQ(ruler_answer_tokens("qa_2"), 32);
  EXPECT_EQ(ruler_answer_tokens("niahs"), std::nullopt);
}

class RulerFiles : public testing::Test {
 protected:
  std::string message(const std::string& name) const {
    try {
      find_ruler_files({(dir_ / name).string()}, 0);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadData);
      return error.what();
    }
    return "";
  }
  void write(const std::string& name, const std::string& text) { dir_.write(name, text); }
  TempDir dir_;
  const std::string good_ = R"({"index": 3, "input": "a ", "outputs": ["b"], "length": 77})";
};

TEST_F(RulerFiles, AreFoundInFoldersAsRulerWritesThem) {
  write("model/synthetic/8192/data/vt/validation.jsonl", good_ + "\n\n" + good_ + "\n");
  write("model/synthetic/4096/data/qa_1/validation.jsonl", good_);
  write("model/synthetic/4096/data/niah_single_1/validation.jsonl", good_);
  write("model/synthetic/4096/pred/niah_single_1.jsonl", "not read");
  const auto files = find_ruler_files({(dir_ / "model").string()}, 0);
  ASSERT_THAT(files, SizeIs(3));
  EXPECT_EQ(files[0].task, "niah_single_1");
  EXPECT_EQ(files[0].length, 4096);
  EXPECT_EQ(files[1].task, "qa_1");
  EXPECT_EQ(files[2].length, 8192);
  EXPECT_EQ(files[2].rows, 2);
}

TEST_F(RulerFiles, OneFileHasTheTaskInItsNameAndTheLengthInItsRows) {
  write("x/fwe.jsonl", good_);
  const auto files = find_ruler_files({(dir_ / "x/fwe.jsonl").string()}, 0);
  ASSERT_THAT(files, SizeIs(1));
  EXPECT_EQ(files[0].task, "fwe");
  EXPECT_EQ(files[0].length, 77);
}

TEST_F(RulerFiles, RowsAreReadAsTheyAre) {
  write("vt.jsonl",
        R"({"input": "a\n", "answer_prefix": " b", "outputs": ["c", "d"], "others": {"x": 1}})");
  const auto rows = read_ruler_file(dir_ / "vt.jsonl", 0);
  ASSERT_THAT(rows, SizeIs(1));
  EXPECT_EQ(rows[0].prompt, "a\n b");
  EXPECT_THAT(rows[0].outputs, ElementsAre("c", "d"));
  EXPECT_EQ(rows[0].index, 0);
  EXPECT_EQ(rows[0].others["x"], 1);
  EXPECT_EQ(rows[0].truncation, -1);
}

TEST_F(RulerFiles, DamageIsToldWithItsLine) {
  const auto told = [&](const std::string& line) {
    write("4/vt/validation.jsonl", good_ + "\n" + line + "\n");
    return message("4");
  };
  EXPECT_THAT(told("{\"input\": "), AllOf(HasSubstr("line 2"), HasSubstr("damaged JSON")));
  EXPECT_THAT(told("[]"), HasSubstr("expected a JSON object"));
  EXPECT_THAT(told(R"({"outputs": ["b"]})"), HasSubstr("a field \"input\""));
  EXPECT_THAT(told(R"({"input": 3, "outputs": ["b"]})"), HasSubstr("text as \"input\""));
  EXPECT_THAT(told(R"({"input": "a"})"), HasSubstr("a field \"outputs\""));
  EXPECT_THAT(told(R"({"input": "a", "outputs": []})"), HasSubstr("no text"));
  EXPECT_THAT(told(R"({"input": "a", "outputs": "b"})"), HasSubstr("found string"));
  EXPECT_THAT(told(R"({"input": "a", "outputs": [1]})"), HasSubstr("texts in \"outputs\""));
  EXPECT_THAT(told(R"({"input": "a", "answer_prefix": [], "outputs": ["b"]})"),
              HasSubstr("answer_prefix"));
  EXPECT_EQ(told(good_), "");
}

TEST_F(RulerFiles, WhatIsNoTaskOfRulerIsRefused) {
  write("empty/vt/validation.jsonl", "\n");
  EXPECT_THAT(message("empty"), HasSubstr("found an empty file"));
  write("other/validation.jsonl", good_);
  EXPECT_THAT(message("other"), HasSubstr("beginning with niah, vt, cwe, fwe or qa"));
  make_folders(dir_ / "nothing");
  EXPECT_THAT(message("nothing"), HasSubstr("below the folder"));
  EXPECT_THAT(message("none.jsonl"), HasSubstr("no such file"));
  write("twice/a/4096/vt/validation.jsonl", good_);
  write("twice/b/4096/vt/validation.jsonl", good_);
  EXPECT_THAT(message("twice"), HasSubstr("each task and length once"));
}

class MakeRuler : public testing::Test {
 protected:
  MakeRuler() { dir_.write("tokenizer.json", byte_tokenizer_json({{"t", "h"}, {"e", "r"}})); }
  RulerOptions options(const std::string& output) const {
    RulerOptions options;
    options.output = dir_ / output;
    options.tokenizer = dir_ / "tokenizer.json";
    options.samples = 3;
    return options;
  }
  std::string message(const RulerOptions& options) const {
    try {
      make_ruler(options, [](int64_t, int64_t) {});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadConfig);
      return error.what();
    }
    return "";
  }
  TempDir dir_;
};

TEST_F(MakeRuler, EveryTaskIsAsLongAsFits) {
  RulerOptions made = options("made");
  made.lengths = {9000, 16384};
  make_ruler(made, [](int64_t, int64_t) {});
  Tokenizer tokenizer(made.tokenizer);
  const auto files = find_ruler_files({made.output.string()}, 0);
  ASSERT_THAT(files, SizeIs(2 * ruler_task_names().size()));
  for (const RulerFile& file : files) {
    SCOPED_TRACE(file.path);
    EXPECT_EQ(file.rows, 3);
    const auto rows = read_ruler_file(file.path, 0);
    EXPECT_NE(rows[0].prompt, rows[1].prompt);
    for (const RulerRow& row : rows) {
      const auto tokens = static_cast<int64_t>(tokenizer.encode(row.prompt).size()) +
                          *ruler_answer_tokens(file.task);
      EXPECT_EQ(row.length, tokens);
      EXPECT_LE(tokens, file.length);
      EXPECT_GT(tokens, file.length - 250) << "less than a unit is left";
      for (const std::string& output : row.outputs) EXPECT_THAT(row.prompt, HasSubstr(output));
    }
  }
}

TEST_F(MakeRuler, EqualOptionsGiveEqualBytes) {
  for (const char* name : {"a", "b", "c"}) {
    RulerOptions made = options(name);
    made.tasks = {"vt", "niah_multikey_2"};
    made.lengths = {2048};
    made.seed = name[0] == 'c' ? 1 : 2;
    make_ruler(made, [](int64_t, int64_t) {});
  }
  const auto text = [&](const std::string& name) {
    return read_file(dir_ / name / "2048/vt/validation.jsonl") +
           read_file(dir_ / name / "2048/niah_multikey_2/validation.jsonl");
  };
  EXPECT_EQ(text("a"), text("b"));
  EXPECT_NE(text("a"), text("c"));
}

TEST_F(MakeRuler, WhatDoesNotFitIsRefused) {
  RulerOptions made = options("out");
  made.lengths = {100};
  made.tasks = {"niah_single_1"};
  EXPECT_THAT(message(made), AllOf(HasSubstr("--lengths: expected at least"), HasSubstr("100")));
  EXPECT_FALSE(fs::exists(made.output)) << "whole or not at all";
  made.tasks = {"niah_single_9"};
  EXPECT_THAT(message(made), HasSubstr("did you mean niah_single_1?"));
  made.tasks = {"vt", "vt"};
  EXPECT_THAT(message(made), HasSubstr("each task once"));
  made.tasks = {"vt"};
  dir_.write("out/file", "x");
  EXPECT_THAT(message(made), HasSubstr("a new or an empty folder"));
}

TEST_F(MakeRuler, NeedleTextsEndWithTheAnswer) {
  const fs::path output = dir_ / "sub/texts.jsonl";
  make_needle_texts({.output = output, .documents = 20, .min_sentences = 2, .max_sentences = 5},
                    [](int64_t, int64_t) {});
  std::istringstream lines(read_file(output));
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const auto text = nlohmann::json::parse(line).at("text").get<std::string>();
    const std::string number = text.substr(text.size() - 8, 7);
    EXPECT_LT(text.find(number), text.size() - 8) << "in the filler too";
    EXPECT_EQ(text.back(), '.');
  }
  EXPECT_EQ(count, 20);
  const fs::path answers = dir_ / "answers.jsonl";
  make_needle_texts({.output = answers,
                     .documents = 20,
                     .min_sentences = 2,
                     .max_sentences = 5,
                     .conversations = true},
                    [](int64_t, int64_t) {});
  std::istringstream texts(read_file(output)), conversations(read_file(answers));
  count = 0;
  for (std::string text, line; std::getline(conversations, line) && std::getline(texts, text);
       ++count) {
    const auto messages = nlohmann::json::parse(line).at("messages");
    ASSERT_EQ(messages.size(), 2);
    EXPECT_EQ(messages[0].at("role"), "user");
    EXPECT_EQ(messages[1].at("role"), "assistant");
    const auto question = messages[0].at("content").get<std::string>(),
               answer = messages[1].at("content").get<std::string>();
    EXPECT_EQ(nlohmann::json::parse(text).at("text"), question + "\n" + answer);
    EXPECT_EQ(question.back(), '?');
  }
  EXPECT_EQ(count, 20);
  EXPECT_THROW(make_needle_texts({.output = dir_ / "x.txt"}, {}), Error);
  EXPECT_THROW(make_needle_texts({.output = output, .min_sentences = 5, .max_sentences = 4}, {}),
               Error);
}

}  // namespace
}  // namespace cplm::test
