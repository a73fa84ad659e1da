// The decoding loop: prompts in one pass, then one token a text and pass, or a token and a draft of
// what follows it. A text that ends leaves the batch.
#include "cplm/generate.h"

#include <algorithm>
#include <chrono>

#include "cplm/base.h"
#include "generate/copy_draft.h"
#include "generate/sampler.h"

namespace cplm {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Text {
  size_t prompt = 0;
  int64_t prompt_tokens = 0;
  std::vector<int64_t> ids;   // prompt and new tokens
  std::vector<int64_t> feed;  // what the next pass takes: tokens not fed yet, and a draft behind
  int64_t fed = 0;            // positions before the feed
  DraftLength draft_length{0};
  std::optional<int64_t> source;  // the key that the last token was copied from; it goes along
  bool done = false;

  int64_t size() const { return static_cast<int64_t>(ids.size()); }
  int64_t new_tokens() const { return size() - prompt_tokens; }
  // Whether what was fed up to this position is the text.
  bool holds(int64_t position) const {
    return position + 1 == size() &&
           feed[static_cast<size_t>(position - fed)] == ids[static_cast<size_t>(position)];
  }
};

NextTokens rows_of(const NextTokens& next, size_t begin, size_t end) {
  if (begin == 0 && end == next.positions.size()) return next;
  const auto first = static_cast<int64_t>(begin), count = static_cast<int64_t>(end - begin);
  const auto part = [&](const at::Tensor& x) {
    return x.defined() && x.size(0) > 1 ? x.narrow(0, first, count) : x;
  };
  const auto slice = [&](const std::vector<int64_t>& x) {
    return std::vector<int64_t>(x.begin() + first, x.begin() + first + count);
  };
  NextTokens rows{slice(next.sequences), slice(next.positions), next.input};
  ops::NextTokenInput& in = rows.input;
  for (at::Tensor* x : {&in.logits, &in.copy_logit, &in.sink_score, &in.copy.scores,
                        &in.copy.context_lse, &in.ids, &in.range.begin, &in.range.end}) {
    *x = part(*x);
  }
  return rows;
}

// As many tokens as fit into a pass behind the one that is known.
int64_t longest_draft(const GenerateOptions& options) {
  return std::min(options.max_draft, options.decoder.prefill_chunk - 1);
}

class Generation {
 public:
  Generation(LanguageModel& model, const std::vector<std::vector<int64_t>>& prompts,
             const GenerateOptions& options, const OnToken& on_token)
      : model_(model),
        options_(options),
        on_token_(on_token),
        decoder_(model, decoder_options(options, prompts.size())),
        draft_source_(options.decoder.documents) {
    out_.texts.resize(prompts.size());
    const DraftLength draft_length(longest_draft(options));
    for (size_t i = 0; i < prompts.size(); ++i) {
      CPLM_CHECK(!prompts[i].empty(), "prompt ", i, ": expected at least one token, found none");
      const auto count = static_cast<int64_t>(prompts[i].size());
      texts_.push_back({i, count, prompts[i], prompts[i], 0, draft_length, {}, false});
      out_.counts.prompt_tokens += count;
    }
  }

  Generated run() {
    if (options_.max_new_tokens == 0) return std::move(out_);
    auto start = Clock::now();
    pass(/*of_prompts=*/true);
    out_.counts.prefill_s = seconds_since(start);
    start = Clock::now();
    while (keep_unfinished()) {
      pass(/*of_prompts=*/false);
      ++out_.counts.passes;
    }
    out_.counts.decode_s = seconds_since(start);
    return std::move(out_);
  }

 private:
  static DecoderOptions decoder_options(const GenerateOptions& options, size_t prompts) {
    DecoderOptions decoder = options.decoder;
    decoder.sequences = static_cast<int64_t>(prompts);
    decoder.rewind_room =
        options.speculation == Speculation::kCopy ? longest_draft(options) + 1 : 0;
    return decoder;
  }

  Text& text_of(int64_t sequence) { return texts_[static_cast<size_t>(sequence)]; }

  void pass(bool of_prompts) {
    std::vector<NewTokens> tokens;
    for (size_t i = 0; i < texts_.size(); ++i) {
      const auto count = static_cast<int64_t>(texts_[i].feed.size());
      tokens.push_back({static_cast<int64_t>(i), texts_[i].feed, of_prompts ? 1 : count,
                        !of_prompts && count > 1});
    }
    for (const NextTokens& next : decoder_.advance(tokens)) take(next);
    const CacheBytes caches = decoder_.bytes();
    if (caches.total() > out_.counts.caches.total()) out_.counts.caches = caches;
    for (size_t i = 0; i < texts_.size(); ++i) prepare(static_cast<int64_t>(i), of_prompts);
  }

  // Neighbouring rows of one mode are looked at together.
  void take(const NextTokens& next) {
    const auto mode_of_row = [&](size_t r) {
      const Text& text = text_of(next.sequences[r]);
      return mode_at(options_.mode, options_.mode_changes,
                     next.positions[r] + 1 - text.prompt_tokens);
    };
    for (size_t begin = 0; begin < next.positions.size();) {
      size_t end = begin + 1;
      while (end < next.positions.size() && mode_of_row(end) == mode_of_row(begin)) ++end;
      take_rows(rows_of(next, begin, end), mode_of_row(begin));
      begin = end;
    }
  }

  // The chosen tokens, as long as the drafts before them are what was chosen.
  void take_rows(const NextTokens& next, CopyMode mode) {
    std::vector<int64_t> prompts;
    for (const int64_t sequence : next.sequences) {
      prompts.push_back(options_.first_prompt + static_cast<int64_t>(text_of(sequence).prompt));
    }
    const Chosen chosen =
        choose_tokens(next, mode, options_.sampling, prompts, model_.options().ops);
    for (size_t r = 0; r < chosen.ids.size(); ++r) {
      Text& text = text_of(next.sequences[r]);
      if (text.done || !text.holds(next.positions[r])) continue;
      accept(text, chosen.ids[r], chosen.log_probs[r]);
      const bool is_last = r + 1 == chosen.ids.size() ||
                           next.sequences[r + 1] != next.sequences[r] ||
                           !text.holds(next.positions[r + 1]);
      if (options_.speculation == Speculation::kCopy && is_last && !text.done) {
        const auto row = static_cast<int64_t>(r);
        const auto source = committed_position(next.input, row, chosen.ids[r]);
        if (source) text.source = source;
      }
    }
  }

  void accept(Text& text, int64_t id, double log_prob) {
    GeneratedText& out = out_.texts[text.prompt];
    out.ids.push_back(id);
    out.log_probs.push_back(log_prob);
    follow_source(text, id);
    text.ids.push_back(id);
    ++out_.counts.new_tokens;
    const bool goes_on = !on_token_ || on_token_({text.prompt, id, log_prob});
    const bool is_stop = std::find(options_.stop_ids.begin(), options_.stop_ids.end(), id) !=
                         options_.stop_ids.end();
    if (!goes_on) out.reason = StopReason::kCaller;
    if (is_stop) out.reason = StopReason::kStopId;
    text.done = is_stop || !goes_on || text.new_tokens() >= options_.max_new_tokens;
  }

  // The source goes on as long as the text follows it, whether its tokens are drafted or not.
  void follow_source(Text& text, int64_t id) const {
    if (!text.source) return;
    const std::vector<int64_t> guess = draft_source_.draft(text.ids, *text.source, 1);
    const bool holds = guess.size() == 1 && guess.front() == id;
    if (!guess.empty()) text.draft_length.compared(holds);
    text.source = holds ? std::optional(*text.source + 1) : std::nullopt;
  }

  // Takes back what the text does not hold of the last feed, and makes the next one.
  void prepare(int64_t sequence, bool of_prompts) {
    Text& text = text_of(sequence);
    const int64_t last = text.size() - 1;  // chosen, not fed yet
    if (!of_prompts) {
      const auto drafted = static_cast<int64_t>(text.feed.size()) - 1;
      out_.counts.drafted += drafted;
      out_.counts.accepted += std::min(drafted, last - text.fed - 1);
    }
    if (text.done) return;
    if (decoder_.length(sequence) > last) decoder_.rewind(sequence, last);
    text.fed = last;
    text.feed = {text.ids.back()};
    if (!text.source) return;
    const int64_t room = options_.max_new_tokens - text.new_tokens() - 1;
    const std::vector<int64_t> draft =
        draft_source_.draft(text.ids, *text.source, std::min(room, text.draft_length.next()));
    text.feed.insert(text.feed.end(), draft.begin(), draft.end());
  }

  bool keep_unfinished() {
    std::vector<int64_t> kept;
    std::vector<Text> texts;
    for (size_t i = 0; i < texts_.size(); ++i) {
      if (texts_[i].done) continue;
      kept.push_back(static_cast<int64_t>(i));
      texts.push_back(std::move(texts_[i]));
    }
    if (!kept.empty() && kept.size() < texts_.size()) decoder_.select(kept);
    texts_ = std::move(texts);
    return !texts_.empty();
  }

  Generated out_;
  LanguageModel& model_;
  GenerateOptions options_;
  OnToken on_token_;
  Decoder decoder_;
  DraftSource draft_source_;
  std::vector<Text> texts_;  // by sequence of the decoder
};

void check_options(const LanguageModel& model, const GenerateOptions& options) {
  const SamplingOptions& sampling = options.sampling;
  const auto expect = [](bool holds, const std::string& message) {
    if (!holds) throw Error(message, ExitCode::kBadConfig);
  };
  expect(options.max_new_tokens >= 0,
         str("max_new_tokens: expected at least 0, found ", options.max_new_tokens));
  expect(sampling.temperature == 0 || (sampling.temperature >= 1e-6 && sampling.temperature <= 1e6),
         str("temperature: expected 0 (greedy) or 1e-6 to 1e6, found ", sampling.temperature));
  expect(sampling.top_k >= 0, str("top_k: expected at least 0, found ", sampling.top_k));
  expect(sampling.top_p > 0 && sampling.top_p <= 1,
         str("top_p: expected above 0 and at most 1, found ", sampling.top_p));
  expect(options.max_draft >= 1, str("max_draft: expected at least 1, found ", options.max_draft));
  if (model.config().head == HeadKind::kCplm) return;
  bool copies = options.mode == CopyMode::kForceCopy;
  for (const auto& [first, mode] : options.mode_changes) copies |= mode == CopyMode::kForceCopy;
  expect(!copies, "mode force_copy: expected a model with a copy head, found model.head: vanilla");
  expect(options.speculation == Speculation::kNone,
         "speculation by copying: expected a model with a copy head, found model.head: vanilla");
}

}  // namespace

CopyMode mode_at(CopyMode first, const ModeChanges& changes, int64_t new_token) {
  CopyMode mode = first;
  for (const auto& [from, changed] : changes) {
    if (new_token >= from) mode = changed;
  }
  return mode;
}

Generated generate(LanguageModel& model, const std::vector<std::vector<int64_t>>& prompts,
                   const GenerateOptions& options, const OnToken& on_token) {
  check_options(model, options);
  if (prompts.empty()) return {};
  return Generation(model, prompts, options, on_token).run();
}

}  // namespace cplm
