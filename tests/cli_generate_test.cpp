// cplm generate as its users meet it: text, ids and files in; text, JSON and pages out; wrong
// input.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cplm/base.h"
#include "support/tokenizer_file.h"
#include "support/training_folder.h"

namespace cplm::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// One run for all tests: a vocabulary of bytes, and a tokenizer beside it.
class CliGenerate : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TrainingFolder();
    for (const std::string head : {"cplm", "vanilla"}) {
      const std::string backbone = head == "cplm" ? "hybrid" : "sliding";
      const ProcessResult trained =
          folder_->train(head, {"model.vocab_size=300", "model.head=" + head,
                                "model.backbone=" + backbone, "train.steps=10"});
      ASSERT_EQ(trained.exit_code, 0) << trained.err;
      write_file_atomic(*folder_ / head / "tokenizer.json", byte_tokenizer_json({{"a", "b"}}));
    }
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }
  static ProcessResult generate(const std::string& run, Texts arguments,
                                ProcessOptions options = {}) {
    Texts all = {"generate", run, "--threads", "1"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    return folder_->cplm(all, options);
  }
  static json one_line(const ProcessResult& result) {
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return json::parse(result.out);
  }
  static void expect_error(const ProcessResult& result, ExitCode code, const std::string& part) {
    EXPECT_EQ(result.exit_code, static_cast<int>(code)) << result.out << result.err;
    EXPECT_THAT(error_line(result), HasSubstr(part));
    EXPECT_EQ(result.out, "");
  }
  static TrainingFolder* folder_;
};
TrainingFolder* CliGenerate::folder_ = nullptr;

TEST_F(CliGenerate, TextGoesToStdoutAndTheRestToStderr) {
  const ProcessResult result =
      generate("cplm", {"--prompt", "abc", "--max-new-tokens", "20", "--special"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_FALSE(result.out.empty());
  EXPECT_EQ(result.out.back(), '\n');
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("new tokens"), HasSubstr("copy keys"), HasSubstr("keys and values")));
}

TEST_F(CliGenerate, TextFilesAndIdsAreOnePrompt) {
  write_file_atomic(*folder_ / "p rompt.txt", "abc");
  const Texts more = {"--json", "--max-new-tokens", "9"};
  const auto with = [&](Texts arguments) {
    arguments.insert(arguments.end(), more.begin(), more.end());
    return one_line(generate("cplm", arguments));
  };
  const json text = with({"--prompt", "abc"}), file = with({"--file", "p rompt.txt"});
  EXPECT_EQ(text["prompt_ids"], (std::vector<int>{257, 100}));
  const json ids = with({"--ids", "257,100"});
  EXPECT_EQ(file["prompt_ids"], text["prompt_ids"]);
  EXPECT_EQ(file["ids"], text["ids"]);
  EXPECT_EQ(ids["ids"], text["ids"]);
  EXPECT_EQ(ids["text"], text["text"]);
  EXPECT_EQ(text["ids"].size(), text["log_probs"].size());
}

TEST_F(CliGenerate, SpeculationAndBatchesChangeNothing) {
  const Texts base = {"--prompt", "abcabcabc", "--prompt",      "x",   "--prompt",
                      "hello",    "--json",    "--temperature", "0.9", "--max-new-tokens",
                      "25"};
  const auto out = [&](const Texts& more) {
    Texts all = base;
    all.insert(all.end(), more.begin(), more.end());
    const ProcessResult result = generate("cplm", all);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    std::vector<json> ids;
    std::istringstream lines(result.out);
    for (std::string line; std::getline(lines, line);) ids.push_back(json::parse(line)["ids"]);
    return ids;
  };
  const auto plain = out({"--precision", "float64"});
  EXPECT_EQ(plain.size(), 3U);
  EXPECT_EQ(out({"--precision", "float64", "--batch", "1"}), plain);
  EXPECT_EQ(out({"--precision", "float64", "--speculate", "copy", "--batch", "2"}), plain);
  EXPECT_NE(out({"--precision", "float64", "--seed", "5"}), plain);
}

TEST_F(CliGenerate, StopStringsAreNotWritten) {
  const json whole = one_line(generate(
      "cplm", {"--prompt", "q", "--json", "--max-new-tokens", "40", "--mode", "force_copy"}));
  EXPECT_EQ(whole["text"].get<std::string>().substr(0, 4), "qqqq");
  const json stopped = one_line(generate("cplm", {"--prompt", "q", "--json", "--max-new-tokens",
                                                  "40", "--mode", "force_copy", "--stop", "qqq"}));
  EXPECT_EQ(stopped["text"], "");
  EXPECT_EQ(stopped["stop"], "stop");
  EXPECT_EQ(stopped["ids"].size(), 3U);
}

TEST_F(CliGenerate, ChatTakesAMessageOrAConversation) {
  const std::string conversation = R"([{"role": "user", "content": "hi"}])";
  const auto ids = [&](const std::string& prompt) {
    return one_line(generate(
        "cplm", {"--chat", "--prompt", prompt, "--json", "--max-new-tokens", "3"}))["prompt_ids"];
  };
  EXPECT_EQ(ids("hi"), ids(conversation));
  EXPECT_GT(ids("hi").size(), 20U);  // <|user|>\nhi\n<|assistant|>\n
}

TEST_F(CliGenerate, ExplainWritesPageAndJson) {
  ASSERT_EQ(generate("cplm", {"--prompt", "abcabc", "--explain", "page.html"}).exit_code, 0);
  EXPECT_THAT(read_file(*folder_ / "page.html"),
              AllOf(HasSubstr("<!DOCTYPE html>"), HasSubstr("cplm-explain-1"),
                    Not(HasSubstr("@EXPLAIN_JSON@"))));
  ASSERT_EQ(generate("vanilla", {"--prompt", "abc", "--explain", "out.json"}).exit_code, 0);
  const json out = json::parse(read_file(*folder_ / "out.json"));
  EXPECT_EQ(out["model"]["head"], "vanilla");
  EXPECT_EQ(out["prompt_tokens"], 2);
}

TEST_F(CliGenerate, WithoutAPromptADocumentBegins) {
  const json out = one_line(generate("vanilla", {"--json", "--max-new-tokens", "4"}));
  EXPECT_EQ(out["prompt_ids"], std::vector<int>{0});
}

TEST_F(CliGenerate, WithoutATokenizerIdsGoInAndOut) {
  const fs::path bare = *folder_ / "bare";
  fs::create_directories(bare);
  const fs::path step = folder_->checkpoint("cplm", 10);
  fs::copy(step / "model.safetensors", bare / "model.safetensors");
  fs::copy(*folder_ / "cplm" / "config.yaml", bare / "config.yaml");
  const ProcessResult result = generate("bare", {"--ids", "5,6", "--max-new-tokens", "3"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), ','), 2);
  expect_error(generate("bare", {"--prompt", "a"}), ExitCode::kBadConfig, "tokenizer.json");
  expect_error(generate("bare", {"--ids", "5", "--stop", "a"}), ExitCode::kBadConfig, "--stop");
  expect_error(generate("bare", {}), ExitCode::kBadConfig, "expected a prompt");
}

// Padding of the vocabulary is usual and says nothing until it is written.
TEST_F(CliGenerate, AnotherModelsTokenizerIsNamed) {
  const ProcessResult padded = generate("cplm", {"--prompt", "a", "--max-new-tokens", "0"});
  EXPECT_THAT(padded.err, Not(HasSubstr("is it this model's?")));
  const ProcessResult drawn =
      generate("cplm", {"--prompt", "a", "--temperature", "1000", "--max-new-tokens", "60"});
  EXPECT_EQ(drawn.exit_code, 0) << drawn.err;
  EXPECT_THAT(drawn.err, HasSubstr("new tokens have no text: "));
  EXPECT_THAT(drawn.err, HasSubstr("has 258 tokens, the model 300; is it this model's?"));

  const fs::path larger = *folder_ / "larger";
  fs::create_directories(larger);
  fs::copy(folder_->checkpoint("cplm", 10) / "model.safetensors", larger / "model.safetensors");
  fs::copy(*folder_ / "cplm" / "config.yaml", larger / "config.yaml");
  std::vector<std::pair<std::string, std::string>> merges;
  for (char letter = 'a'; letter <= 'z'; ++letter) {
    merges.emplace_back("a", std::string(1, letter));
    merges.emplace_back("b", std::string(1, letter));
  }
  write_file_atomic(larger / "tokenizer.json", byte_tokenizer_json(merges));
  const ProcessResult warned = generate("larger", {"--prompt", "z", "--max-new-tokens", "2"});
  EXPECT_EQ(warned.exit_code, 0) << warned.err;
  EXPECT_THAT(warned.err, HasSubstr("tokenizer.json has 309 tokens, the model 300"));
  EXPECT_EQ(std::count(warned.err.begin(), warned.err.end(), '?'), 1);
  expect_error(generate("larger", {"--prompt", "bz"}), ExitCode::kBadData,
               "expected an id below the vocabulary of 300");
}

TEST_F(CliGenerate, WrongInputIsOneLine) {
  const auto bad = [&](const Texts& arguments, const std::string& part,
                       ExitCode code = ExitCode::kBadConfig) {
    expect_error(generate("cplm", arguments), code, part);
  };
  bad({"--ids", "1,300"}, "token 1: expected an id below the vocabulary of 300",
      ExitCode::kBadData);
  bad({"--ids", "1,,2"}, "--ids: expected a whole number");
  bad({"--ids", "-1"}, "--ids");
  bad({"--mode", "nocopy"}, "did you mean no_copy?");
  bad({"--mode", "natural,no_copy"}, "TOKENS:MODE");
  bad({"--mode", "natural,9:no_copy,3:natural"}, "rising");
  bad({"--temperature", "-1"}, "temperature");
  bad({"--top-p", "0"}, "top_p");
  bad({"--file", "nowhere.txt"}, "no such file", ExitCode::kBadData);
  bad({"--prompt", "a\xff"}, "--prompt", ExitCode::kBadData);
  bad({"--prompt", "a", "--explain", "page.txt"}, "--explain");
  bad({"--prompt", "a", "--prompt", "b", "--explain", "p.html"}, "one prompt");
  bad({"--prompt", "a", "--explain", "no/such/folder/p.html"}, "a folder that exists");
  bad({"--prompt", "a", "--eos", "<eot>"}, "<eot>", ExitCode::kBadData);
  bad({"--prompt", "a", "--yarn", "nan"}, "expected a number from 1 to 1000000, found nan");
  bad({"--prompt", "a", "--batch", "0"}, "--batch: expected a whole number from 1, found 0");
  bad({"--prompt", "a", "--max-new-tokens", "x"},
      "--max-new-tokens: expected a whole number from 0, found x");
  bad({"--chat", "--prompt", "[1]"}, "--prompt", ExitCode::kBadData);
  bad({"--chat", "--prompt", "[{\"role\": "}, "damaged JSON", ExitCode::kBadData);
  bad({"--chat", "--prompt", "{\"a\": 1}"}, "without \"messages\"", ExitCode::kBadData);
  bad({"--set", "model.hidden_sise=3"}, "did you mean");
  bad({"--prompt", "a", "--stop", ""}, "stop");
  expect_error(folder_->cplm({"export", "cplm", ""}), ExitCode::kBadConfig, "folder's name");
  expect_error(folder_->cplm({"generate", "nowhere"}), ExitCode::kBadConfig, "no such checkpoint");
  expect_error(generate("vanilla", {"--prompt", "a", "--mode", "force_copy"}), ExitCode::kBadConfig,
               "vanilla");
  expect_error(generate("cplm", {"--prompt", "a", "--set", "model.hidden_size=64"}),
               ExitCode::kFailed, "model.embed_tokens.weight");
}

TEST_F(CliGenerate, EosIsTheTokenAsked) {
  const Texts prompt = {"--prompt", "q", "--json", "--max-new-tokens", "9", "--mode", "force_copy"};
  EXPECT_EQ(one_line(generate("cplm", prompt))["stop"], "length");
  Texts with_eos = prompt;
  with_eos.insert(with_eos.end(), {"--eos", "q"});
  const json out = one_line(generate("cplm", with_eos));
  EXPECT_EQ(out["stop"], "eos");
  EXPECT_EQ(out["ids"], out["prompt_ids"]);
}

TEST_F(CliGenerate, AClosedOutputIsNoOtherFile) {  // as the tokenizer's socket, or the weights
  const auto with = [](const std::string& redirections) {
    return run_process(
        "/bin/sh", {.arguments = {"-c", str("exec '", CPLM_BINARY, "' generate cplm --prompt abc ",
                                            "--max-new-tokens 3 ", redirections)},
                    .working_dir = folder_->path()});
  };
  const ProcessResult no_output = with(">&-");
  EXPECT_EQ(no_output.exit_code, 1);
  EXPECT_THAT(no_output.err, HasSubstr("cannot write the result to standard output"));
  EXPECT_EQ(with("<&- >&- 2>&-").exit_code, 1);
  const ProcessResult quiet = with("2>&-");
  EXPECT_EQ(quiet.exit_code, 0);
  EXPECT_FALSE(quiet.out.empty());
}

TEST_F(CliGenerate, YarnStretchesFullLayers) {
  const Texts prompt = {"--prompt", "abcdefghijklmnop", "--json", "--max-new-tokens",
                        "1",        "--precision",      "float64"};
  const auto log_prob = [&](const Texts& more) {
    Texts all = prompt;
    all.insert(all.end(), more.begin(), more.end());
    return one_line(generate("cplm", all))["log_probs"][0].get<double>();
  };
  const double plain = log_prob({});
  const double yarn = log_prob({"--yarn", "4"});
  EXPECT_NE(plain, yarn);
  EXPECT_EQ(yarn, log_prob({"--set",
                            "model.rope_scaling={rope_type: yarn, factor: 4.0, "
                            "original_max_position_embeddings: 16}"}));
  EXPECT_EQ(log_prob({"--yarn", "8", "--set",  // of what it was before it was stretched
                      "model.rope_scaling={rope_type: yarn, factor: 4.0, "
                      "original_max_position_embeddings: 12}"}),
            log_prob({"--set",
                      "model.rope_scaling={rope_type: yarn, factor: 8.0, "
                      "original_max_position_embeddings: 12}"}));
  expect_error(generate("vanilla", {"--prompt", "a", "--yarn", "4"}), ExitCode::kBadConfig,
               "--yarn: stretches full-attention layers, and there are none");
}

}  // namespace
}  // namespace cplm::test
