// Writing text with a model: sampling, batches of prompts, copy-guided speculation, and what each
// token of a text was copied from.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cplm/decode.h"

namespace cplm {

// Filters apply in this order to the distribution of the mode, log P / temperature.
struct SamplingOptions {
  double temperature = 0;  // 0: greedy, ties to the lower id
  int64_t top_k = 0;       // the k likeliest and their ties; 0: all
  double top_p = 1;        // the likeliest whose sum reaches p, at least one; 1: all
  uint64_t seed = 0;
};

enum class Speculation { kNone, kCopy };

// From the n-th new token (from 0) on, another mode.
using ModeChanges = std::vector<std::pair<int64_t, CopyMode>>;
CopyMode mode_at(CopyMode first, const ModeChanges& changes, int64_t new_token);

struct GenerateOptions {
  SamplingOptions sampling;
  CopyMode mode = CopyMode::kNatural;  // of the first new token
  ModeChanges mode_changes;
  int64_t max_new_tokens = 128;
  std::vector<int64_t> stop_ids;  // end a text; they are its last token
  // kCopy: where the copy head commits to a position, the tokens that followed it are drafted and
  // checked in one pass. Token for token what kNone gives, but for rounding of equal logits.
  Speculation speculation = Speculation::kNone;
  int64_t max_draft = 16;
  int64_t first_prompt = 0;  // number of the first prompt: noise is keyed by prompt and position
  DecoderOptions decoder;    // `sequences` is set from the prompts
};

struct NewToken {
  size_t prompt = 0;  // in the list given
  int64_t id = 0;
  double log_prob = 0;  // log P of the mode, before temperature and filters
};
// Called for every new token, in order within a prompt; false ends that prompt's text.
using OnToken = std::function<bool(const NewToken&)>;

enum class StopReason { kLength, kStopId, kCaller };

struct GeneratedText {
  std::vector<int64_t> ids;  // without the prompt
  std::vector<double> log_probs;
  StopReason reason = StopReason::kLength;
};

struct GenerateCounts {
  int64_t prompt_tokens = 0, new_tokens = 0;
  int64_t passes = 0;  // behind the prompts
  int64_t drafted = 0, accepted = 0;
  double prefill_s = 0, decode_s = 0;
  CacheBytes caches;  // as allocated, of all sequences
};

struct Generated {
  std::vector<GeneratedText> texts;  // by prompt
  GenerateCounts counts;
};
// All prompts as one batch, none of them empty. Error(kNotFinite) when P is not finite.
Generated generate(LanguageModel& model, const std::vector<std::vector<int64_t>>& prompts,
                   const GenerateOptions& options, const OnToken& on_token = {});

// Keeps log_prob [R, V] of the tokens that the filters leave, -inf elsewhere.
at::Tensor filter_log_probs(const at::Tensor& log_prob, const SamplingOptions& sampling);

// Ends a text that grows piece by piece before the first of some strings.
class StopText {
 public:
  explicit StopText(std::vector<std::string> stops);  // none of them empty
  // What is certainly before any of them; holds back what may be the begin of one.
  std::string add(const std::string& piece);
  bool found() const { return found_; }
  std::string rest();  // what was held back, of a text that ended without

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool found_ = false;
};

// ---- explain ("cplm-explain-1")
struct ExplainOptions {
  std::string name;  // of the model, for the reader
  std::string backbone;
  int64_t step = 0;
  int64_t prompt_tokens = 0;
  CopyMode mode = CopyMode::kNatural;  // of the prompt too
  ModeChanges mode_changes;
  int64_t top = 5;            // likeliest tokens of each distribution
  int64_t max_sources = 16;   // positions copied from, of each prediction
  double least_copy = 0.005;  // of c alpha_j, for a position to count
  DecoderOptions decoder;
};
// texts(ids): the text of each token by itself.
using TokenTexts = std::function<std::vector<std::string>(const std::vector<int64_t>&)>;
// The JSON of a text of at least one token: docs/generate.md.
std::string explain_json(LanguageModel& model, const std::vector<int64_t>& ids,
                         const ExplainOptions& options, const TokenTexts& texts);
// The JSON as a page that needs nothing else.
std::string explain_page(const std::string& json);

}  // namespace cplm
