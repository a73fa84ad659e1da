// Texts with facts hidden in them and a question behind: what `cplm eval needle` asks, RULER's
// synthetic tasks that need no downloads, and documents to train on. Wording, filler and words are
// our own. A sample depends on the seed, its task, length and number alone.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace cplm {

// Samples done and to do.
using SampleProgress = std::function<void(int64_t done, int64_t total)>;

struct RulerOptions {
  std::filesystem::path output;     // a new folder
  std::filesystem::path tokenizer;  // lengths are counted in its tokens
  std::vector<int64_t> lengths;     // of a prompt and the longest answer, at most
  std::vector<std::string> tasks;   // empty: all of ruler_task_names()
  int64_t samples = 500;            // a task and length
  uint64_t seed = 42;
};
// Those that can be made: RULER's names, and names ending in _filler where our filler stands in
// place of RULER's essays.
std::vector<std::string> ruler_task_names();
// Writes OUTPUT/LENGTH/TASK/validation.jsonl with RULER's fields index, input, outputs, length and
// answer_prefix. OUTPUT appears whole or not at all. Error(kBadConfig) for a task that is not known
// and for a length that is too short for one.
void make_ruler(const RulerOptions& options, const SampleProgress& on_progress);

struct NeedleTextOptions {
  std::filesystem::path output;  // a .jsonl file
  int64_t documents = 10'000;
  int64_t min_sentences = 4, max_sentences = 60;  // of filler, uniform
  bool conversations = false;
  uint64_t seed = 1234;
};
// One document a line, as {"text"}: filler with a needle at a random depth, the question of
// `cplm eval needle` and the answer. Of conversations as {"messages"}: a user's turn ends with the
// question, the assistant's is the answer, for training on answers alone.
void make_needle_texts(const NeedleTextOptions& options, const SampleProgress& on_progress);

}  // namespace cplm
