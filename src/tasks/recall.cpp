// cplm eval recall: eos, filler, pairs of a key and its value, filler, a key: is its value the
// likeliest next token? By distance, in the three modes; the samples of `cplm data make recall`.
#include <CLI/App.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "cplm/base.h"
#include "cplm/copy_modes.h"
#include "cplm/decode.h"
#include "data/synthetic_sample.h"
#include "generate/sampler.h"
#include "tasks/arguments.h"
#include "tasks/result_table.h"
#include "tasks/task_list.h"

namespace cplm {
namespace {

constexpr int64_t kMostTokens = int64_t{1} << 23;

struct Question {
  std::vector<int64_t> ids;
  int64_t answer = 0;
};

class Recall : public Task {
 public:
  Recall() : sample_(synthetic_defaults(SyntheticKind::kRecall)) { sample_.seed = 42; }
  void add_arguments(CLI::App& command) override;
  void check(const std::vector<Subject>& subjects) const override {
    for (const Subject& subject : subjects) {
      for (const int64_t distance : distances(subjects)) maker(subject, distance);
    }
  }
  TaskResult run(const std::vector<Subject>& subjects, TaskRun& run) override;

 private:
  std::vector<int64_t> distances(const std::vector<Subject>& subjects) const;
  SampleMaker maker(const Subject& subject, int64_t distance) const;
  Json measure(const Subject& subject, LanguageModel& model, int64_t distance) const;
  std::vector<int64_t> count_correct(const Subject& subject, LanguageModel& model,
                                     const std::vector<Question>& questions) const;

  SyntheticOptions sample_;  // what all distances share
  std::string distances_;
  int64_t context_ = 0, samples_ = 200, batch_tokens_ = 65'536;
};

void Recall::add_arguments(CLI::App& command) {
  command
      .add_option("--distances", distances_,
                  "From value to answer, in tokens; k: 1,024 [powers of two from 4 to 4 contexts]")
      ->check(counts_between(2, kMostTokens));
  command
      .add_option("--context", context_,
                  "Tokens of a sequence, more where a distance needs it; 0: as in training")
      ->check(whole_from(0))
      ->capture_default_str();
  command.add_option("--samples", samples_, "Sequences a distance")
      ->check(whole_from(1))
      ->capture_default_str();
  const auto add = [&](const char* name, int64_t& value, const char* help) {
    command.add_option(name, value, help)->capture_default_str();
  };
  add("--pairs", sample_.pairs, "Keys with a value");
  add("--filler-symbols", sample_.filler_symbols, "Symbols that are neither keys nor values");
  add("--first-symbol", sample_.first_symbol, "Symbols are the ids from here on");
  add("--eos-id", sample_.eos_token_id, "Stands before each sequence");
  command.add_option("--seed", sample_.seed, "Other sequences")
      ->check(seed_problem)
      ->capture_default_str();
  command
      .add_option("--batch-tokens", batch_tokens_,
                  "Tokens at once, one sequence at least: more takes more memory")
      ->check(whole_from(1))
      ->capture_default_str();
}

std::vector<int64_t> Recall::distances(const std::vector<Subject>& subjects) const {
  if (!distances_.empty()) return parse_counts(distances_);
  std::vector<int64_t> powers;
  for (int64_t d = 4; d <= 4 * common_context(context_, subjects); d *= 2) powers.push_back(d);
  return powers;
}

// Sequences as in training where the distance fits; else as long as lets any pair be asked for.
SampleMaker Recall::maker(const Subject& subject, int64_t distance) const {
  SyntheticOptions options = sample_;
  options.vocab_size = subject.config.model.vocab_size;
  options.queries = 1;
  options.distance = WholeRange{distance, distance};
  options.samples = options.validation_samples = samples_;
  const int64_t context = context_ > 0 ? context_ : subject.config.data.sequence_length;
  options.sequence_length =
      std::max({context, distance + 2 * options.pairs + 1, 2 * options.pairs + 4});
  try {
    return SampleMaker(options);
  } catch (const Error& error) {
    throw Error(str(subject.path, ", a vocabulary of ", options.vocab_size, ": ", error.what()),
                error.code());
  }
}

// Right answers in each of the subject's modes. All questions are of one length.
std::vector<int64_t> Recall::count_correct(const Subject& subject, LanguageModel& model,
                                           const std::vector<Question>& questions) const {
  DecoderOptions options;
  options.sequences = static_cast<int64_t>(questions.size());
  if (subject.config.data.intra_document_mask) options.document_end = sample_.eos_token_id;
  Decoder decoder(model, options);
  std::vector<NewTokens> tokens;
  for (size_t i = 0; i < questions.size(); ++i) {
    tokens.push_back({static_cast<int64_t>(i), questions[i].ids, 1, false});
  }
  decoder.reserve(static_cast<int64_t>(questions.front().ids.size()));
  const auto modes = copy_modes_of(subject.config.model.head);
  std::vector<int64_t> correct(modes.size());
  for (const NextTokens& next : decoder.advance(tokens)) {
    for (size_t m = 0; m < modes.size(); ++m) {
      const Chosen chosen =
          choose_tokens(next, modes[m].mode, {}, next.sequences, model.options().ops);
      for (size_t r = 0; r < chosen.ids.size(); ++r) {
        const Question& question = questions[static_cast<size_t>(next.sequences[r])];
        correct[m] += chosen.ids[r] == question.answer ? 1 : 0;
      }
    }
  }
  return correct;
}

Json Recall::measure(const Subject& subject, LanguageModel& model, int64_t distance) const {
  const SampleMaker maker = this->maker(subject, distance);
  const auto modes = copy_modes_of(subject.config.model.head);
  std::vector<int64_t> correct(modes.size());
  const int64_t length = maker.options().sequence_length;
  const int64_t batch = std::max<int64_t>(1, batch_tokens_ / length);
  SyntheticSample sample;
  for (int64_t begin = 0; begin < samples_; begin += batch) {
    std::vector<Question> questions;
    for (int64_t i = begin; i < std::min(samples_, begin + batch); ++i) {
      maker.make("validation", i, sample);
      Question& question = questions.emplace_back();
      question.ids.push_back(sample_.eos_token_id);
      question.ids.insert(question.ids.end(), sample.tokens.begin(), sample.tokens.end() - 2);
      question.answer = sample.tokens[sample.tokens.size() - 2];
    }
    const std::vector<int64_t> of_batch = count_correct(subject, model, questions);
    for (size_t m = 0; m < modes.size(); ++m) correct[m] += of_batch[m];
  }
  Json piece = {{"tokens", length - 1}};
  for (size_t m = 0; m < modes.size(); ++m) piece["correct"][modes[m].name] = correct[m];
  return piece;
}

TaskResult report(const Json& all) {
  std::vector<ResultTable::Column> columns = {{"model", "model"}, {"mode", "mode"}};
  for (const int64_t distance : all["distances"]) {
    columns.push_back({std::to_string(distance), with_commas(distance), 1});
  }
  ResultTable shown(columns);
  ResultTable csv({{"model", ""},
                   {"mode", ""},
                   {"distance", ""},
                   {"accuracy", ""},
                   {"correct", ""},
                   {"samples", ""}});
  const auto samples = all["samples"].get<int64_t>();
  TaskResult result;
  for (const Json& subject : all["subjects"]) {
    const auto name = subject["name"].get<std::string>();
    for (const auto& [mode, numbers] : subject["modes"].items()) {
      std::vector<ResultTable::Cell> row = {name, mode};
      for (size_t d = 0; d < all["distances"].size(); ++d) {
        const double accuracy = numbers["accuracy"][d].get<double>();
        row.emplace_back(100 * accuracy);
        csv.add_row({name, mode, all["distances"][d].get<int64_t>(), accuracy,
                     numbers["correct"][d].get<int64_t>(), samples});
      }
      shown.add_row(row);
    }
    const Json& accuracy = subject["modes"]["natural"]["accuracy"];
    double sum = 0;
    for (const Json& each : accuracy) sum += each.get<double>();
    result.summaries.push_back({{"accuracy", sum / static_cast<double>(accuracy.size())},
                                {"accuracy_farthest", accuracy.back().get<double>()}});
  }
  result.json = json_text(all);
  result.table = str("Right answers in % by distance; chance ",
                     shown_number(100 * all["chance"].get<double>(), 1), "\n", shown.text());
  result.csv = csv.csv();
  return result;
}

TaskResult Recall::run(const std::vector<Subject>& subjects, TaskRun& run) {
  const std::vector<int64_t> distances = this->distances(subjects);
  Json all = {{"format", "cplm-eval-recall-1"},
              {"pairs", sample_.pairs},
              {"filler_symbols", sample_.filler_symbols},
              {"first_symbol", sample_.first_symbol},
              {"eos_id", sample_.eos_token_id},
              {"samples", samples_},
              {"seed", sample_.seed},
              {"context", context_}};
  run.begin(all.dump(), static_cast<int64_t>(subjects.size() * distances.size()));
  check(subjects);  // what does not fit, at once
  all["chance"] = 1.0 / static_cast<double>(sample_.pairs);
  all["distances"] = distances;
  all["subjects"] = Json::array();
  for (const Subject& subject : subjects) {
    std::shared_ptr<LanguageModel> model;
    Json found = subject_header(subject);
    for (const int64_t distance : distances) {
      const Json piece = run.piece(subject, str("distance ", distance), [&] {
        if (!model) model = subject.open();
        return measure(subject, *model, distance);
      });
      found["tokens"].push_back(piece["tokens"]);
      for (const auto& [mode, correct] : piece["correct"].items()) {
        Json& numbers = found["modes"][mode];
        numbers["correct"].push_back(correct);
        numbers["accuracy"].push_back(correct.get<double>() / static_cast<double>(samples_));
      }
    }
    all["subjects"].push_back(found);
  }
  return report(all);
}

}  // namespace

const TaskKind kRecallTask = {
    "recall", "Key-value recall by distance, on token ids",
    R"(A sequence is an end-of-document token, filler, pairs of a key and its value, filler and one of the
keys, all random single ids; an answer is right when the key's value is the likeliest next token. For
models trained on `cplm data make recall`, with whose options the samples are made; no tokenizer is
needed. Modes as in perplexity. A distance is counted from the value in its pair to the answer.

Examples:
  cplm eval recall runs/vanilla runs/cplm --first-symbol 1 --out results
  cplm eval recall runs/cplm --pairs 8 --distances 16,64,256,1k,4k,16k
)",
    make_task<Recall>};

}  // namespace cplm
