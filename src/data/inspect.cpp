// One pass over each shard: tokens and document ends are walked together, slice by slice, by as
// many threads as there are cores, a shard each.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <thread>

#include "cplm/base.h"
#include "cplm/shard_tools.h"
#include "data/document_census.h"
#include "data/token_census.h"
#include "data/token_text.h"

namespace cplm {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kSlice = 1 << 18;  // tokens; all its tables stay in a core's cache

// What one thread has counted.
struct Census {
  Census(const ShardInfo& info, const InspectOptions& options)
      : tokens(info.vocab_size, options.sequence_length), documents(info.eos_token_id) {}
  TokenCensus tokens;
  DocumentCensus documents;
};

// What all threads add to.
struct Shared {
  std::atomic<size_t> next_shard = 0;
  std::atomic<int64_t> tokens_done = 0;
  std::atomic<int> running = 0;
  std::mutex mutex;  // guards what follows
  DuplicateSet duplicates;
  std::exception_ptr error;
};

class ShardPass {
 public:
  ShardPass(const fs::path& path, Census& census, Shared& shared)
      : reader_(path), census_(census), shared_(shared) {}

  void run() {
    census_.tokens.begin_shard();
    const ShardInfo& info = reader_.info();
    for (int64_t begin = 0; begin < info.token_count; begin += kSlice) {
      const int64_t count = std::min(kSlice, info.token_count - begin);
      tokens_.resize(static_cast<size_t>(count));
      reader_.read_tokens(begin, count, tokens_.data());
      mask_.resize(info.has_loss_mask ? tokens_.size() : 0);
      if (info.has_loss_mask) reader_.read_loss_mask(begin, count, mask_.data());
      census_.tokens.add(tokens_, mask_);
      add_documents(begin, begin + count);
      hand_over_hashes();
      shared_.tokens_done += count;
    }
    add_documents(info.token_count, info.token_count);  // those without tokens at the end
  }

 private:
  // Cuts the slice at the ends of documents.
  void add_documents(int64_t begin, int64_t end) {
    int64_t place = begin;
    const auto piece = [&](int64_t to, bool ends) {
      const auto first = static_cast<size_t>(place - begin), size = static_cast<size_t>(to - place);
      census_.documents.add(
          std::span(tokens_).subspan(first, size),
          mask_.empty() ? std::span(mask_) : std::span(mask_).subspan(first, size), ends);
      place = to;
    };
    for (int64_t document_end = next_end(); document_end <= end; document_end = next_end()) {
      piece(document_end, true);
      ++next_;
    }
    if (place < end) piece(end, false);
  }

  int64_t next_end() {
    if (next_ == ends_.size()) {
      read_ += static_cast<int64_t>(ends_.size());
      const int64_t count = std::min(kSlice, reader_.info().document_count - read_);
      ends_ = reader_.read_document_offsets(read_ + 1, std::max<int64_t>(count, 0));
      next_ = 0;
    }
    return ends_.empty() ? INT64_MAX : ends_[next_];
  }

  void hand_over_hashes() {
    const std::vector<DocumentHash> hashes = census_.documents.take_hashes();
    const std::lock_guard lock(shared_.mutex);
    for (const DocumentHash& hash : hashes) shared_.duplicates.add(hash);
  }

  const ShardReader reader_;
  Census& census_;
  Shared& shared_;
  std::vector<int32_t> tokens_;
  std::vector<uint8_t> mask_;
  std::vector<int64_t> ends_;  // of the documents read_ and on
  size_t next_ = 0;
  int64_t read_ = 0;
};

void work(const std::vector<fs::path>& shards, Census& census, Shared& shared) {
  try {
    for (size_t i = shared.next_shard++; i < shards.size(); i = shared.next_shard++) {
      ShardPass(shards[i], census, shared).run();
    }
  } catch (...) {
    const std::lock_guard lock(shared.mutex);
    if (!shared.error) shared.error = std::current_exception();
    shared.next_shard = shards.size();
  }
  --shared.running;
}

// Joins also when a progress line throws.
class Threads {
 public:
  ~Threads() {
    for (std::thread& thread : threads_) thread.join();
  }
  template <class Body>
  void start(Body&& body) {
    threads_.emplace_back(std::forward<Body>(body));
  }

 private:
  std::vector<std::thread> threads_;
};

void count_all(const std::vector<fs::path>& shards, const InspectOptions& options,
               DataReport& report) {
  const ShardInfo& first = report.shards.front().info;
  Shared shared;
  const size_t cores = std::max(1U, std::thread::hardware_concurrency());
  std::vector<std::unique_ptr<Census>> counted;
  for (size_t i = 0; i < std::min(cores, shards.size()); ++i) {
    counted.push_back(std::make_unique<Census>(first, options));
  }
  shared.running = static_cast<int>(counted.size());
  {
    Threads threads;
    for (const auto& census : counted) {
      threads.start([&shards, &shared, mine = census.get()] { work(shards, *mine, shared); });
    }
    while (shared.running > 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      if (options.on_progress) options.on_progress(shared.tokens_done, report.tokens);
    }
  }
  if (shared.error) std::rethrow_exception(shared.error);
  Census& sum = *counted.front();
  for (size_t i = 1; i < counted.size(); ++i) {
    sum.tokens.merge(counted[i]->tokens);
    sum.documents.merge(counted[i]->documents);
  }
  sum.documents.write_to(report);
  report.distinct_tokens = sum.tokens.distinct();
  report.frequent = sum.tokens.most_frequent(options.frequent_tokens);
  report.first_half = sum.tokens.first_half();
  report.second_half = sum.tokens.second_half();
  report.counted = sum.tokens.counted();
  report.looked_at = shared.duplicates.looked_at();
  report.duplicates = shared.duplicates.duplicates();
  report.most_copies = shared.duplicates.most_copies();
  report.looked_at_all = shared.duplicates.looked_at_all();
}

template <class T>
void require_same(std::string_view name, const ShardInfo& first, const T& expected,
                  const ShardInfo& other, const T& found) {
  if (expected == found) return;
  throw Error(str(other.path.string(), ": ", name, " is ", found, ", but ", expected, " in ",
                  first.path.string(), "; inspect them one by one"),
              ExitCode::kBadData);
}

void read_headers(const std::vector<fs::path>& shards, DataReport& report) {
  for (const fs::path& path : shards) {
    const ShardInfo info = ShardReader(path).info();
    const ShardInfo& first = report.shards.empty() ? info : report.shards.front().info;
    require_same("vocab_size", first, first.vocab_size, info, info.vocab_size);
    require_same("eos_token_id", first, first.eos_token_id, info, info.eos_token_id);
    require_same("tokenizer_sha256", first, first.tokenizer_sha256, info, info.tokenizer_sha256);
    report.shards.push_back({info, static_cast<int64_t>(fs::file_size(path))});
    report.tokens += info.token_count;
    report.documents += info.document_count;
    report.file_bytes += report.shards.back().file_bytes;
    report.has_loss_mask |= info.has_loss_mask;
  }
}

std::optional<TokenText> load_tokenizer(const InspectOptions& options, DataReport& report) {
  const ShardInfo& first = report.shards.front().info;
  fs::path path = options.tokenizer;
  if (path.empty()) {
    const auto found = find_tokenizer(first.path);
    if (first.tokenizer_sha256.empty()) {
      report.why_no_text = "the shards name no tokenizer";
    } else if (!found) {
      report.why_no_text = "no tokenizer.json beside the shards or one folder above";
    } else if (sha256_file(*found) != first.tokenizer_sha256) {
      report.why_no_text = found->string() + " is not the shards' tokenizer (by its sha256)";
    }
    if (!report.why_no_text.empty()) return std::nullopt;
    path = *found;
  }
  report.tokenizer = path.string();
  return TokenText(path);
}

// Numbers of documents over all shards, sorted.
std::set<int64_t> choose_documents(const InspectOptions& options, int64_t documents) {
  std::set<int64_t> chosen;
  const int64_t wanted = std::min(options.samples, documents);
  for (uint64_t draw = 0; static_cast<int64_t>(chosen.size()) < wanted; ++draw) {
    const uint64_t word = mix64(mix64(options.seed) + draw * 0x9e3779b97f4a7c15ULL);
    chosen.insert(static_cast<int64_t>(word % static_cast<uint64_t>(documents)));
  }
  return chosen;
}

void take_samples(const InspectOptions& options, const std::optional<TokenText>& text,
                  DataReport& report) {
  const std::set<int64_t> chosen = choose_documents(options, report.documents);
  auto next = chosen.begin();
  int64_t first_document = 0;
  for (const auto& [info, bytes] : report.shards) {
    const int64_t end = first_document + info.document_count;
    std::optional<ShardReader> reader;
    for (; next != chosen.end() && *next < end; ++next) {
      if (!reader) reader.emplace(info.path);
      const int64_t document = *next - first_document;
      const std::vector<int64_t> range = reader->read_document_offsets(document, 2);
      std::vector<int32_t> tokens(
          static_cast<size_t>(std::min(range[1] - range[0], options.sample_tokens)));
      reader->read_tokens(range[0], static_cast<int64_t>(tokens.size()), tokens.data());
      std::vector<std::string> ids;
      ids.reserve(tokens.size());
      for (const int32_t token : tokens) ids.push_back(std::to_string(token));
      report.samples.push_back(
          {info.path, document, range[1] - range[0], text ? text->shown(tokens) : join(ids, " ")});
    }
    first_document = end;
  }
}

}  // namespace

DataReport inspect_shards(const std::vector<fs::path>& shards, const InspectOptions& options) {
  CPLM_CHECK(!shards.empty() && options.sequence_length > 0 && options.samples >= 0,
             "[data.inspect] expected shards and a sequence_length > 0, got ", shards.size(),
             " and ", options.sequence_length);
  DataReport report;
  read_headers(shards, report);
  const std::optional<TokenText> text = load_tokenizer(options, report);
  count_all(shards, options, report);
  for (DataReport::TokenCount& token : report.frequent) {
    if (text) token.text = escaped(text->bytes(token.id));
  }
  take_samples(options, text, report);
  return report;
}

}  // namespace cplm
