// Looking at token shards as a whole: is every byte what was written, what is in there; and making
// synthetic ones. Reading them for training is cplm/data.h. No LibTorch here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cplm/data.h"

namespace cplm {

// ---- files --------------------------------------------------------------------------------------
// The shards that files, folders (their *.h5 and those one folder down) and globs name, each once.
// Error(kBadData) for a name that leads to none.
std::vector<std::filesystem::path> list_shards(const std::vector<std::string>& patterns);
// *.h5 in a folder, sorted.
std::vector<std::filesystem::path> shards_in_folder(const std::filesystem::path& folder);
// tokenizer.json beside a shard or one folder above.
std::optional<std::filesystem::path> find_tokenizer(const std::filesystem::path& shard);

// Bytes done and bytes to do; called some times a second.
using ShardProgress = std::function<void(int64_t done, int64_t total)>;

// ---- verifying ----------------------------------------------------------------------------------
// Every byte against checksums, content_sha256, offsets, ids, eos, and (when present, beside the
// shard or one folder above) manifest.json. Returns problems, one line each; empty when all is
// well.
std::vector<std::string> verify_shard(const std::filesystem::path& path);

struct VerifyOptions {
  std::function<void(const std::string&)> on_problem;  // a line, in the order of the shards
  ShardProgress on_progress;
};
struct VerifyReport {
  int64_t shards = 0;
  int64_t damaged_shards = 0;  // with a problem of their own
  int64_t problems = 0;        // those of the set among them
  int64_t tokens = 0, documents = 0;
};
// verify_shard for each, on all cores; then that they belong together (vocabulary, eos, tokenizer,
// also tokenizer.json), that none is there twice, and that manifest and folders agree.
VerifyReport verify_shards(const std::vector<std::filesystem::path>& shards,
                           const VerifyOptions& options);

// ---- inspecting ---------------------------------------------------------------------------------
struct InspectOptions {
  int64_t sequence_length = 2048;   // of the windows
  int64_t frequent_tokens = 20;     // listed
  int64_t samples = 3;              // documents shown
  int64_t sample_tokens = 64;       // of each
  uint64_t seed = 0;                // other documents
  std::filesystem::path tokenizer;  // empty: the one that the shards name, where it is found
  ShardProgress on_progress;
};
// Targets, and those whose token occurs earlier in their window, as the copy head sees it.
struct CopyReach {
  int64_t targets = 0, found = 0;
};
struct DataReport {
  struct Shard {
    ShardInfo info;
    int64_t file_bytes = 0;
  };
  std::vector<Shard> shards;
  int64_t tokens = 0, documents = 0, file_bytes = 0;

  // Documents by length in tokens, eos included; bins of powers of two, quantiles to 1 %.
  struct LengthBin {
    int64_t min = 0, max = 0, documents = 0, tokens = 0;
  };
  std::vector<LengthBin> lengths;
  int64_t shortest = 0, longest = 0, median = 0, ninth_decile = 0, last_percentile = 0;
  int64_t without_tokens = 0, eos_only = 0;  // empty documents

  int64_t eos_tokens = 0, ended_by_eos = 0;  // the rest stand inside documents

  // Documents with text, by a 128-bit hash. Of a set too large for memory a share is looked at,
  // chosen by the hash, so that copies of one document are looked at together.
  int64_t looked_at = 0, duplicates = 0, most_copies = 0;
  bool looked_at_all = true;

  struct TokenCount {
    int64_t id = 0, count = 0;
    std::string text;  // as from a terminal, escaped; empty when not known
  };
  int64_t distinct_tokens = 0;
  std::vector<TokenCount> frequent;

  CopyReach first_half, second_half;  // of the windows
  CopyReach counted;                  // by loss_mask; everything without one

  bool has_loss_mask = false;
  int64_t counted_tokens = 0, uncounted_documents = 0;

  std::string tokenizer;    // its path; empty: ids are shown
  std::string why_no_text;  // then
  struct Sample {
    std::filesystem::path shard;
    int64_t document = 0, tokens = 0;
    std::string text;  // of its first tokens
  };
  std::vector<Sample> samples;
};
// One pass over each shard, on all cores; memory does not grow with the shards. Error(kBadData) for
// shards that disagree about vocabulary, eos or tokenizer.
DataReport inspect_shards(const std::vector<std::filesystem::path>& shards,
                          const InspectOptions& options);

// ---- synthetic sets (docs/synthetic-data.md)
// ------------------------------------------------------
enum class SyntheticKind { kRepeat, kRecall, kSpamlang };
enum class CountedTargets {
  kAll,
  kAnswers,  // those that the sample itself determines
};
// Both ends included.
struct WholeRange {
  int64_t min = 0, max = 0;
};
struct SyntheticOptions {
  SyntheticKind kind = SyntheticKind::kRepeat;
  std::filesystem::path output;
  int64_t vocab_size = 0;
  int64_t eos_token_id = 0;
  int64_t first_symbol = 0;     // symbols are the ids from here to vocab_size - 1
  int64_t sequence_length = 0;  // T; a sample is a window of T + 1 tokens
  int64_t samples = 0;          // for training
  int64_t validation_samples = 0;
  uint64_t seed = 0;
  CountedTargets counted = CountedTargets::kAll;
  int64_t shard_tokens = int64_t{1} << 24;  // held in memory
  std::optional<WholeRange> repeat_length;  // repeat; not given: the longest that is whole twice
  int64_t pairs = 0;                        // recall: keys with their values
  int64_t queries = 0;                      // recall: pairs asked for
  int64_t filler_symbols = 0;               // recall: ids that are neither keys nor values
  std::optional<WholeRange> distance;  // recall: of the last answer to its value; not given: any
  int64_t held_out = 0;                // spamlang: symbols that training never shows
};
// The settings of PROTOCOLS.md.
SyntheticOptions synthetic_defaults(SyntheticKind kind);
std::string_view name_of(SyntheticKind kind);  // "repeat"
// Writes OUTPUT/train, OUTPUT/validation (and for spamlang OUTPUT/held_out) with
// OUTPUT/manifest.json. OUTPUT appears whole or not at all; files are byte-equal for equal options.
// Error(kBadConfig) for options that do not fit and for an output that is not empty.
void make_synthetic(const SyntheticOptions& options, const ShardProgress& on_progress);

}  // namespace cplm
