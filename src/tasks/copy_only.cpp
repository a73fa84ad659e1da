// cplm eval copy-only: questions about documents that are visible, read through copy keys alone,
// read by the last layer alone, or dropped, and what each way keeps in memory.
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "cplm/base.h"
#include "cplm/generate.h"
#include "cplm/shard_tools.h"
#include "runs/paired_difference.h"
#include "tasks/arguments.h"
#include "tasks/document_questions.h"
#include "tasks/result_table.h"
#include "tasks/task_list.h"

namespace cplm {
namespace {

constexpr int64_t kQuestionsAPiece = 16;

enum class Way { kVisible, kCopyOnly, kLastLayer, kDropped };
constexpr const char* name_of(Way way) {
  switch (way) {
    case Way::kVisible:
      return "visible";
    case Way::kCopyOnly:
      return "copy_only";
    case Way::kLastLayer:
      return "last_layer";
    case Way::kDropped:
      break;
  }
  return "dropped";
}

std::vector<Way> ways_of(const ModelConfig& model) {
  std::vector<Way> ways = {Way::kVisible};
  if (model.head == HeadKind::kCplm) ways.push_back(Way::kCopyOnly);
  if (model.layer_types.back() != LayerKind::kLinear) ways.push_back(Way::kLastLayer);
  ways.push_back(Way::kDropped);
  return ways;
}

bool answers(LanguageModel& model, DocumentQuestions& questions, const DocumentQuestion& question,
             Way way) {
  GenerateOptions options;
  options.max_new_tokens = questions.answer_tokens();
  if (questions.document_end()) options.stop_ids = {*questions.document_end()};
  Documents alone;
  for (const auto& document : question.documents) alone.push_back(questions.alone(document));
  const ModelConfig& config = model.config();
  CopyCache copy({"", "", config.vocab_size, config.hidden_size, questions.document_end()},
                 model.options().tensor);
  LastLayerCache last;
  if (way == Way::kCopyOnly) {
    copy = encode_documents(model, alone, copy.origin());
    options.decoder.documents = &copy;
  }
  if (way == Way::kLastLayer) {
    last = encode_last_layer(model, alone, questions.document_end());
    options.decoder.last_layer_documents = &last;
  }
  const auto prompt = way == Way::kVisible ? questions.visible(question) : question.prompt;
  return questions.is_answer(question, generate(model, {prompt}, options).texts.front().ids);
}

// Of the documents, when they are `tokens` long; ids apart.
int64_t cache_bytes_of(Way way, const ModelConfig& model, int64_t tokens, int64_t number) {
  switch (way) {
    case Way::kVisible: {
      const CacheBytes bytes = cache_bytes(model, tokens, number);
      return bytes.total() - bytes.copy_ids;
    }
    case Way::kCopyOnly:
      return tokens * model.hidden_size * number;
    case Way::kLastLayer:
      return tokens * 2 * model.num_key_value_heads * model.head_dim() * number;
    case Way::kDropped:
      break;
  }
  return 0;
}

// The 95 % interval of a share by Wilson's score, which holds near 0 and 1 too.
std::pair<double, double> share_interval(int64_t correct, int64_t total) {
  const auto n = static_cast<double>(total);
  const double share = static_cast<double>(correct) / n, z2 = kNormalQuantile * kNormalQuantile;
  const double middle = (share + z2 / (2 * n)) / (1 + z2 / n);
  const double half =
      kNormalQuantile / (1 + z2 / n) * std::sqrt(share * (1 - share) / n + z2 / (4 * n * n));
  return {std::max(0.0, middle - half), std::min(1.0, middle + half)};
}

class CopyOnly : public Task {
 public:
  void add_arguments(CLI::App& command) override;
  void check(const std::vector<Subject>& subjects) const override { questions(subjects); }
  TaskResult run(const std::vector<Subject>& subjects, TaskRun& run) override;

 private:
  bool asks_for_numbers(const std::vector<Subject>& subjects) const;
  std::unique_ptr<DocumentQuestions> questions(const std::vector<Subject>& subjects) const;
  Json description(const std::vector<Subject>& subjects) const;
  Json measure(const Subject& subject, DocumentQuestions& questions, int64_t document_tokens,
               TaskRun& run) const;

  std::string ask_ = "auto";
  int64_t questions_ = 100, sequence_length_ = 0, bytes_per_number_ = 2, seed_ = 42;
  RecallQuestionOptions pairs_;
};

void CopyOnly::add_arguments(CLI::App& command) {
  const auto add = [&](const char* name, int64_t& value, int64_t least, const char* help) {
    command.add_option(name, value, help)->check(whole_from(least))->capture_default_str();
  };
  command
      .add_option("--ask", ask_,
                  "numbers (7 digits in text), pairs (key-value recall by ids), or auto: numbers "
                  "where there is a tokenizer")
      ->check(CLI::IsMember({"auto", "numbers", "pairs"}))
      ->capture_default_str();
  add("--questions", questions_, 1, "Asked of every model in every way");
  add("--documents", pairs_.documents, 1, "Of each question, one of them with the answer");
  add("--sequence-length", sequence_length_, 0,
      "Tokens of a question with its documents; 0: as in training");
  add("--seed", seed_, 0, "Other questions");
  add("--bytes-per-number", bytes_per_number_, 1, "Of cached keys and values; 2: bfloat16");
  add("--pairs", pairs_.sample.pairs, 1,
      "Of each question with pairs; as the next three, see cplm data "
      "make recall");
  add("--filler-symbols", pairs_.sample.filler_symbols, 1, "Ids that are neither keys nor values");
  add("--first-symbol", pairs_.sample.first_symbol, 1, "The first id of the filler");
  add("--eos-id", pairs_.sample.eos_token_id, 0, "The token around documents with pairs");
}

bool CopyOnly::asks_for_numbers(const std::vector<Subject>& subjects) const {
  if (ask_ == "auto") return !subjects.front().tokenizer.empty();
  return ask_ == "numbers";
}

std::unique_ptr<DocumentQuestions> CopyOnly::questions(const std::vector<Subject>& subjects) const {
  const int64_t length = common_context(sequence_length_, subjects);
  const Subject& first = subjects.front();
  const bool numbers = asks_for_numbers(subjects);
  check_one_vocabulary(subjects);
  for (const Subject& subject : subjects) {
    if (numbers && subject.tokenizer.empty()) {
      throw Error(str("--ask numbers: expected a tokenizer.json beside ", subject.path,
                      ", found none; copy it there, or ask for pairs"),
                  ExitCode::kBadConfig);
    }
    if (numbers && sha256_file(subject.tokenizer) != sha256_file(first.tokenizer)) {
      throw Error(str("--ask numbers: expected models of one tokenizer, found another in ",
                      subject.path, " than in ", first.path, "; measure them apart"),
                  ExitCode::kBadConfig);
    }
  }
  const auto seed = static_cast<uint64_t>(seed_);
  if (numbers) {
    return number_questions(Tokenizer(first.tokenizer), {pairs_.documents, length, seed});
  }
  RecallQuestionOptions options = pairs_;
  options.sample.vocab_size = first.config.model.vocab_size;
  options.sample.sequence_length = length;
  options.sample.seed = seed;
  return recall_questions(options);
}

Json CopyOnly::description(const std::vector<Subject>& subjects) const {
  const bool numbers = asks_for_numbers(subjects);
  Json description = {{"ask", numbers ? "numbers" : "pairs"},
                      {"count", questions_},
                      {"documents", pairs_.documents},
                      {"sequence_length", common_context(sequence_length_, subjects)},
                      {"seed", seed_}};
  if (numbers) {
    description["tokenizer_sha256"] = sha256_file(subjects.front().tokenizer);
  } else {
    description["pairs"] = pairs_.sample.pairs;
    description["filler_symbols"] = pairs_.sample.filler_symbols;
    description["first_symbol"] = pairs_.sample.first_symbol;
    description["eos_id"] = pairs_.sample.eos_token_id;
  }
  return description;
}

Json CopyOnly::measure(const Subject& subject, DocumentQuestions& questions,
                       int64_t document_tokens, TaskRun& run) const {
  const ModelConfig& config = subject.config.model;
  std::shared_ptr<LanguageModel> model;
  Json ways = Json::object();
  for (const Way way : ways_of(config)) {
    int64_t correct = 0;
    for (int64_t first = 0; first < questions_; first += kQuestionsAPiece) {
      const int64_t last = std::min(questions_, first + kQuestionsAPiece);
      const Json piece = run.piece(subject, str(name_of(way), " ", first), [&] {
        if (!model) model = subject.open();
        int64_t found = 0;
        for (int64_t i = first; i < last; ++i) {
          found += answers(*model, questions, questions.make(i), way) ? 1 : 0;
        }
        return Json(found);
      });
      correct += piece.get<int64_t>();
    }
    const auto [low, high] = share_interval(correct, questions_);
    const auto bytes = [&](Way of) {
      return static_cast<double>(cache_bytes_of(of, config, document_tokens, bytes_per_number_));
    };
    ways[name_of(way)] = {
        {"accuracy", static_cast<double>(correct) / static_cast<double>(questions_)},
        {"low", low},
        {"high", high},
        {"correct", correct},
        {"cache_bytes_a_token", bytes(way) / static_cast<double>(document_tokens)},
        {"of_visible", bytes(way) / bytes(Way::kVisible)}};
  }
  return ways;
}

TaskResult report(const Json& all) {
  ResultTable shown({{"model", "model"},
                     {"documents", "documents"},
                     {"accuracy", "accuracy", 3},
                     {"interval", "95 %"},
                     {"cache_bytes_a_token", "cache bytes a token", 1},
                     {"of_visible", "of visible's"}});
  ResultTable csv({{"model", ""},
                   {"documents", ""},
                   {"accuracy", ""},
                   {"low", ""},
                   {"high", ""},
                   {"cache_bytes_a_token", ""},
                   {"of_visible", ""}});
  TaskResult result;
  for (const Json& subject : all["subjects"]) {
    TaskSummary summary;
    for (const auto& [name, way] : subject["ways"].items()) {
      const auto number = [&reading = way](const char* key) { return reading[key].get<double>(); };
      const std::string model = subject["name"];
      const double share = number("of_visible");
      shown.add_row({model, name, number("accuracy"),
                     str(shown_number(number("low"), 3), " to ", shown_number(number("high"), 3)),
                     number("cache_bytes_a_token"), shown_share(share)});
      csv.add_row({model, name, number("accuracy"), number("low"), number("high"),
                   number("cache_bytes_a_token"), share});
      summary.emplace_back(name, number("accuracy"));
    }
    result.summaries.push_back(summary);
  }
  result.json = json_text(all);
  result.table = shown.text();
  result.csv = csv.csv();
  return result;
}

TaskResult CopyOnly::run(const std::vector<Subject>& subjects, TaskRun& run) {
  const std::unique_ptr<DocumentQuestions> asked = questions(subjects);
  Json all = {{"format", "cplm-eval-copy-only-1"}, {"questions", description(subjects)}};
  int64_t pieces = 0, document_tokens = 0;
  for (const Subject& subject : subjects) {
    pieces += static_cast<int64_t>(ways_of(subject.config.model).size());
  }
  run.begin(all.dump(), pieces * ((questions_ + kQuestionsAPiece - 1) / kQuestionsAPiece));
  for (int64_t i = 0; i < questions_; ++i) document_tokens += asked->make(i).document_tokens();
  document_tokens = std::max<int64_t>(1, document_tokens / questions_);
  all["questions"]["chance"] = asked->chance();
  all["questions"]["document_tokens"] = document_tokens;  // of one question, the mean
  all["bytes_per_number"] = bytes_per_number_;
  all["subjects"] = Json::array();
  for (const Subject& subject : subjects) {
    Json found = subject_header(subject);
    found["ways"] = measure(subject, *asked, document_tokens, run);
    all["subjects"].push_back(found);
  }
  return report(all);
}

}  // namespace

const TaskKind kCopyOnlyTask = {
    "copy-only", "Questions about documents that are read through copy keys alone",
    R"(Documents are visible (in the prompt, all caches kept), read through copy keys alone (each encoded
by itself, one key and one id a token kept; the backbone sees the question alone), read by the last
layer alone (its keys and values kept; the control without a copy head), or dropped. Questions ask
for a 7-digit number in text, or for the value of a key by ids; the answer is the greedy one.

Examples:
  cplm eval copy-only runs/vanilla runs/cplm --questions 200 --out results
  cplm eval copy-only runs/recall-cplm --ask pairs --pairs 8 --filler-symbols 16 --first-symbol 1
)",
    make_task<CopyOnly>};

}  // namespace cplm
