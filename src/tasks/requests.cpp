// cplm eval requests: log-probabilities of continuations after contexts, and the accuracies of
// multiple choice that follow, from files of requests.
#include <CLI/App.hpp>
#include <nlohmann/json.hpp>
#include <set>

#include "cplm/base.h"
#include "cplm/copy_modes.h"
#include "tasks/arguments.h"
#include "tasks/request_report.h"
#include "tasks/task_list.h"

namespace cplm {
namespace {

class Requests : public Task {
 public:
  void add_arguments(CLI::App& command) override;
  void check(const std::vector<Subject>& subjects) const override {
    tokenize_all(read_request_files(paths_), subjects);
  }
  TaskResult run(const std::vector<Subject>& subjects, TaskRun& run) override;

 private:
  std::vector<ScoredRequests> tokenize_all(const std::vector<RequestFile>& files,
                                           const std::vector<Subject>& subjects) const;
  std::vector<CopyMode> modes() const;
  Json description(const std::vector<RequestFile>& files, int64_t context) const;

  std::vector<std::string> paths_, modes_ = {"natural"};
  int64_t context_ = 0, batch_ = 8;
};

void Requests::add_arguments(CLI::App& command) {
  command.add_option("--requests", paths_, "Files of requests, one JSON object a line")->required();
  command.add_option("--mode", modes_, "natural, no_copy, force_copy; any number of them")
      ->check(CLI::IsMember(copy_mode_names()))
      ->capture_default_str();
  command
      .add_option("--context", context_,
                  "Tokens that are read at most, the last ones; 0: as in training")
      ->check(whole_from(0))
      ->capture_default_str();
  command.add_option("--batch", batch_, "Requests at once")
      ->check(whole_from(1))
      ->capture_default_str();
}

// In one order, each once.
std::vector<CopyMode> Requests::modes() const {
  const std::set<std::string> asked(modes_.begin(), modes_.end());
  std::vector<CopyMode> modes;
  for (const auto& [name, mode] : kCopyModes) {
    if (asked.count(name) > 0) modes.push_back(mode);
  }
  return modes;
}

Json Requests::description(const std::vector<RequestFile>& files, int64_t context) const {
  Json data = {{"context", context}, {"files", Json::array()}};
  for (const RequestFile& file : files) {
    data["files"].push_back({{"name", file.name}, {"sha256", file.sha256}});
  }
  return data;
}

// Without scores yet.
std::vector<ScoredRequests> Requests::tokenize_all(const std::vector<RequestFile>& files,
                                                   const std::vector<Subject>& subjects) const {
  const int64_t context = common_context(context_, subjects);
  std::vector<ScoredRequests> requests;
  requests.reserve(subjects.size());
  for (const Subject& subject : subjects) {
    requests.push_back(
        {modes_of(subject, modes()),
         tokenize(files, subject.tokenizer, {context, subject.config.model.vocab_size}),
         {}});
  }
  return requests;
}

TaskResult Requests::run(const std::vector<Subject>& subjects, TaskRun& run) {
  const std::vector<RequestFile> files = read_request_files(paths_);
  const int64_t context = common_context(context_, subjects);
  Json all = {{"format", "cplm-eval-requests-1"}, {"data", description(files, context)}};
  std::vector<ScoredRequests> scored = tokenize_all(files, subjects);
  Json tokenizers = Json::array();
  int64_t pieces = 0;
  for (size_t i = 0; i < subjects.size(); ++i) {
    const std::filesystem::path& tokenizer = subjects[i].tokenizer;
    tokenizers.push_back(tokenizer.empty() ? "" : sha256_file(tokenizer));
    pieces += num_request_pieces(static_cast<int64_t>(scored[i].tokens.size()), batch_);
  }
  run.begin(str(json_text(all), " ", join(modes_, ","), " ", batch_, " ", tokenizers.dump()),
            pieces);
  for (size_t i = 0; i < subjects.size(); ++i) {
    scored[i].scores = score_requests(subjects[i], scored[i].tokens, scored[i].modes, batch_, run);
  }
  all["subjects"] = Json::array();
  for (size_t i = 0; i < subjects.size(); ++i) {
    all["subjects"].push_back(requests_json(subjects[i], files, scored[i], scored.front()));
  }
  TaskResult result = requests_result(all);
  result.csv = requests_csv(subjects, files, scored);
  return result;
}

}  // namespace

const TaskKind kRequestsTask = {
    "requests", "Continuations of contexts: log P, and multiple-choice accuracies",
    R"(One JSON object a line: {"context": TEXT, "choices": [TEXT, ...], "gold": 0}, or {"context": TEXT,
"continuation": TEXT}; lists of token ids in place of texts for models without tokenizer. acc: the
choice of the greatest log P is right; acc_norm: of the greatest log P a byte. Texts are divided
into tokens, and cut from the left, as by lm-eval. docs/evaluate.md has the whole format.

Examples:
  cplm eval requests runs/vanilla runs/cplm --requests arc_easy.jsonl --out results
  cplm eval requests runs/cplm --requests lambada.jsonl --mode natural --mode no_copy
)",
    make_task<Requests>};

}  // namespace cplm
