// Questions about documents, and cplm eval copy-only on a model that copies by construction.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "cplm/base.h"
#include "cplm/tasks.h"
#include "support/models.h"
#include "support/subjects.h"
#include "support/temp_dir.h"
#include "support/tokenizer_file.h"
#include "tasks/document_questions.h"

namespace cplm::test {
namespace {

using testing::HasSubstr;
using Ids = std::vector<int64_t>;

// Filler 1 to 4, keys 5 to 12, values 13 to 20.
RecallQuestionOptions recall_options() {
  RecallQuestionOptions options{.documents = 3};
  options.sample.vocab_size = 21;
  options.sample.eos_token_id = 0;
  options.sample.first_symbol = 1;
  options.sample.filler_symbols = 4;
  options.sample.pairs = 5;
  options.sample.sequence_length = 24;
  options.sample.seed = 42;
  return options;
}

TEST(RecallQuestions, PutAllPairsIntoTheDocuments) {
  const auto questions = recall_questions(recall_options());
  std::set<size_t> prompt_lengths;
  for (int64_t i = 0; i < 40; ++i) {
    const DocumentQuestion question = questions->make(i);
    ASSERT_EQ(question.documents.size(), 3u);
    std::map<int64_t, int64_t> value_of;
    size_t pairs = 0;
    for (const Ids& document : question.documents) {
      for (size_t t = 0; t < document.size(); ++t) {
        if (document[t] < 5) continue;
        value_of[document[t]] = document.at(t + 1);
        ++pairs;
        ++t;
      }
    }
    EXPECT_EQ(pairs, 5u);
    EXPECT_EQ(value_of.size(), 5u);
    EXPECT_EQ(value_of.at(question.prompt.back()), question.answer.at(0));
    for (size_t t = 0; t + 1 < question.prompt.size(); ++t) EXPECT_LT(question.prompt[t], 5);
    // With eos before, the answer and eos behind: a sample.
    EXPECT_EQ(questions->visible(question).size(), 23u);
    prompt_lengths.insert(question.prompt.size());
    EXPECT_EQ(questions->alone(question.documents[1]).front(), 0);
    EXPECT_TRUE(questions->is_answer(question, question.answer));
    EXPECT_FALSE(questions->is_answer(question, {question.prompt.back()}));
  }
  EXPECT_GT(prompt_lengths.size(), 3u) << "distances differ";
  RecallQuestionOptions options = recall_options();
  options.documents = 6;
  EXPECT_THROW(recall_questions(options), Error);
}

TEST(NumberQuestions, HideANumberInOneDocument) {
  const TempDir dir;
  const auto file = dir.write("tokenizer.json", byte_tokenizer_json());
  Tokenizer reader(file);
  const auto questions = number_questions(Tokenizer(file), {.documents = 3, .tokens = 900});
  std::set<size_t> places;
  for (int64_t i = 0; i < 12; ++i) {
    const DocumentQuestion question = questions->make(i);
    EXPECT_EQ(question.answer_text.size(), 7u);
    ASSERT_EQ(question.documents.size(), 3u);
    size_t holders = 0;
    for (size_t d = 0; d < 3; ++d) {
      const std::string text = reader.decode(question.documents[d]);
      if (text.find("is " + question.answer_text + ".") == std::string::npos) continue;
      ++holders;
      places.insert(d);
    }
    EXPECT_EQ(holders, 1u);
    const auto whole = static_cast<int64_t>(questions->visible(question).size());
    EXPECT_GT(question.document_tokens(), 500);
    EXPECT_LE(whole + questions->answer_tokens(), 900) << "question and answer lie in it too";
    EXPECT_TRUE(reader.decode(question.prompt).ends_with(" is"));
    const std::string answer = " " + question.answer_text + ". Then";
    EXPECT_TRUE(questions->is_answer(question, reader.encode(answer)));
    EXPECT_FALSE(questions->is_answer(question, reader.encode(answer.substr(0, 7))));
    EXPECT_EQ(questions->alone(question.documents[0]).back(), 0) << "its end";
  }
  EXPECT_EQ(places.size(), 3u);
}

// Layers add nothing; key k points at value k + 8 wherever it stands, with the gate open.
std::shared_ptr<LanguageModel> copying_model() {
  ModelConfig config = tiny_config(HeadKind::kCplm);
  config.vocab_size = 21;
  config.hidden_size = 24;
  set_backbone(config, "sliding", 4);
  std::shared_ptr<LanguageModel> model = make_model(config);
  for (const Parameter& p : model->parameters().all()) {
    p.name.find("norm") != std::string::npos ? p.master.fill_(1) : p.master.zero_();
  }
  const auto master = [&](const char* name) { return model->parameters().find(name)->master; };
  const at::Tensor embedding = master("model.embed_tokens.weight");
  embedding.select(1, 0).fill_(1);
  for (int64_t v = 0; v < 21; ++v) {
    embedding[v][1 + v].fill_(1);
    master("cp_head.k_proj.weight")[1 + v][1 + v].fill_(4);
    if (v >= 5 && v < 13) master("cp_head.q_proj.weight")[1 + v + 8][1 + v].fill_(4);
  }
  master("copy_token.weight")[0].fill_(30);
  model->parameters().round_values();
  return model;
}

constexpr const char* kArguments =
    "copy-only --questions 20 --documents 3 --pairs 5 --filler-symbols 4 --first-symbol 1";

// This model's answer is right where the key's own value, 8 above it, was drawn.
TEST(CopyOnlyTask, ReadsDocumentsAsIfTheyWereVisible) {
  const auto model = copying_model();
  TaskRun run;
  const Json all =
      Json::parse(parse_task(kArguments)->run({subject_of(model, "copying")}, run).json);
  RecallQuestionOptions options = recall_options();
  const auto questions = recall_questions(options);
  int64_t right = 0, tokens = 0;
  for (int64_t i = 0; i < 20; ++i) {
    const DocumentQuestion question = questions->make(i);
    right += question.answer[0] == question.prompt.back() + 8 ? 1 : 0;
    tokens += question.document_tokens();
  }
  ASSERT_GT(right, 0);
  const Json& ways = all["subjects"][0]["ways"];
  EXPECT_GE(ways["copy_only"]["correct"], right);
  EXPECT_EQ(ways["copy_only"]["correct"], ways["visible"]["correct"]);
  EXPECT_LT(ways["dropped"]["correct"], right);
  EXPECT_EQ(all["questions"]["chance"], 0.2);
  tokens /= 20;
  EXPECT_EQ(all["questions"]["document_tokens"], tokens);
  EXPECT_EQ(ways["copy_only"]["cache_bytes_a_token"], 2.0 * 24);
  EXPECT_EQ(ways["last_layer"]["cache_bytes_a_token"], 2.0 * 2 * 12);  // one key head of 12
  EXPECT_EQ(ways["dropped"]["cache_bytes_a_token"], 0.0);
  const double window = 4.0 * 2 * 2 * 2 * 12;  // two layers' rings
  EXPECT_DOUBLE_EQ(ways["visible"]["cache_bytes_a_token"].get<double>(),
                   window / static_cast<double>(tokens) + 2 * 24);
}

TEST(CopyOnlyTask, GoesOnFromItsPieces) {
  const TempDir dir;
  const auto model = copying_model();
  Subject subject = subject_of(model, "copying");
  std::string whole;
  {
    TaskRun run(dir.path(), "copy-only");
    whole = parse_task(kArguments)->run({subject}, run).json;
  }
  subject.open = []() -> std::shared_ptr<LanguageModel> { throw Error("is not needed"); };
  TaskRun again(dir.path(), "copy-only");
  EXPECT_EQ(parse_task(kArguments)->run({subject}, again).json, whole);
  EXPECT_THROW(parse_task(std::string(kArguments) + " --seed 7")->run({subject}, again), Error);
}

TEST(CopyOnlyTask, RefusesQuestionsThatDoNotFit) {
  const Subject subject = subject_of(copying_model(), "copying");
  const auto message = [&](const std::string& arguments, std::vector<Subject> subjects) {
    TaskRun run;
    try {
      parse_task("copy-only " + arguments)->run(subjects, run);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadConfig);
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(message("--ask numbers", {subject}), HasSubstr("expected a tokenizer.json"));
  EXPECT_THAT(message("--ask words", {subject}), HasSubstr("--ask"));
  EXPECT_THAT(message("--ask pairs --first-symbol 30", {subject}), HasSubstr("--first-symbol"));
  EXPECT_THAT(message("--ask pairs --first-symbol 1", {subject}), HasSubstr("--filler-symbols"));
  EXPECT_THAT(message("--documents 9 --pairs 5 --first-symbol 1 --filler-symbols 4", {subject}),
              HasSubstr("--documents: expected at most --pairs 5"));
  Subject other = subject;
  other.path = "runs/other";
  other.config.model.vocab_size = 30;
  EXPECT_THAT(message("--pairs 5 --first-symbol 1 --filler-symbols 4", {subject, other}),
              HasSubstr("models of one vocabulary"));
}

}  // namespace
}  // namespace cplm::test
