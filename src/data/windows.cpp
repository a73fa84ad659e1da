// The windows of a set of shards: which shard and range a window is, and a batch row from it.
#include <algorithm>
#include <map>
#include <mutex>
#include <optional>

#include "cplm/base.h"
#include "cplm/data.h"
#include "data/read_retry.h"
#include "data/shard_cache.h"
#include "data/warm_files.h"

namespace cplm {
namespace {

[[noreturn]] void fail(const std::string& problem) { throw Error(problem, ExitCode::kBadData); }

// The one name of a file, whatever links lead to it.
std::filesystem::path real_path(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::path real = std::filesystem::canonical(path, error);
  if (error) fail(str(path.string(), ": ", error.message()));
  return real;
}

using Patterns = std::vector<std::string>;

// One source's files, sorted as text. `pattern_of` remembers those of all sources: the same file
// twice would be read twice an epoch.
std::vector<std::filesystem::path> find_shards(
    const Patterns& patterns, std::map<std::filesystem::path, std::string>& pattern_of) {
  if (patterns.empty()) fail("no data: expected at least one path or pattern of shards");
  std::vector<std::filesystem::path> paths;
  for (const std::string& pattern : patterns) {
    const std::vector<std::filesystem::path> matches = glob_paths(pattern);
    if (matches.empty()) {
      fail(str("no shard matches '", pattern, "' (seen from ",
               std::filesystem::current_path().string(),
               "); make shards with scripts/prepare_data.py or correct the pattern"));
    }
    for (const std::filesystem::path& path : matches) {
      const auto [first, added] = pattern_of.emplace(real_path(path), pattern);
      if (!added) {
        fail(str(path.string(), " is matched twice, by '", first->second, "' and '", pattern,
                 "'; each shard may be named once"));
      }
      paths.push_back(path);
    }
  }
  std::sort(paths.begin(), paths.end(),
            [](const auto& a, const auto& b) { return a.native() < b.native(); });
  return paths;
}

template <class T>
void require_same(std::string_view name, const ShardInfo& first, const T& expected,
                  const ShardInfo& other, const T& found) {
  if (expected == found) return;
  fail(str("shards do not belong together: ", name, " is ", expected, " in ", first.path.string(),
           " but ", found, " in ", other.path.string()));
}

ShardInfo read_header(const std::filesystem::path& path) {
  ShardInfo info;
  read_with_retry(
      {}, [&] { info = ShardReader(path).info(); }, [] {});
  return info;
}

void require_same_vocabulary(const ShardInfo& first, const ShardInfo& other) {
  require_same("vocab_size", first, first.vocab_size, other, other.vocab_size);
  require_same("eos_token_id", first, first.eos_token_id, other, other.eos_token_id);
  require_same("tokenizer_sha256", first, first.tokenizer_sha256, other, other.tokenizer_sha256);
}

bool is_mixture(const std::vector<DataSource>& sources) {
  return sources.size() > 1 && sources.front().weight.has_value();
}

}  // namespace

TokenBatch TokenBatch::sized(int64_t rows, int64_t sequence_length) {
  TokenBatch batch;
  batch.rows = rows;
  batch.sequence_length = sequence_length;
  batch.tokens.resize(static_cast<size_t>(rows * (sequence_length + 1)));
  batch.target_counted.resize(static_cast<size_t>(rows * sequence_length));
  batch.document_start.resize(static_cast<size_t>(rows * sequence_length));
  batch.window_index.resize(static_cast<size_t>(rows), -1);
  return batch;
}

struct WindowSet::Impl {
  Impl(int64_t length, ShortWindows windows_at_ends)
      : sequence_length(length), short_windows(windows_at_ends) {
    CPLM_CHECK(length > 0 && length < INT32_MAX,
               "[data.windows] expected sequence_length > 0 and below 2^31 - 1, got ", length);
  }

  int64_t num_windows(const ShardInfo& shard) const {
    const int64_t targets = std::max<int64_t>(shard.token_count - 1, 0);
    const bool keeps_short = short_windows == ShortWindows::kKeep && targets % sequence_length != 0;
    return targets / sequence_length + (keeps_short ? 1 : 0);
  }

  void add_source(const Patterns& patterns, double weight) {
    const size_t first_shard = shards.size();
    const int64_t first = first_window.back();
    int64_t longest = 0;
    const std::vector<std::filesystem::path> paths = find_shards(patterns, pattern_of);
    warm_headers(paths);
    for (const std::filesystem::path& path : paths) {
      shards.push_back(read_header(path));
      require_same_vocabulary(shards.front(), shards.back());
      first_window.push_back(first_window.back() + num_windows(shards.back()));
      longest = std::max(longest, shards.back().token_count);
    }
    if (first_window.back() == first) {
      fail(str("no window of sequence_length + 1 = ", sequence_length + 1, " tokens in ",
               shards.size() - first_shard, " shard(s), the longest has ", longest, ": ",
               shards[first_shard].path.string(), (shards.size() - first_shard > 1 ? ", ..." : ""),
               "; use more data or a smaller data.sequence_length"));
    }
    sources.push_back({join(patterns, ", "), weight, first_window.back() - first});
    shards_up_to.push_back(shards.size());
  }

  struct Range {
    size_t shard = 0;
    int64_t number = 0;   // of the window in its shard
    int64_t begin = 0;    // first token
    int64_t targets = 0;  // sequence_length, fewer in a short window
  };

  Range range_of(int64_t index) const {
    CPLM_CHECK(index >= 0 && index < first_window.back(),
               "[data.windows] expected a window in 0 to ", first_window.back() - 1, ", got ",
               index);
    const auto after = std::upper_bound(first_window.begin(), first_window.end(), index);
    Range range;
    range.shard = static_cast<size_t>(after - first_window.begin()) - 1;
    range.number = index - first_window[range.shard];
    range.begin = range.number * sequence_length;
    range.targets = std::min(sequence_length, shards[range.shard].token_count - 1 - range.begin);
    return range;
  }

  // document_start of one row; returns whether a document starts inside it.
  bool fill_document_starts(const Range& range, int32_t* out) {
    int32_t start = 0;
    int64_t position = 0;
    const std::vector<int64_t> starts =
        cache->document_starts_between(range.shard, range.begin, range.begin + range.targets);
    for (const int64_t token : starts) {
      std::fill(out + position, out + (token - range.begin), start);
      position = token - range.begin;
      start = static_cast<int32_t>(position);
    }
    std::fill(out + position, out + sequence_length, start);
    return !starts.empty();
  }

  const int64_t sequence_length;
  const ShortWindows short_windows;
  std::map<std::filesystem::path, std::string> pattern_of;  // by the file's one name
  std::vector<WindowSource> sources;
  std::vector<size_t> shards_up_to;  // the end of each source's
  std::vector<ShardInfo> shards;
  std::vector<int64_t> first_window = {0};  // of each shard, and the total at the end
  std::mutex mutex;                         // guards the cache
  std::optional<ShardCache> cache;
};

WindowSet::WindowSet(const std::vector<std::string>& patterns, int64_t sequence_length,
                     ShortWindows short_windows)
    : impl_(std::make_unique<Impl>(sequence_length, short_windows)) {
  impl_->add_source(patterns, 1);
  impl_->cache.emplace(impl_->shards, impl_->sources.size());
}

WindowSet::WindowSet(const std::vector<DataSource>& sources, int64_t sequence_length,
                     ShortWindows short_windows)
    : impl_(std::make_unique<Impl>(sequence_length, short_windows)) {
  if (is_mixture(sources)) {
    for (const DataSource& source : sources) {
      impl_->add_source({source.path}, source.weight.value());
    }
  } else {
    Patterns patterns;
    for (const DataSource& source : sources) patterns.push_back(source.path);
    impl_->add_source(patterns, 1);
  }
  impl_->cache.emplace(impl_->shards, impl_->sources.size());
}

WindowSet::~WindowSet() = default;

int64_t WindowSet::size() const { return impl_->first_window.back(); }
int64_t WindowSet::sequence_length() const { return impl_->sequence_length; }
int64_t WindowSet::vocab_size() const { return impl_->shards.front().vocab_size; }
const std::vector<ShardInfo>& WindowSet::shards() const { return impl_->shards; }
const std::vector<WindowSource>& WindowSet::sources() const { return impl_->sources; }

std::string WindowSet::content_sha256() const {
  std::string hashes;
  for (size_t source = 0, shard = 0; source < impl_->sources.size(); ++source) {
    if (source > 0) hashes += "\n";
    for (; shard < impl_->shards_up_to[source]; ++shard) {
      hashes += impl_->shards[shard].content_sha256 + "\n";
    }
  }
  return sha256_hex(hashes);
}

void WindowSet::read_row(int64_t index, TokenBatch& batch, int64_t row) const {
  const int64_t length = impl_->sequence_length;
  CPLM_CHECK(batch.sequence_length == length && row >= 0 && row < batch.rows,
             "[data.windows] expected a row of a batch with sequence_length ", length, ", got row ",
             row, " of ", batch.rows, " with ", batch.sequence_length);
  const Impl::Range range = impl_->range_of(index);
  int32_t* tokens = batch.tokens.data() + row * (length + 1);
  uint8_t* counted = batch.target_counted.data() + row * length;
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->cache->read_tokens(range.shard, range.begin, range.targets + 1, tokens);
    impl_->cache->read_loss_mask(range.shard, range.begin + 1, range.targets, counted);
    batch.has_document_breaks |=
        impl_->fill_document_starts(range, batch.document_start.data() + row * length);
  }
  std::fill(tokens + range.targets + 1, tokens + length + 1, 0);
  std::fill(counted + range.targets, counted + length, uint8_t{0});
  batch.counted_targets += impl_->shards[range.shard].has_loss_mask
                               ? std::count(counted, counted + range.targets, uint8_t{1})
                               : range.targets;
  batch.window_index[static_cast<size_t>(row)] = index;
}

TokenBatch WindowSet::read_batch(const std::vector<int64_t>& indices) const {
  TokenBatch batch =
      TokenBatch::sized(static_cast<int64_t>(indices.size()), impl_->sequence_length);
  for (size_t row = 0; row < indices.size(); ++row) {
    read_row(indices[row], batch, static_cast<int64_t>(row));
  }
  return batch;
}

std::string WindowSet::describe(int64_t index) const {
  const Impl::Range range = impl_->range_of(index);
  return str(impl_->shards[range.shard].path.string(), ": window ", range.number, " (tokens ",
             range.begin, " to ", range.begin + range.targets, ")");
}

}  // namespace cplm
