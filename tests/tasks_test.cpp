// The frame of tasks: pieces that survive a kill, tables, documents by themselves, bytes of text.
#include "cplm/tasks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "cplm/base.h"
#include "runs/json_number.h"
#include "support/shards.h"
#include "support/temp_dir.h"
#include "support/tokenizer_file.h"
#include "tasks/documents.h"
#include "tasks/result_table.h"
#include "tasks/task_data.h"

namespace cplm::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Subject subject_named(const std::string& name, const std::string& identity) {
  Subject subject;
  subject.name = name;
  subject.identity = [identity] { return identity; };
  return subject;
}

// Counts how often a piece is made.
struct Maker {
  int made = 0;
  Json value = 1;
  std::function<Json()> function() {
    return [this] {
      ++made;
      return value;
    };
  }
};

TEST(TaskRun, KeepsPiecesOfTheSameMeasurementAndWeights) {
  const TempDir dir;
  Maker maker;
  const Subject subject = subject_named("a", "weights 1");
  {
    TaskRun run(dir.path(), "task");
    run.begin("options", 1);
    EXPECT_EQ(run.piece(subject, "p", maker.function()), 1);
  }
  maker.value = 2;
  TaskRun run(dir.path(), "task");
  run.begin("options", 1);
  EXPECT_EQ(run.piece(subject, "p", maker.function()), 1);
  EXPECT_EQ(maker.made, 1);
  EXPECT_EQ(run.piece(subject, "q", maker.function()), 2);
  EXPECT_EQ(run.piece(subject_named("b", "weights 2"), "p", maker.function()), 2);
  run.begin("other options", 1);
  EXPECT_EQ(run.piece(subject, "p", maker.function()), 2);
}

TEST(TaskRun, ATornLastLineIsMadeAgain) {
  const TempDir dir;
  const auto file = dir.path() / "task.pieces.jsonl";
  Maker maker;
  const Subject subject = subject_named("a", "weights");
  const auto measure = [&] {
    TaskRun run(dir.path(), "task");
    run.begin("options", 2);
    run.piece(subject, "p", maker.function());
    run.piece(subject, "q", maker.function());
  };
  measure();
  std::string text = read_file(file);
  text.resize(text.size() - 5);
  write_file_atomic(file, text);
  measure();
  EXPECT_EQ(maker.made, 3);
  measure();
  EXPECT_EQ(maker.made, 3);
}

TEST(TaskRun, ForgetsItsOwnPiecesAlone) {
  const TempDir dir;
  Maker maker;
  const Subject subject = subject_named("a", "weights");
  TaskRun run(dir.path(), "task");
  run.begin("first", 1);
  run.piece(subject, "p", maker.function());
  run.begin("second", 1);
  run.piece(subject, "p", maker.function());
  run.forget();
  run.begin("first", 1);
  run.piece(subject, "p", maker.function());
  EXPECT_EQ(maker.made, 2);
  run.forget();
  EXPECT_FALSE(std::filesystem::exists(dir.path() / "task.pieces.jsonl"));
}

TEST(TaskRun, KeepsThePiecesOfAReportThatAskedForMore) {
  const TempDir dir;
  Maker maker;
  const Subject subject = subject_named("a", "weights");
  {
    TaskRun killed(dir.path(), "task");
    killed.begin("options", 3);
    killed.piece(subject, "short", maker.function());
    killed.piece(subject, "long", maker.function());
  }
  TaskRun run(dir.path(), "task");
  run.begin("options", 1);
  run.piece(subject, "short", maker.function());
  run.forget();
  run.begin("options", 2);
  run.piece(subject, "long", maker.function());
  EXPECT_EQ(maker.made, 2);
  run.piece(subject, "short", maker.function());
  EXPECT_EQ(maker.made, 3) << "forgotten with its report";
}

TEST(TaskKinds, HelpIsOfTheTaskAlone) {
  for (const TaskKind& kind : task_kinds()) {
    const std::string notes = kind.notes;
    EXPECT_THAT(notes, HasSubstr(str("cplm eval ", kind.name, " ")));
    EXPECT_THAT(notes, testing::Not(HasSubstr("constexpr")));
    for (const TaskKind& other : task_kinds()) {
      if (&other == &kind) continue;
      EXPECT_THAT(notes, testing::Not(HasSubstr(str("cplm eval ", other.name, " ")))) << kind.name;
    }
  }
}

TEST(TaskRun, OneProcessAtATime) {
  const TempDir dir;
  const TaskRun first(dir.path(), "task");
  EXPECT_THROW(TaskRun(dir.path(), "task"), Error);
  EXPECT_NO_THROW(TaskRun(dir.path(), "other"));
}

TEST(ResultTable, ShowsAndWritesCells) {
  ResultTable table({{"model", "model"}, {"loss", "loss", 2}, {"count", "count"}});
  table.add_row({"a,b", 1.0 / 3, int64_t{12345}});
  table.add_row({"c", std::numeric_limits<double>::infinity(), {}});
  EXPECT_EQ(table.text(),
            "model  loss   count\n-----  ----  ------\na,b    0.33  12,345\nc       inf       -\n");
  EXPECT_EQ(table.csv(), "model,loss,count\n\"a,b\",0.3333333333333333,12345\nc,inf,\n");
}

TEST(ParseTask, SaysWhatIsWrong) {
  const auto message = [](const std::string& line) {
    try {
      parse_task(line);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadConfig);
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(message("perplexity"), "");
  EXPECT_EQ(message("perplexity --context 64 --per-document"), "");
  EXPECT_THAT(message("perplexty"), HasSubstr("did you mean perplexity?"));
  EXPECT_THAT(message("perplexity --context x"), HasSubstr("expected a whole number from 0"));
  EXPECT_THAT(message("recall --pairs 010"), HasSubstr("--pairs: expected a whole number, found "
                                                       "010; write 10"));
  EXPECT_THAT(message("perplexity --nonsense 3"), HasSubstr("--nonsense"));
  EXPECT_THAT(message(""), testing::AllOf(HasSubstr("expected one of"), HasSubstr("perplexity")));
}

class Documents : public testing::Test {
 protected:
  // Documents of 1, 4, 2 and 6 tokens.
  Documents() {
    make_folders(dir_.path() / "data/train");
    ShardContents contents;
    contents.vocab_size = 300;
    contents.eos_token_id = 0;
    contents.tokens = {0, 1, 2, 3, 0, 4, 0, 5, 6, 7, 8, 9, 0};
    contents.document_offsets = {0, 1, 5, 7, 13};
    contents.loss_mask = {1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    contents.source = "test";
    write_file_atomic(dir_.path() / "data/tokenizer.json", byte_tokenizer_json({{"a", "b"}}));
    contents.tokenizer_sha256 = sha256_file(dir_.path() / "data/tokenizer.json");
    write_shard(dir_.path() / "data/train/0.h5", contents);
  }
  std::vector<std::string> shards() const { return {(dir_.path() / "data/train/*.h5").string()}; }
  TempDir dir_;
};

TEST_F(Documents, AreCutAndPassedOver) {
  const DocumentSet all(shards(), {});
  ASSERT_EQ(all.size(), 3);
  EXPECT_THAT(all.read(0).ids, ElementsAre(1, 2, 3, 0));
  EXPECT_THAT(all.read(0).counted, ElementsAre(1, 1, 0, 1));
  const DocumentSet cut(shards(), {.least_tokens = 4, .most_tokens = 5});
  ASSERT_EQ(cut.size(), 2);
  EXPECT_THAT(cut.read(1).ids, ElementsAre(5, 6, 7, 8, 9));
  EXPECT_EQ(DocumentSet(shards(), {.documents = 1}).size(), 1);
  EXPECT_THROW(DocumentSet(shards(), {.least_tokens = 7}), Error);
}

TEST_F(Documents, ABatchPadsBehind) {
  const DocumentSet all(shards(), {});
  const ModelInput input = all.batch(0, 3, at::kCPU);
  EXPECT_EQ(input.ids.sizes(), (std::vector<int64_t>{3, 5}));
  const auto row = [](const at::Tensor& x, int64_t i) {
    const int64_t* begin = x.const_data_ptr<int64_t>() + i * x.size(1);
    return std::vector<int64_t>(begin, begin + x.size(1));
  };
  EXPECT_THAT(row(input.ids, 0), ElementsAre(1, 2, 3, 0, 0));
  EXPECT_THAT(row(input.targets, 0), ElementsAre(2, -1, 0, -1, -1));
  EXPECT_THAT(row(input.targets, 2), ElementsAre(6, 7, 8, 9, 0));
}

TEST_F(Documents, TextBytesAreThoseOfTheText) {
  const DocumentSet all(shards(), {});
  const auto bytes = TextBytes::find(all.shards(), {});
  ASSERT_NE(bytes, nullptr);
  // 257: the merge "ab"; 0: special; 299: none of the tokenizer's.
  EXPECT_EQ(bytes->count(std::vector<int32_t>{0, 1, 256, 257, 299}), 4);
  write_file_atomic(dir_.path() / "data/tokenizer.json", byte_tokenizer_json({{"a", "c"}}));
  EXPECT_EQ(TextBytes::find(all.shards(), {}), nullptr) << "another tokenizer";
}

}  // namespace
}  // namespace cplm::test
