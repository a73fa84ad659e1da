// The tokenizer through its child process: encoding, decoding, streams, conversations, refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "cplm/base.h"
#include "cplm/tokenizer.h"
#include "support/temp_dir.h"
#include "support/tokenizer_file.h"

namespace cplm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<int64_t> ids_of_bytes(const std::string& text) {
  std::vector<int64_t> ids;
  for (char c : text) ids.push_back(1 + static_cast<unsigned char>(c));
  return ids;
}

// Runs what must fail, and checks that its message is one line.
template <class F>
Error error_of(F action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), Not(HasSubstr("\n")));
    return error;
  }
  ADD_FAILURE() << "no error";
  return Error("");
}

class TokenizerTest : public ::testing::Test {
 protected:
  const test::TempDir dir_;
  const std::filesystem::path file_ = dir_.write(
      "tokenizer.json", test::byte_tokenizer_json({{"t", "h"}, {"th", "e"}, {" ", "the"}}));
  static constexpr int64_t kTh = 257, kSpaceThe = 259;
};

TEST_F(TokenizerTest, EncodesAndDecodesEveryText) {
  Tokenizer tokenizer(file_);
  EXPECT_EQ(tokenizer.vocab_size(), 260);
  EXPECT_EQ(tokenizer.eos_id(), 0);
  EXPECT_EQ(tokenizer.id_of("th"), kTh);
  EXPECT_EQ(tokenizer.id_of("thx"), std::nullopt);
  EXPECT_EQ(tokenizer.encode("a the"), (std::vector<int64_t>{1 + 'a', kSpaceThe}));
  using namespace std::string_literals;
  for (const std::string& text :
       {""s, "\0\n\r\n\t\x7F"s, "\"\\{}"s, "\xE6\x97\xA5\xF0\x9F\x98\x80\xC3\xA9"s,
        std::string(300000, 'x')}) {
    EXPECT_EQ(tokenizer.encode(text), ids_of_bytes(text));
    EXPECT_EQ(tokenizer.decode(ids_of_bytes(text)), text);
  }
}

TEST_F(TokenizerTest, TextThatSpellsASpecialTokenIsOneOnlyOnDemand) {
  Tokenizer tokenizer(file_);
  EXPECT_EQ(tokenizer.encode("<|endoftext|>"), ids_of_bytes("<|endoftext|>"));
  EXPECT_EQ(tokenizer.encode("a<|endoftext|>", SpecialText::kAsToken),
            (std::vector<int64_t>{1 + 'a', 0}));
  EXPECT_EQ(tokenizer.encode("<|endoftext|>"), ids_of_bytes("<|endoftext|>"));  // as before
  EXPECT_EQ(tokenizer.decode({1 + 'a', 0}), "a");
  EXPECT_EQ(tokenizer.decode({1 + 'a', 0}, SpecialTokens::kShow), "a<|endoftext|>");
}

TEST_F(TokenizerTest, TokenTextsAndIdsWithoutToken) {
  Tokenizer tokenizer(file_);
  EXPECT_EQ(tokenizer.token_texts({kSpaceThe, 0, 1 + 0xE6, 260, 1 + '\n'}),
            (std::vector<std::string>{" the", "<|endoftext|>", "\uFFFD", "\uFFFD", "\n"}));
  EXPECT_EQ(tokenizer.token_texts({}), std::vector<std::string>{});
  EXPECT_EQ(tokenizer.decode({1 + 'a', 260, 99999, 1 + 'b'}), "a\uFFFD\uFFFDb");
  EXPECT_THAT(error_of([&] { tokenizer.decode({-1}); }).what(),
              HasSubstr("expected a token id of 0 or more, found -1"));
  EXPECT_EQ(tokenizer.decode({1 + 'a'}), "a");  // it goes on after a refusal
}

TEST_F(TokenizerTest, StreamsHoldBackUnfinishedCharacters) {
  Tokenizer tokenizer(file_);
  tokenizer.begin_stream(7);
  tokenizer.begin_stream(8, ids_of_bytes("before"));
  std::vector<std::string> seven, eight;
  for (int64_t id : ids_of_bytes("a\xE6\x97\xA5")) {
    seven.push_back(tokenizer.step_stream(7, id));
    eight.push_back(tokenizer.step_stream(8, id));
  }
  EXPECT_EQ(seven, (std::vector<std::string>{"a", "", "", "\xE6\x97\xA5"}));
  EXPECT_EQ(eight, seven);
  EXPECT_EQ(tokenizer.step_stream(7, 1 + 0xF0), "");
  EXPECT_EQ(tokenizer.step_stream(7, 1 + 'b'),
            "\uFFFD"
            "b");                              // no character after all
  EXPECT_EQ(tokenizer.step_stream(7, 0), "");  // a special token
  EXPECT_EQ(tokenizer.step_stream(7, kSpaceThe), " the");
  EXPECT_EQ(tokenizer.step_stream(7, 1 + 0xC3), "");
  EXPECT_EQ(tokenizer.end_stream(7), "\uFFFD");
  EXPECT_EQ(tokenizer.end_stream(8), "");
  EXPECT_THAT(error_of([&] { tokenizer.step_stream(7, 1); }).what(),
              HasSubstr("no stream 7 was begun"));
}

TEST_F(TokenizerTest, ConversationsEndInTheAssistantsHeader) {
  Tokenizer tokenizer(file_);
  const std::string turns =
      R"([{"role": "system", "content": "S"}, {"role": "user", "content": "U"},)"
      R"({"role": "assistant", "content": "A"}, {"role": "user", "content": "V"}])";
  std::vector<int64_t> expected = ids_of_bytes("<|system|>\nS\n<|user|>\nU\n<|assistant|>\nA");
  expected.push_back(0);
  for (int64_t id : ids_of_bytes("\n<|user|>\nV\n<|assistant|>\n")) expected.push_back(id);
  EXPECT_EQ(tokenizer.encode_chat(turns), expected);
  EXPECT_EQ(tokenizer.encode_chat(R"({"messages": )" + turns + "}"), expected);
}

TEST_F(TokenizerTest, RefusesConversationsThatCannotBeAnswered) {
  Tokenizer tokenizer(file_);
  for (const auto& [chat, reason] : std::vector<std::pair<std::string, std::string>>{
           {"[", "chat: expected JSON"},
           {"null", "messages are null"},
           {"[]", "there is no message"},
           {"[1]", "expected message 1 to have the keys 'role' and 'content'"},
           {R"([{"role": "tool", "content": ""}])", "role is not system, user or assistant"},
           {R"([{"role": "user", "content": "\ud800"}])", "a lone surrogate"},
           {R"([{"role": "assistant", "content": "A"}])", "nothing to answer"}}) {
    const Error error = error_of([&, text = chat] { tokenizer.encode_chat(text); });
    EXPECT_THAT(error.what(), HasSubstr(reason));
    EXPECT_EQ(error.code(), ExitCode::kBadData);
  }
}

TEST_F(TokenizerTest, RefusesWhatIsNotUtf8WithItsOffset) {
  Tokenizer tokenizer(file_);
  const Error error = error_of([&] { tokenizer.encode("ab\xFFgh"); });
  EXPECT_THAT(error.what(), HasSubstr("text: expected UTF-8, found byte 255 at offset 2"));
  EXPECT_EQ(error.code(), ExitCode::kBadData);
}

TEST_F(TokenizerTest, RefusesFilesThatAreNoTokenizer) {
  for (const auto& [path, reason] : std::vector<std::pair<std::filesystem::path, std::string>>{
           {dir_ / "absent.json", "cannot be read: No such file or directory"},
           {dir_.path(), "cannot be read: Is a directory"},
           {dir_.write("bad.json", "{"), "expected a tokenizer.json"},
           {dir_.write("empty.json", R"({"model": {"type": "BPE", "vocab": {}, "merges": []}})"),
            "its vocabulary is empty"}}) {
    const Error error = error_of([&, file = path] { Tokenizer tokenizer(file); });
    EXPECT_THAT(error.what(), AllOf(HasSubstr(path.string()), HasSubstr(reason)));
    EXPECT_EQ(error.code(), ExitCode::kBadData);
  }
}

TEST_F(TokenizerTest, EosIsTheOneAskedFor) {
  EXPECT_EQ(Tokenizer(file_, {.eos = "th"}).eos_id(), kTh);
  const Error error = error_of([&] { Tokenizer tokenizer(file_, {.eos = "</s>"}); });
  EXPECT_THAT(error.what(), AllOf(HasSubstr(file_.string()), HasSubstr("no token '</s>'")));
  std::string without = test::byte_tokenizer_json();
  for (size_t at; (at = without.find("<|endoftext|>")) != std::string::npos;) {
    without.replace(at, 13, "<|other|>");
  }
  Tokenizer tokenizer(dir_.write("other.json", without));
  EXPECT_EQ(tokenizer.eos_id(), std::nullopt);
  EXPECT_THAT(
      error_of([&] { tokenizer.encode_chat(R"([{"role": "user", "content": ""}])"); }).what(),
      HasSubstr("no token '<|endoftext|>' to end an answer with"));
}

// A library that cannot be imported stands in front of the real one.
TEST_F(TokenizerTest, WithoutTheLibraryTheMessageSaysWhatToDo) {
  dir_.write("path/tokenizers/__init__.py", "raise ImportError('none here', name='tokenizers')\n");
  ::setenv("PYTHONPATH", (dir_ / "path").c_str(), 1);
  const Error error = error_of([&] { Tokenizer tokenizer(file_); });
  ::unsetenv("PYTHONPATH");
  EXPECT_THAT(error.what(),
              AllOf(HasSubstr("lacks the package tokenizers"), HasSubstr("scripts/setup")));
  EXPECT_EQ(error.code(), ExitCode::kFailed);
}

TEST(Utf8, FindsTheFirstByteOfNoCharacter) {
  for (const char* good :
       {"", "a", "\x7F", "\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEE\x80\x80",
        "\xEF\xBF\xBF", "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"}) {
    EXPECT_EQ(find_invalid_utf8(good), std::nullopt) << good;
  }
  for (const char* bad : {"\x80", "\xBF", "\xC0\x80", "\xC1\xBF", "\xC2", "\xC2z", "\xE0\x9F\xBF",
                          "\xE6\x97", "\xE6\x97z", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF",
                          "\xF0\x9F\x98", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF"}) {
    EXPECT_EQ(find_invalid_utf8(std::string("\xC3\xA9") + bad), 2u) << bad;
  }
}

}  // namespace
}  // namespace cplm
