// Files of requests: what they hold, what is refused, their tokens and their accuracies.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "cplm/base.h"
#include "support/temp_dir.h"
#include "support/tokenizer_file.h"
#include "tasks/request_file.h"
#include "tasks/request_metrics.h"
#include "tasks/request_tokens.h"

namespace cplm::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

class Requests : public testing::Test {
 protected:
  RequestFile read(const std::string& text) const {
    write_file_atomic(dir_.path() / "items.jsonl", text);
    return read_request_file(path());
  }
  std::string path() const { return (dir_.path() / "items.jsonl").string(); }
  // Of all items' pairs; ids are 1 + byte, and "ab" is 257.
  std::vector<TokenRequest> tokens(const std::string& text) const {
    write_file_atomic(dir_.path() / "tokenizer.json", byte_tokenizer_json({{"a", "b"}}));
    return tokenize({read(text)}, dir_.path() / "tokenizer.json", {100, 258});
  }
  template <class Action>
  std::string message(const Action& action) const {
    try {
      action();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadData) << error.what();
      EXPECT_THAT(error.what(), Not(HasSubstr("\n")));
      return error.what();
    }
    return "no error";
  }
  // Of a file whose second line is wrong.
  std::string refusal(const std::string& line) const {
    const std::string good = R"({"context":"x","continuation":"y"})";
    const std::string found = message([&] { read(good + "\n" + line + "\n" + good + "\n"); });
    EXPECT_THAT(found, HasSubstr(path() + ":2: ")) << line;
    return found;
  }
  TempDir dir_;
};

TEST_F(Requests, HoldsChoicesPairsAndIds) {
  const RequestFile file = read(R"({"id":"a","context":"C","choices":["x","yé"],"gold":1}
{"context":"C","delimiter":" ","choices":["x","y","z"],"gold":[0,2]}

{"contexts":["A","B"],"choices":["x","x"],"gold":0}
{"id":7,"context":"","continuation":"x"}
{"context":[1,2],"choices":[[3],[4,5]],"gold":0})");
  EXPECT_EQ(file.name, "items");
  ASSERT_EQ(file.items.size(), 5U);
  EXPECT_EQ(file.items[0].id, "a");
  EXPECT_EQ(file.items[0].pairs[1].bytes, 3);
  EXPECT_EQ(file.items[0].pairs[1].characters, 2);
  EXPECT_THAT(file.items[0].is_gold, ElementsAre(0, 1));
  EXPECT_EQ(std::get<std::string>(file.items[1].pairs[2].continuation), " z");
  EXPECT_EQ(file.items[1].pairs[2].bytes, 1) << "without the delimiter";
  EXPECT_THAT(file.items[1].is_gold, ElementsAre(1, 0, 1));
  EXPECT_EQ(file.items[2].line, 4);
  EXPECT_EQ(file.items[2].id, "4");
  EXPECT_EQ(std::get<std::string>(file.items[2].pairs[1].context), "B");
  EXPECT_EQ(file.items[3].id, "7");
  EXPECT_FALSE(file.items[3].has_choices());
  EXPECT_THAT(std::get<std::vector<int64_t>>(file.items[4].pairs[1].continuation),
              ElementsAre(4, 5));
}

TEST_F(Requests, RefusesWithFileAndLine) {
  EXPECT_THAT(refusal("{\"context\":\"x\""), HasSubstr("expected a JSON object in one line"));
  EXPECT_THAT(refusal("{\"context\":\"\xff\"}"),
              HasSubstr("expected UTF-8, found something else at byte 12"));
  EXPECT_THAT(refusal(R"({"context":"\ud800","continuation":"x"})"), HasSubstr("JSON"));
  EXPECT_THAT(refusal("[1]"), HasSubstr("expected a JSON object, found array"));
  EXPECT_THAT(refusal(R"({"context":"x","choice":["a","b"],"gold":0})"),
              HasSubstr("unknown key \"choice\""));
  EXPECT_THAT(refusal(R"({"context":"x","choices":[],"gold":0})"), HasSubstr("two or more"));
  EXPECT_THAT(refusal(R"({"context":"x","choices":["a"],"gold":0})"), HasSubstr("two or more"));
  EXPECT_THAT(refusal(R"({"context":"x","choices":"ab","gold":0})"), HasSubstr("two or more"));
  EXPECT_THAT(refusal(R"({"context":"x","choices":["a",""],"gold":0})"),
              HasSubstr("\"choices\"[1]: is empty"));
  EXPECT_THAT(refusal(R"({"context":"x","choices":["a","b"],"gold":2})"),
              HasSubstr("whole number from 0 to 1, found 2"));
  EXPECT_THAT(refusal(R"({"context":"x","choices":["a","b"],"gold":-1})"), HasSubstr("found -1"));
  EXPECT_THAT(refusal(R"({"context":"x","choices":["a","b"],"gold":true})"),
              HasSubstr("found true"));
  EXPECT_THAT(refusal(R"({"context":"x","choices":["a","b"],"gold":[]})"),
              HasSubstr("expected a right choice"));
  EXPECT_THAT(refusal(R"({"context":"x","choices":["a","b"]})"), HasSubstr("expected \"gold\""));
  EXPECT_THAT(refusal(R"({"context":"x","continuation":""})"), HasSubstr("is empty"));
  EXPECT_THAT(refusal(R"({"context":"x","continuation":"a","choices":["a","b"],"gold":0})"),
              HasSubstr("either \"choices\""));
  EXPECT_THAT(refusal(R"({"context":"x"})"), HasSubstr("either \"choices\""));
  EXPECT_THAT(refusal(R"({"continuation":"a"})"), HasSubstr("expected a \"context\""));
  EXPECT_THAT(refusal(R"({"context":"x","continuation":"a","gold":0})"), HasSubstr("gold"));
  EXPECT_THAT(refusal(R"({"contexts":["x"],"choices":["a","b"],"gold":0})"),
              HasSubstr("expected a list of 2"));
  EXPECT_THAT(refusal(R"({"context":"x","continuation":[1]})"), HasSubstr("expected text with"));
  EXPECT_THAT(refusal(R"({"context":[1],"continuation":[-1]})"), HasSubstr("found -1"));
  EXPECT_THAT(refusal(R"({"context":[1],"continuation":[1.5]})"), HasSubstr("found 1.5"));
  EXPECT_THAT(refusal(R"({"context":[1],"continuation":[1e30]})"), HasSubstr("found 1e+30"));
  EXPECT_THAT(refusal(R"({"context":[1],"continuation":[2],"delimiter":" "})"),
              HasSubstr("list of ids"));
  EXPECT_THAT(refusal(R"({"id":[1],"context":"x","continuation":"y"})"), HasSubstr("\"id\""));
  EXPECT_THAT(message([&] { read("\n \n"); }), HasSubstr("it is empty"));
  EXPECT_THAT(message([] { read_request_file("/nonexistent/items.jsonl"); }),
              HasSubstr("/nonexistent/items.jsonl"));
}

TEST_F(Requests, FilesOfOneNameAreNamedByTheirPaths) {
  make_folders(dir_.path() / "b");
  const std::string line = R"({"context":"x","continuation":"y"})";
  write_file_atomic(dir_.path() / "b/items.jsonl", line);
  read(line);
  const auto files = read_request_files({path(), (dir_.path() / "b/items.jsonl").string()});
  EXPECT_EQ(files[0].name, path());
  EXPECT_NE(files[0].name, files[1].name);
}

TEST(TrailingWhitespace, IsPythons) {
  EXPECT_EQ(trailing_whitespace(""), 0U);
  EXPECT_EQ(trailing_whitespace("a b"), 0U);
  EXPECT_EQ(trailing_whitespace("a \t\r\n\v\f\x1c\x1f"), 8U);
  EXPECT_EQ(trailing_whitespace("a\xc2\xa0"), 2U);         // U+00A0
  EXPECT_EQ(trailing_whitespace("a\xc2\x85"), 2U);         // U+0085
  EXPECT_EQ(trailing_whitespace("a \xe2\x80\x83 "), 5U);   // U+2003
  EXPECT_EQ(trailing_whitespace("a\xe3\x80\x80"), 3U);     // U+3000
  EXPECT_EQ(trailing_whitespace("a\xe2\x80\x8b"), 0U);     // U+200B is none
  EXPECT_EQ(trailing_whitespace("a\xc3\xa9"), 0U);         // é
  EXPECT_EQ(trailing_whitespace("\xf0\x9f\x98\x80"), 0U);  // an emoji
  EXPECT_EQ(trailing_whitespace("  "), 2U);
}

TEST_F(Requests, DividesTokensAsTheHarnessDoes) {
  const auto found = tokens(R"({"context":"x ","continuation":"y"}
{"context":"xa","continuation":"bc"}
{"context":"","continuation":"yz"}
{"context":" ","continuation":"y"}
{"context":"","continuation":"<|endoftext|>y"}
{"context":[5,6],"choices":[[7],[8,9]],"gold":0})");
  ASSERT_EQ(found.size(), 7U);
  EXPECT_THAT(found[0].ids, ElementsAre('x' + 1, ' ' + 1, 'y' + 1));
  EXPECT_EQ(found[0].continuation, 2) << "the blank moves to the continuation";
  EXPECT_THAT(found[1].ids, ElementsAre('x' + 1, 257, 'c' + 1));
  EXPECT_EQ(found[1].continuation, 1) << "behind as many tokens as the context has alone";
  EXPECT_THAT(found[2].ids, ElementsAre(0, 'y' + 1, 'z' + 1));
  EXPECT_EQ(found[2].continuation, 2);
  EXPECT_THAT(found[3].ids, ElementsAre(0, ' ' + 1, 'y' + 1));
  EXPECT_THAT(found[4].ids, ElementsAre(0, 'y' + 1));
  EXPECT_EQ(found[4].continuation, 1);
  EXPECT_THAT(found[6].ids, ElementsAre(5, 6, 8, 9));
  EXPECT_EQ(found[6].continuation, 2);
}

TEST_F(Requests, CutsContextsFromTheLeft) {
  const std::string lines = R"({"context":[1,2,3],"continuation":[4,5]}
{"context":[7,1,2,3],"continuation":[4,5]})";
  const auto fits = tokenize({read(lines)}, {}, {4, 258});
  EXPECT_EQ(fits[0].ids.size(), 5U);
  EXPECT_FALSE(fits[0].is_cut);
  EXPECT_THAT(fits[1].ids, ElementsAre(1, 2, 3, 4, 5));
  EXPECT_TRUE(fits[1].is_cut);
  EXPECT_THAT(tokenize({read(lines)}, {}, {2, 258})[1].ids, ElementsAre(3, 4, 5));
  EXPECT_THAT(message([&] {
                tokenize({read(lines)}, {}, {1, 258});
              }),
              AllOf(HasSubstr(path() + ":1: "), HasSubstr("2 tokens"), HasSubstr("--context")));
}

TEST_F(Requests, RefusesWhatHasNoTokens) {
  EXPECT_THAT(message([&] { tokens(R"({"context":"a","continuation":"b"})"); }),
              HasSubstr("no token of its own"));
  const RequestFile large = read(R"({"context":[1],"choices":[[2],[258]],"gold":0})");
  EXPECT_THAT(message([&] {
                tokenize({large}, {}, {9, 258});
              }),
              AllOf(HasSubstr(":1: choice 1: "), HasSubstr("below 258"), HasSubstr("found 258")));
  const RequestFile texts = read(R"({"context":"a","continuation":"c"})");
  EXPECT_THAT(message([&] { tokenize({texts}, {}, {9, 258}); }), HasSubstr("no tokenizer.json"));
  const RequestFile ids = read(R"({"context":[],"continuation":[1]})");
  EXPECT_THAT(message([&] { tokenize({ids}, {}, {9, 258}); }), HasSubstr("context is empty"));
}

TEST_F(Requests, ChoosesByLogProbAByteAndACharacter) {
  const RequestFile file = read(R"({"context":"x","choices":["é","yyy","z"],"gold":1})");
  const RequestItem& item = file.items[0];
  std::vector<RequestScore> scores = {{-2.5, false}, {-3.1, false}, {-2, false}};
  const ItemView view{&item, scores.data(), nullptr};
  EXPECT_EQ(chosen_by(view, Norm::kNone), 2);
  EXPECT_EQ(chosen_by(view, Norm::kBytes), 1);       // -1.25, -1.03, -2
  EXPECT_EQ(chosen_by(view, Norm::kCharacters), 1);  // -2.5, -1.03, -2
  EXPECT_FALSE(is_right(view, Norm::kNone));
  EXPECT_TRUE(is_right(view, Norm::kBytes));
  scores = {{-2, false}, {-2, false}, {-2, false}};
  EXPECT_EQ(chosen_by(view, Norm::kNone), 0) << "the first of equals";
  const double infinity = std::numeric_limits<double>::infinity();
  scores = {{-infinity, false}, {-infinity, false}, {-infinity, false}};
  EXPECT_EQ(chosen_by(view, Norm::kNone), -1) << "nothing is chosen, also when gold is 0";
  scores[1].log_prob = -3;
  EXPECT_EQ(chosen_by(view, Norm::kNone), 1);
  scores[1].log_prob = std::nan("");
  EXPECT_EQ(chosen_by(view, Norm::kNone), -1);
}

TEST(MeanWithError, IsThatOfASample) {
  const MeanWithError found = mean_with_error({1, 0, 0, 1, 1});
  EXPECT_DOUBLE_EQ(found.mean, 0.6);
  EXPECT_NEAR(found.standard_error, std::sqrt(1.2 / 4 / 5), 1e-15);
  EXPECT_TRUE(std::isnan(mean_with_error({3}).standard_error));
}

}  // namespace
}  // namespace cplm::test
