// The three kinds of samples (docs/synthetic-data.md), and which options make sense.
#include "data/synthetic_sample.h"

#include <algorithm>
#include <numeric>
#include <unordered_set>

namespace cplm {
namespace {

constexpr int64_t kMaxVocabSize = int64_t{1} << 24;  // spamlang shuffles the symbols in memory
constexpr int64_t kMaxSequenceLength = int64_t{1} << 24;
constexpr int64_t kMaxSamples = int64_t{1} << 40;

void require_in(const char* option, int64_t value, int64_t min, int64_t max,
                std::string_view why = "") {
  if (value >= min && value <= max) return;
  throw Error(str(option, ": expected ", min, " to ", max, why, ", found ", value),
              ExitCode::kBadConfig);
}

void require_range(const char* option, const WholeRange& range, int64_t min, int64_t max,
                   std::string_view why) {
  require_in(option, range.min, min, max, why);
  require_in(option, range.max, range.min, max, why);
}

void check_common(const SyntheticOptions& options) {
  require_in("--vocab-size", options.vocab_size, 2, kMaxVocabSize);
  require_in("--eos-id", options.eos_token_id, 0, options.vocab_size - 1, " (below --vocab-size)");
  require_in("--first-symbol", options.first_symbol, 0, options.vocab_size - 1,
             " (below --vocab-size)");
  if (options.eos_token_id >= options.first_symbol) {
    throw Error(str("--first-symbol: expected above --eos-id ", options.eos_token_id,
                    ", which is no symbol, found ", options.first_symbol),
                ExitCode::kBadConfig);
  }
  require_in("--sequence-length", options.sequence_length, 4, kMaxSequenceLength);
  require_in("--samples", options.samples, 1, kMaxSamples);
  require_in("--validation-samples", options.validation_samples, 1, kMaxSamples);
  require_in("--shard-tokens", options.shard_tokens, 1, INT64_MAX);
}

void check_repeat(SyntheticOptions& options) {
  const int64_t length = options.sequence_length;
  if (!options.repeat_length) {
    options.repeat_length = WholeRange{(length - 1) / 2, (length - 1) / 2};
  }
  require_range("--repeat-length", *options.repeat_length, 1, length - 3,
                str(" (so that something repeats within --sequence-length ", length, ")"));
}

void check_recall(SyntheticOptions& options, int64_t num_symbols) {
  const int64_t length = options.sequence_length;
  require_in("--filler-symbols", options.filler_symbols, 1, num_symbols - 2,
             str(" (of ", num_symbols, " symbols, a key and a value left)"));
  const int64_t num_keys = (num_symbols - options.filler_symbols) / 2;
  require_in("--pairs", options.pairs, 1, num_keys,
             " (half of the symbols that are not filler are keys)");
  require_in("--queries", options.queries, 1, options.pairs, " (--pairs)");
  if (2 * (options.pairs + options.queries) > length - 2) {
    throw Error(str("--sequence-length: expected at least 2 x (--pairs + --queries) + 2 = ",
                    2 * (options.pairs + options.queries) + 2, ", found ", length),
                ExitCode::kBadConfig);
  }
  const WholeRange possible{2 * options.queries, length - 3};
  if (!options.distance) options.distance = possible;
  require_range("--distance", *options.distance, possible.min, possible.max,
                " (2 x --queries to --sequence-length - 3)");
}

}  // namespace

int64_t SampleRandom::below(int64_t bound) {
  const auto range = static_cast<uint64_t>(bound);
  const uint64_t rejected = (0 - range) % range;  // else small numbers would come more often
  uint64_t drawn = next();
  while (drawn < rejected) drawn = next();
  return static_cast<int64_t>(drawn % range);
}

std::vector<int64_t> SampleRandom::distinct(int64_t count, int64_t bound) {
  std::vector<int64_t> drawn;
  std::unordered_set<int64_t> seen;
  while (static_cast<int64_t>(drawn.size()) < count) {
    const int64_t number = below(bound);
    if (seen.insert(number).second) drawn.push_back(number);
  }
  return drawn;
}

SampleMaker::SampleMaker(const SyntheticOptions& options) : options_(options) {
  check_common(options_);
  num_symbols_ = options_.vocab_size - options_.first_symbol;
  if (options_.kind == SyntheticKind::kRepeat) check_repeat(options_);
  if (options_.kind == SyntheticKind::kRecall) check_recall(options_, num_symbols_);
  if (options_.kind != SyntheticKind::kSpamlang) return;
  require_in("--held-out", options_.held_out, 0, num_symbols_ - 1,
             str(" (of ", num_symbols_, " symbols)"));
  shuffled_.resize(static_cast<size_t>(num_symbols_));
  std::iota(shuffled_.begin(), shuffled_.end(), symbol(0));
  SampleRandom random(options_.seed, "spamlang symbols", 0);
  random.shuffle(shuffled_);
}

void SampleMaker::make(std::string_view split, int64_t index, SyntheticSample& sample) const {
  SampleRandom random(options_.seed, str(name_of(options_.kind), " ", split), index);
  const auto length = static_cast<size_t>(options_.sequence_length);
  sample.tokens.resize(length);
  sample.is_answer.assign(length, 0);
  switch (options_.kind) {
    case SyntheticKind::kRepeat:
      make_repeat(random, sample);
      break;
    case SyntheticKind::kRecall:
      make_recall(random, sample);
      break;
    case SyntheticKind::kSpamlang:
      make_spamlang(random, split == "held_out", sample);
      break;
  }
  sample.tokens.back() = static_cast<int32_t>(options_.eos_token_id);
}

// The first token of a copy is an answer from the third copy on: only then is the length known.
void SampleMaker::make_repeat(SampleRandom& random, SyntheticSample& sample) const {
  const auto period = static_cast<size_t>(random.in(*options_.repeat_length));
  for (size_t i = 0; i + 1 < sample.tokens.size(); ++i) {
    sample.tokens[i] = i < period ? symbol(random.below(num_symbols_)) : sample.tokens[i - period];
    sample.is_answer[i] = i > period ? 1 : 0;
  }
}

// filler, pairs, filler, queries. The last query's value stands `distance` tokens before the
// answer: the place of the pairs follows from the pair that it asks for.
void SampleMaker::make_recall(SampleRandom& random, SyntheticSample& sample) const {
  const int64_t filler = options_.filler_symbols, num_keys = (num_symbols_ - filler) / 2;
  const int64_t num_values = num_symbols_ - filler - num_keys;
  const int64_t pairs = options_.pairs, queries = options_.queries;
  const int64_t answer = options_.sequence_length - 2;  // its place in the sample
  const int64_t distance = random.in(*options_.distance);
  const int64_t room = answer + 1 - 2 * queries;  // places before the queries
  const WholeRange asked_range{std::max<int64_t>(0, (2 * (pairs + queries) - 1 - distance) / 2),
                               std::min(pairs - 1, (answer - 1 - distance) / 2)};
  const int64_t asked = random.in(asked_range);
  const int64_t begin = answer - distance - 2 * asked - 1;
  CPLM_CHECK(begin >= 0 && begin + 2 * pairs <= room, "[data.synthetic] no room for the pairs at ",
             begin);
  const auto place = [&](int64_t at) -> int32_t& { return sample.tokens[static_cast<size_t>(at)]; };
  for (int64_t i = 0; i < room; ++i) place(i) = symbol(random.below(filler));
  const std::vector<int64_t> keys = random.distinct(pairs, num_keys);
  const std::vector<int64_t> values = random.distinct(pairs, num_values);
  const auto put_pair = [&](int64_t at, int64_t pair) {
    place(at) = symbol(filler + keys[static_cast<size_t>(pair)]);
    place(at + 1) = symbol(filler + num_keys + values[static_cast<size_t>(pair)]);
  };
  for (int64_t pair = 0; pair < pairs; ++pair) put_pair(begin + 2 * pair, pair);
  std::vector<int64_t> others = random.distinct(queries - 1, pairs - 1);
  for (int64_t query = 0; query < queries; ++query) {
    const bool last = query == queries - 1;
    const int64_t other = last ? 0 : others[static_cast<size_t>(query)];
    put_pair(room + 2 * query, last ? asked : other + (other >= asked ? 1 : 0));
    sample.is_answer[static_cast<size_t>(room + 2 * query + 1)] = 1;
  }
}

void SampleMaker::make_spamlang(SampleRandom& random, bool held_out,
                                SyntheticSample& sample) const {
  const int64_t hidden = options_.held_out;
  const int64_t number =
      held_out ? random.below(hidden) : hidden + random.below(num_symbols_ - hidden);
  std::fill(sample.tokens.begin(), sample.tokens.end(), shuffled_[static_cast<size_t>(number)]);
  std::fill(sample.is_answer.begin() + 1, sample.is_answer.end() - 1, uint8_t{1});
}

}  // namespace cplm
