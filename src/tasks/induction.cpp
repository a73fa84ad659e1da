// cplm eval induction: loss on repeated random sequences by length and mode, and how much each
// attention head, and the Copy-Paste head, looks behind the token that it repeats.
#include <CLI/App.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "cplm/base.h"
#include "cplm/copy_modes.h"
#include "runs/json_number.h"
#include "tasks/arguments.h"
#include "tasks/induction_measure.h"
#include "tasks/induction_report.h"
#include "tasks/task_list.h"

namespace cplm {
namespace {

constexpr int64_t kShortestRepeat = 16, kLongestRepeat = 2048;  // of those chosen
constexpr int64_t kUsualScoreLength = 128, kLongestScoreLength = 512;

class Induction : public Task {
 public:
  void add_arguments(CLI::App& command) override;
  void check(const std::vector<Subject>& subjects) const override { plan(subjects); }
  TaskResult run(const std::vector<Subject>& subjects, TaskRun& run) override;

 private:
  struct Plan {
    std::vector<int64_t> lengths;
    int64_t score_length = 0;
    RepeatedSequences sequences;
  };
  Plan plan(const std::vector<Subject>& subjects) const;
  std::vector<int64_t> chosen_lengths(const std::vector<Subject>& subjects) const;
  template <class Visit>
  void for_each_batch(const Plan& plan, int64_t repeat, at::Device device,
                      const Visit& visit) const;
  Json losses(LanguageModel& model, const Plan& plan, int64_t repeat) const;
  Json scores(LanguageModel& model, const Plan& plan) const;
  Json measure(const Subject& subject, const Plan& plan, TaskRun& run) const;

  std::vector<int64_t> lengths_;
  int64_t context_ = 0, score_length_ = 0, sequences_ = 64, batch_ = 8;
  int64_t eos_token_id_ = 0, first_symbol_ = 17;
  uint64_t seed_ = 1234;
};

void Induction::add_arguments(CLI::App& command) {
  command
      .add_option("--lengths", lengths_,
                  "Symbols before they repeat; else 16, 32, 64 ... 2048 as far as they are "
                  "twice in the context")
      ->check(whole_from(2))
      ->delimiter(',');
  command.add_option("--context", context_, "Longest input; 0: as in training")
      ->check(whole_from(0))
      ->capture_default_str();
  command
      .add_option("--score-length", score_length_,
                  "Symbols of the sequences that heads are scored on, at most 512; 0: 128, or "
                  "the longest length")
      ->check(whole_from(0))
      ->capture_default_str();
  command.add_option("--sequences", sequences_, "Sequences a length")
      ->check(whole_from(1))
      ->capture_default_str();
  command.add_option("--batch", batch_, "Sequences at once")
      ->check(whole_from(1))
      ->capture_default_str();
  command.add_option("--eos-id", eos_token_id_, "Stands before each sequence")
      ->check(whole_from(0))
      ->capture_default_str();
  command.add_option("--first-symbol", first_symbol_, "Symbols are the ids from here on")
      ->check(whole_from(1))
      ->capture_default_str();
  command.add_option("--seed", seed_, "Other sequences")
      ->check(seed_problem)
      ->capture_default_str();
  command.get_option("--lengths")->excludes(command.get_option("--context"));
}

std::vector<int64_t> Induction::chosen_lengths(const std::vector<Subject>& subjects) const {
  if (!lengths_.empty()) {
    std::vector<int64_t> lengths = lengths_;
    std::sort(lengths.begin(), lengths.end());
    lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
    return lengths;
  }
  const int64_t context = common_context(context_, subjects);
  std::vector<int64_t> lengths;
  for (int64_t length = kShortestRepeat; length <= kLongestRepeat && 1 + 2 * length <= context;
       length *= 2) {
    lengths.push_back(length);
  }
  if (lengths.empty()) {
    throw Error(str("--lengths: expected some, since a context of ", context,
                    " holds no 16 symbols twice behind an end of document"),
                ExitCode::kBadConfig);
  }
  return lengths;
}

Induction::Plan Induction::plan(const std::vector<Subject>& subjects) const {
  const Subject& first = subjects.front();
  check_one_vocabulary(subjects);
  Plan plan;
  plan.lengths = chosen_lengths(subjects);
  plan.score_length =
      score_length_ > 0 ? score_length_ : std::min(kUsualScoreLength, plan.lengths.back());
  if (plan.score_length < 2 || plan.score_length > kLongestScoreLength) {
    throw Error(
        str("--score-length: expected 2 to ", kLongestScoreLength, ", found ", plan.score_length),
        ExitCode::kBadConfig);
  }
  plan.sequences = {first.config.model.vocab_size, eos_token_id_, first_symbol_, seed_, 2};
  plan.sequences.input(0, 1, at::kCPU);  // what is wrong with ids shows
  return plan;
}

template <class Visit>
void Induction::for_each_batch(const Plan& plan, int64_t repeat, at::Device device,
                               const Visit& visit) const {
  RepeatedSequences sequences = plan.sequences;
  sequences.repeat = repeat;
  for (int64_t begin = 0; begin < sequences_; begin += batch_) {
    const int64_t end = std::min(sequences_, begin + batch_);
    visit(sequences.input(begin, end, device), end - begin);
  }
}

Json Induction::losses(LanguageModel& model, const Plan& plan, int64_t repeat) const {
  CopyLosses total;
  for_each_batch(plan, repeat, model.options().tensor.device(),
                 [&](const ModelInput& input, int64_t) {
                   const CopyLosses part = copy_losses(model, input, repeat);
                   total.first_copy += part.first_copy;
                   for (size_t mode = 0; mode < kCopyModes.size(); ++mode) {
                     total.second_copy[mode] += part.second_copy[mode];
                   }
                 });
  const auto first = static_cast<double>(sequences_ * repeat);
  const auto second = static_cast<double>(sequences_ * (repeat - 1));
  Json second_copy;
  for (const auto& [name, mode] : copy_modes_of(model.config().head)) {
    second_copy[name] = json_number(total.second_copy[static_cast<size_t>(mode)] / second);
  }
  return {{"length", repeat},
          {"first_copy", json_number(total.first_copy / first)},
          {"second_copy", std::move(second_copy)}};
}

Json Induction::scores(LanguageModel& model, const Plan& plan) const {
  InductionScores total;
  total.layers.resize(static_cast<size_t>(model.config().num_hidden_layers));
  const auto add = [&](double& sum, double part, int64_t count) {
    sum += part * static_cast<double>(count) / static_cast<double>(sequences_);
  };
  for_each_batch(plan, plan.score_length, model.options().tensor.device(),
                 [&](const ModelInput& input, int64_t count) {
                   const InductionScores part = induction_scores(model, input, plan.score_length);
                   for (size_t layer = 0; layer < part.layers.size(); ++layer) {
                     total.layers[layer].resize(part.layers[layer].size());
                     for (size_t head = 0; head < part.layers[layer].size(); ++head) {
                       add(total.layers[layer][head], part.layers[layer][head], count);
                     }
                   }
                   add(total.copy_alpha, part.copy_alpha, count);
                   add(total.copy_pointer, part.copy_pointer, count);
                   add(total.copy_gate, part.copy_gate, count);
                   add(total.sink_mass, part.sink_mass, count);
                 });
  Json found = {{"layers", Json::array()}};
  for (const std::vector<double>& layer : total.layers) {
    Json heads = Json::array();
    for (const double score : layer) heads.push_back(json_number(score));
    found["layers"].push_back(heads);
  }
  if (model.config().head == HeadKind::kCplm) {
    found["copy_head"] = {{"score", json_number(total.copy_alpha)},
                          {"score_without_sink", json_number(total.copy_pointer)},
                          {"copy_gate", json_number(total.copy_gate)},
                          {"sink_mass", json_number(total.sink_mass)}};
  }
  return found;
}

Json Induction::measure(const Subject& subject, const Plan& plan, TaskRun& run) const {
  std::shared_ptr<LanguageModel> model;
  const auto open = [&]() -> LanguageModel& {
    if (!model) model = subject.open();
    return *model;
  };
  Json found = subject_header(subject);
  found["losses"] = Json::array();
  for (const int64_t length : plan.lengths) {
    found["losses"].push_back(
        run.piece(subject, str("losses ", length), [&] { return losses(open(), plan, length); }));
  }
  found["scores"] = run.piece(subject, "scores", [&] { return scores(open(), plan); });
  return found;
}

TaskResult Induction::run(const std::vector<Subject>& subjects, TaskRun& run) {
  const Plan chosen = plan(subjects);
  Json all = {{"format", "cplm-eval-induction-1"},
              {"sequences", sequences_},
              {"vocab_size", chosen.sequences.vocab_size},
              {"eos_id", eos_token_id_},
              {"first_symbol", first_symbol_},
              {"seed", seed_},
              {"score_length", chosen.score_length}};
  Json measurement = all;
  measurement["batch"] = batch_;  // sums of floats depend on it, to rounding
  run.begin(measurement.dump(),
            static_cast<int64_t>((chosen.lengths.size() + 1) * subjects.size()));
  all["subjects"] = Json::array();
  for (const Subject& subject : subjects) all["subjects"].push_back(measure(subject, chosen, run));
  return induction_report(std::move(all));
}

}  // namespace

const TaskKind kInductionTask = {
    "induction", "Loss on repeated random sequences, and which heads repeat them",
    R"(Sequences are an end of document, T symbols, each uniform, and the same again. Losses are means of
-log P: over the first copy (chance is the log of the number of symbols), and over the second but for
its first symbol, which cannot be known. A head's score is its mean attention, over the second copy,
to the token behind the one that it repeats; of the Copy-Paste head, alpha there, with and without
the sink's share.

Examples:
  cplm eval induction runs/vanilla runs/cplm --out results
  cplm eval induction runs/cplm --lengths 32,512 --score-length 32 --first-symbol 1
)",
    make_task<Induction>};

}  // namespace cplm
