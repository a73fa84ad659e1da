// What a shard holds, in a few lines for a person: one pass over tokens and document offsets.
#include <algorithm>
#include <iomanip>
#include <numeric>

#include "cplm/base.h"
#include "cplm/data.h"
#include "cplm/shard_tools.h"

namespace cplm {
namespace {

constexpr int64_t kSlice = 1 << 20;
constexpr int64_t kFrequentIds = 10;
constexpr int64_t kFirstTokens = 32;

// Occurrences of each id. Pages are made when first touched: a vocabulary may be declared far
// larger than what a shard uses.
class IdCounts {
 public:
  explicit IdCounts(int64_t vocab_size) : pages_(static_cast<size_t>(vocab_size / kPage + 1)) {}
  void add(int32_t id) {
    std::vector<int64_t>& page = pages_[static_cast<size_t>(id / kPage)];
    if (page.empty()) page.resize(kPage);
    ++page[static_cast<size_t>(id % kPage)];
  }
  // (id, count) of all ids that occur, the most frequent first.
  std::vector<std::pair<int64_t, int64_t>> sorted() const {
    std::vector<std::pair<int64_t, int64_t>> result;
    for (size_t page = 0; page < pages_.size(); ++page) {
      for (size_t i = 0; i < pages_[page].size(); ++i) {
        if (pages_[page][i] == 0) continue;
        result.emplace_back(static_cast<int64_t>(page) * kPage + static_cast<int64_t>(i),
                            pages_[page][i]);
      }
    }
    std::stable_sort(result.begin(), result.end(),
                     [](const auto& a, const auto& b) { return a.second > b.second; });
    return result;
  }

 private:
  static constexpr int64_t kPage = 4096;
  std::vector<std::vector<int64_t>> pages_;
};

std::string percent(int64_t part, int64_t whole) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(2)
       << 100.0 * static_cast<double>(part) / static_cast<double>(std::max<int64_t>(whole, 1))
       << " %";
  return text.str();
}

std::vector<int64_t> document_lengths(const ShardReader& reader) {
  std::vector<int64_t> lengths;
  const int64_t count = reader.info().document_count;
  int64_t previous = 0;
  for (int64_t begin = 1; begin <= count; begin += kSlice) {
    for (int64_t end : reader.read_document_offsets(begin, std::min(kSlice, count + 1 - begin))) {
      lengths.push_back(end - previous);
      previous = end;
    }
  }
  return lengths;
}

std::string describe_documents(std::vector<int64_t> lengths) {
  if (lengths.empty()) return "documents: none";
  std::sort(lengths.begin(), lengths.end());
  const int64_t total = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  const auto empty = std::upper_bound(lengths.begin(), lengths.end(), 0) - lengths.begin();
  std::ostringstream mean;
  mean << std::fixed << std::setprecision(1)
       << static_cast<double>(total) / static_cast<double>(lengths.size());
  return str("documents: ", with_commas(static_cast<int64_t>(lengths.size())), ", of ",
             with_commas(lengths.front()), " to ", with_commas(lengths.back()), " tokens, median ",
             with_commas(lengths[lengths.size() / 2]), ", mean ", mean.str(), "; empty ",
             with_commas(empty));
}

std::string describe_eos(const ShardInfo& info, int64_t num_eos, int64_t num_nonempty) {
  return str("eos: id ", info.eos_token_id, " occurs ", with_commas(num_eos), " times, ",
             with_commas(num_nonempty), " documents end",
             num_eos == num_nonempty ? "" : " (the numbers should agree: cplm data verify)");
}

std::string describe_frequent(const std::vector<std::pair<int64_t, int64_t>>& counts,
                              int64_t token_count) {
  std::vector<std::string> parts;
  for (const auto& [id, count] : counts) {
    if (static_cast<int64_t>(parts.size()) == kFrequentIds) break;
    parts.push_back(str(id, " (", percent(count, token_count), ")"));
  }
  return str("ids: ", with_commas(static_cast<int64_t>(counts.size())),
             " different, most frequent ", parts.empty() ? "none" : join(parts, ", "));
}

std::string describe_header(const ShardInfo& info) {
  const auto file_bytes = static_cast<int64_t>(std::filesystem::file_size(info.path));
  return str("format ", info.format_version, ", ", with_commas(info.token_count), " tokens, ",
             with_commas(info.document_count), " documents, vocabulary ",
             with_commas(info.vocab_size), "\n  source: ", info.source, "\n  tokenizer: ",
             info.tokenizer_sha256.empty() ? "none" : "sha256 " + info.tokenizer_sha256,
             "\n  content: sha256 ", info.content_sha256,
             "\n  storage: ", info.token_bytes == 2 ? "uint16" : "uint32", ", chunks of ",
             with_commas(info.tokens_per_chunk), " tokens with fletcher32, ",
             info.has_gzip ? "gzip" : "not compressed", ", ", with_commas(file_bytes),
             " bytes, loss mask ", info.has_loss_mask ? "yes" : "no");
}

struct TokenCensus {
  std::vector<std::pair<int64_t, int64_t>> counts;
  int64_t num_eos = 0;
  std::vector<std::string> first_tokens;
};

TokenCensus count_tokens(const ShardReader& reader) {
  const ShardInfo& info = reader.info();
  TokenCensus census;
  IdCounts counts(info.vocab_size);
  std::vector<int32_t> tokens;
  for (int64_t begin = 0; begin < info.token_count; begin += kSlice) {
    tokens.resize(static_cast<size_t>(std::min(kSlice, info.token_count - begin)));
    reader.read_tokens(begin, static_cast<int64_t>(tokens.size()), tokens.data());
    for (const int32_t id : tokens) {
      counts.add(id);
      census.num_eos += id == info.eos_token_id ? 1 : 0;
    }
    if (begin != 0) continue;
    for (size_t i = 0; i < tokens.size() && i < kFirstTokens; ++i) {
      census.first_tokens.push_back(std::to_string(tokens[i]));
    }
  }
  census.counts = counts.sorted();
  return census;
}

// How much of the shard its mask counts as targets.
std::string describe_loss_mask(const ShardReader& reader) {
  const int64_t size = reader.info().token_count;
  int64_t counted = 0;
  std::vector<uint8_t> mask;
  for (int64_t begin = 0; begin < size; begin += kSlice) {
    mask.resize(static_cast<size_t>(std::min(kSlice, size - begin)));
    reader.read_loss_mask(begin, static_cast<int64_t>(mask.size()), mask.data());
    counted += std::count(mask.begin(), mask.end(), uint8_t{1});
  }
  return str("loss mask: ", with_commas(counted), " tokens counted (", percent(counted, size), ")");
}

}  // namespace

std::string describe_shard(const std::filesystem::path& path) {
  const ShardReader reader(path);
  const ShardInfo& info = reader.info();
  const TokenCensus census = count_tokens(reader);
  std::vector<int64_t> lengths = document_lengths(reader);
  const int64_t num_nonempty =
      static_cast<int64_t>(lengths.size()) - std::count(lengths.begin(), lengths.end(), 0);
  std::vector<std::string> lines = {path.string() + ": " + describe_header(info),
                                    describe_documents(std::move(lengths)),
                                    describe_eos(info, census.num_eos, num_nonempty)};
  if (info.has_loss_mask) lines.push_back(describe_loss_mask(reader));
  lines.push_back(describe_frequent(census.counts, info.token_count));
  lines.push_back("first tokens: " + join(census.first_tokens, " "));
  return join(lines, "\n  ") + "\n";
}

}  // namespace cplm
