// Token shards (HDF5, docs/shard-format.md), the windows they are cut into, and the order in which
// a run reads them. No LibTorch here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cplm/config.h"

namespace cplm {

// ---- one shard ----------------------------------------------------------------------------------
struct ShardInfo {
  std::filesystem::path path;
  int64_t format_version = 0;
  int64_t vocab_size = 0;
  int64_t eos_token_id = 0;
  std::string tokenizer_sha256;
  int64_t token_count = 0;
  int64_t document_count = 0;
  std::string source;
  std::string content_sha256;
  bool has_loss_mask = false;
  int token_bytes = 0;  // 2 or 4
  bool has_gzip = false;
  int64_t tokens_per_chunk = 0;
  int64_t offsets_per_chunk = 0;
};

// Reads one shard. Every method throws Error(kBadData) naming file, dataset and index. Opening
// reads only the header; memory does not grow with the shard. Not for several threads at once.
class ShardReader {
 public:
  explicit ShardReader(const std::filesystem::path& path);
  ~ShardReader();
  ShardReader(ShardReader&&) noexcept;
  ShardReader& operator=(ShardReader&&) noexcept;

  const ShardInfo& info() const;
  // Tokens [begin, begin + count) widened to int32; an id at or above vocab_size is an error.
  void read_tokens(int64_t begin, int64_t count, int32_t* out) const;
  // The same as stored, of a shard whose info().token_bytes is 2.
  void read_tokens(int64_t begin, int64_t count, uint16_t* out) const;
  // 1 = counted as a target, 0 = not; all ones when the shard has no mask.
  void read_loss_mask(int64_t begin, int64_t count, uint8_t* out) const;
  // Entries [begin, begin + count) of document_offsets, which has document_count + 1 of them: the
  // first is 0, the last token_count, and none is below the one before it.
  std::vector<int64_t> read_document_offsets(int64_t begin, int64_t count) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct ShardContents {
  std::vector<int32_t> tokens;
  std::vector<int64_t> document_offsets;
  std::vector<uint8_t> loss_mask;  // empty: none
  int64_t vocab_size = 0;
  int64_t eos_token_id = 0;
  std::string tokenizer_sha256;
  std::string source;
  int gzip_level = 0;  // 0: stored plainly; 1-9: byte shuffle and gzip
};
// Writes aside, fsyncs, renames. Byte-equal for equal contents; same format as prepare_data.py.
// Contents that the format forbids are an Error before anything is written.
void write_shard(const std::filesystem::path& path, const ShardContents& contents);

// ---- windows ------------------------------------------------------------------------------------
// Rows of a batch. Row r position t: inputs tokens[r*(T+1)+t], targets tokens[r*(T+1)+t+1].
struct TokenBatch {
  int64_t rows = 0;
  int64_t sequence_length = 0;          // T
  std::vector<int32_t> tokens;          // [rows, T+1]; past a short window's end: 0
  std::vector<uint8_t> target_counted;  // [rows, T]; 1 = counted as a target
  std::vector<int32_t> document_start;  // [rows, T]; first position of t's document in the row
  std::vector<int64_t> window_index;    // [rows]; index into the WindowSet
  int64_t counted_targets = 0;          // sum of target_counted
  bool has_document_breaks = false;     // some document_start is not 0

  static TokenBatch sized(int64_t rows, int64_t sequence_length);
};

// Windows that are trained in one order: those of a plain list of patterns, or of one source of a
// weighted mixture.
struct WindowSource {
  std::string path;  // its patterns, for people
  double weight = 1;
  int64_t num_windows = 0;
};

// All windows of some shards, source after source and within one in shard order (paths sorted as
// text): window j of a shard is its tokens jT .. jT+T. Windows never cross shards. Opens nothing
// but headers until a row is read; open files and cached chunks are bounded, whatever the size of
// the set. Safe for several threads.
class WindowSet {
 public:
  enum class ShortWindows { kDrop, kKeep };  // training drops a shard's short last window
  // Error(kBadData) when a pattern matches nothing, a file is matched twice, shards disagree
  // (vocabulary, eos, tokenizer), or there is no window at all.
  WindowSet(const std::vector<std::string>& patterns, int64_t sequence_length,
            ShortWindows short_windows);
  // data.train of a config: one source when no entry has a weight, else a source each.
  WindowSet(const std::vector<DataSource>& sources, int64_t sequence_length,
            ShortWindows short_windows);
  ~WindowSet();

  int64_t size() const;
  int64_t sequence_length() const;
  int64_t vocab_size() const;
  const std::vector<ShardInfo>& shards() const;
  const std::vector<WindowSource>& sources() const;
  // One hash over the shards' content_sha256 in order, and over which source each belongs to: tells
  // the same data from other data, whatever the files are called.
  std::string content_sha256() const;
  // Fills row `row` of a batch made by TokenBatch::sized with window `index`, and adds its targets
  // and document breaks to the batch's. Past a short window's end nothing is counted.
  void read_row(int64_t index, TokenBatch& batch, int64_t row) const;
  // Rows for the given windows, in that order.
  TokenBatch read_batch(const std::vector<int64_t>& indices) const;
  // Name of the shard and window number in it, for messages and forensic records.
  std::string describe(int64_t index) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// ---- order --------------------------------------------------------------------------------------
// The window at place `index` of epoch `epoch`: a bijection of [0, num_windows) for each
// (seed, epoch), computed without a table. Blocks of 32 consecutive windows are permuted, then the
// places within each span of 8192, so that reads stay within few file chunks at a time. This order
// is a promise (docs/data-order.md): it never changes for a given seed.
int64_t window_at(uint64_t seed, int64_t epoch, int64_t index, int64_t num_windows);

// Which window stands at each place of a whole run, a pure function of the seed and the sources:
// of a single source window_at of its epochs; of several, every 8192 sequences hold their shares,
// mixed, and each source goes through epochs of its own. Also a promise (docs/data-order.md).
class TrainingOrder {
 public:
  // Error when a source has no window, or less than DataSource::kMinShare of the weights.
  TrainingOrder(uint64_t seed, std::vector<WindowSource> sources);
  // Index among all sources' windows, numbered source after source.
  int64_t window_of(int64_t sequence) const;
  const std::vector<WindowSource>& sources() const { return sources_; }
  // How many of the first `num_sequences` sequences come from each source.
  std::vector<int64_t> taken(int64_t num_sequences) const;

 private:
  struct Turn {
    size_t source;
    int64_t number;  // of this sequence among the source's, over all its epochs
  };
  Turn turn_of(int64_t sequence) const;

  uint64_t seed_;
  std::vector<WindowSource> sources_;
  std::vector<int64_t> borders_;  // sums of the shares up to and with each source, in 2^-32
  std::vector<int64_t> first_windows_;
  std::vector<uint64_t> seeds_;
};

// Streams a rank's rows of global batches: global sequence n (= step * global_rows + i) is window
// TrainingOrder(seed, windows.sources()).window_of(n). Batches depend on seed, data and step only.
struct LoaderOptions {
  uint64_t seed = 0;
  int64_t global_rows = 0;  // G sequences a step over all ranks
  int64_t first_row = 0;    // this rank's share of each global batch: [first_row, last_row)
  int64_t last_row = 0;
  int64_t first_step = 0;  // steps already done
  int64_t prefetch = 2;    // global batches read ahead
};
class BatchLoader {
 public:
  BatchLoader(const WindowSet& windows, const LoaderOptions& options);
  ~BatchLoader();
  // The next step's rows; waits for the reader thread and rethrows its errors here, after the
  // batches that were read before them.
  TokenBatch next();
  // Seconds next() has waited since the last call of this.
  double take_wait_seconds();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cplm
