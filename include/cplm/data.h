// Token shards (HDF5), the windows they are cut into, and the order in which a run reads them.
// No LibTorch here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

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
};

// Reads one shard. Every method throws Error(kBadData) naming file, dataset and index.
class ShardReader {
 public:
  explicit ShardReader(const std::filesystem::path& path);
  ~ShardReader();
  ShardReader(ShardReader&&) noexcept;
  ShardReader& operator=(ShardReader&&) noexcept;

  const ShardInfo& info() const;
  // Tokens [begin, begin + count) widened to int32; an id at or above vocab_size is an error.
  void read_tokens(int64_t begin, int64_t count, int32_t* out) const;
  // 1 = counted as a target; all ones when the shard has no mask.
  void read_loss_mask(int64_t begin, int64_t count, uint8_t* out) const;
  // document_count + 1 entries, first 0, last token_count, never decreasing.
  const std::vector<uint64_t>& document_offsets() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct ShardContents {
  std::vector<int32_t> tokens;
  std::vector<uint64_t> document_offsets;
  std::vector<uint8_t> loss_mask;  // empty: none
  int64_t vocab_size = 0;
  int64_t eos_token_id = 0;
  std::string tokenizer_sha256;
  std::string source;
};
// Writes aside, fsyncs, renames. Byte-equal for equal contents; same format as prepare_data.py.
void write_shard(const std::filesystem::path& path, const ShardContents& contents);
// Every byte against checksums, content_sha256, offsets, ids, and (when present) manifest.json.
// Returns problems, one line each; empty when all is well.
std::vector<std::string> verify_shard(const std::filesystem::path& path);
// A few lines for a person: attributes, counts, document lengths, eos census, first tokens.
std::string describe_shard(const std::filesystem::path& path);

// ---- windows ------------------------------------------------------------------------------------
// Rows of a batch. Row r position t: inputs tokens[r*(T+1)+t], targets tokens[r*(T+1)+t+1].
struct TokenBatch {
  int64_t rows = 0;
  int64_t sequence_length = 0;              // T
  std::vector<int32_t> tokens;              // [rows, T+1]; past a short window's end: 0
  std::vector<uint8_t> target_counted;      // [rows, T]; 1 = counted as a target
  std::vector<int32_t> document_start;      // [rows, T]; first position of t's document in the row
  std::vector<int64_t> window_index;        // [rows]; index into the WindowSet
  int64_t counted_targets = 0;              // sum of target_counted
  bool has_document_breaks = false;         // some document_start is not 0
};

// All windows of some shards, in shard order (file names sorted): window j of a shard is its
// tokens jT .. jT+T. Windows never cross shards. Opens nothing but headers until a row is read.
class WindowSet {
 public:
  enum class ShortWindows { kDrop, kKeep };  // training drops a shard's short last window
  // Error(kBadData) when a pattern matches nothing, shards disagree (vocabulary, eos, tokenizer),
  // or there is no window at all.
  WindowSet(const std::vector<std::string>& patterns, int64_t sequence_length, ShortWindows short_windows);
  ~WindowSet();

  int64_t size() const;
  int64_t sequence_length() const;
  int64_t vocab_size() const;
  const std::vector<ShardInfo>& shards() const;
  // Fills row `row` of the batch (already sized) with window `index`.
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
// (seed, epoch), computed without a table. Neighbours in the order stay within few file chunks:
// blocks of consecutive windows are permuted, then windows within spans of whole neighbouring blocks.
int64_t window_at(uint64_t seed, int64_t epoch, int64_t index, int64_t num_windows);

// Streams a rank's rows of global batches: global sequence n (= step * global_rows + i) is window
// window_at(seed, n / size, n % size). Batches depend on seed, data and step only.
struct LoaderOptions {
  uint64_t seed = 0;
  int64_t global_rows = 0;   // G sequences a step over all ranks
  int64_t first_row = 0;     // this rank's share of each global batch: [first_row, last_row)
  int64_t last_row = 0;
  int64_t first_step = 0;    // steps already done
  int64_t prefetch = 2;      // global batches read ahead
};
class BatchLoader {
 public:
  BatchLoader(const WindowSet& windows, const LoaderOptions& options);
  ~BatchLoader();
  // The next step's rows; waits for the reader thread and rethrows its errors here.
  TokenBatch next();
  // Seconds next() has waited since the last call of this.
  double take_wait_seconds();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cplm
