// See document_census.h.
#include "data/document_census.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "cplm/base.h"

namespace cplm {
namespace {

constexpr int64_t kExact = 256, kBinsOfOctave = 128;
constexpr int kExactBits = 8;

size_t bin_of(int64_t length) {
  if (length < kExact) return static_cast<size_t>(length);
  const auto octave =
      static_cast<int>(std::bit_width(static_cast<uint64_t>(length))) - 1 - kExactBits;
  const int64_t within = (length >> (octave + 1)) - kBinsOfOctave;
  return static_cast<size_t>(kExact + octave * kBinsOfOctave + within);
}

// The least length of a bin.
int64_t length_of(size_t bin) {
  const auto number = static_cast<int64_t>(bin);
  if (number < kExact) return number;
  const int64_t octave = (number - kExact) / kBinsOfOctave;
  return (kBinsOfOctave + (number - kExact) % kBinsOfOctave) << (octave + 1);
}

}  // namespace

void LengthHistogram::add(int64_t length) {
  const size_t bin = bin_of(length);
  if (bin >= bins_.size()) bins_.resize(bin + 1);
  bins_[bin].documents += 1;
  bins_[bin].tokens += length;
  shortest_ = total_ == 0 ? length : std::min(shortest_, length);
  longest_ = std::max(longest_, length);
  ++total_;
}

void LengthHistogram::merge(const LengthHistogram& other) {
  if (other.total_ == 0) return;
  bins_.resize(std::max(bins_.size(), other.bins_.size()));
  for (size_t i = 0; i < other.bins_.size(); ++i) {
    bins_[i].documents += other.bins_[i].documents;
    bins_[i].tokens += other.bins_[i].tokens;
  }
  shortest_ = total_ == 0 ? other.shortest_ : std::min(shortest_, other.shortest_);
  longest_ = std::max(longest_, other.longest_);
  total_ += other.total_;
}

int64_t LengthHistogram::quantile(double share) const {
  const auto wanted = static_cast<int64_t>(share * static_cast<double>(total_));
  int64_t passed = 0;
  for (size_t i = 0; i < bins_.size(); ++i) {
    passed += bins_[i].documents;
    if (passed > wanted) return std::clamp(length_of(i), shortest_, longest_);
  }
  return longest_;
}

std::vector<DataReport::LengthBin> LengthHistogram::by_powers_of_two() const {
  std::vector<DataReport::LengthBin> wide;
  for (size_t i = 0; i < bins_.size(); ++i) {
    if (bins_[i].documents == 0) continue;
    const int64_t length = length_of(i);
    const auto power = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(length)));
    if (wide.empty() || wide.back().min != power) {
      wide.push_back({power, std::max<int64_t>(2 * power - 1, 0), 0, 0});
    }
    wide.back().documents += bins_[i].documents;
    wide.back().tokens += bins_[i].tokens;
  }
  return wide;
}

void DocumentCensus::add(std::span<const int32_t> tokens, std::span<const uint8_t> loss_mask,
                         bool ends) {
  DocumentHash hash = hash_;  // two lanes of multiply and rotate, in registers
  int64_t eos = 0;
  for (const int32_t token : tokens) {
    const auto word = static_cast<uint64_t>(token);
    hash.first = std::rotl(hash.first ^ word, 23) * 0x9e3779b97f4a7c15ULL;
    hash.second = (std::rotl(hash.second, 31) + word) * 0xd6e8feb86659fd93ULL;
    eos += token == eos_token_id_ ? 1 : 0;
  }
  hash_ = hash;
  eos_tokens_ += eos;
  length_ += static_cast<int64_t>(tokens.size());
  counted_ += std::count(loss_mask.begin(), loss_mask.end(), uint8_t{1});
  if (!tokens.empty()) last_is_eos_ = tokens.back() == eos_token_id_;
  if (!ends) return;
  lengths_.add(length_);
  ended_by_eos_ += last_is_eos_ ? 1 : 0;
  without_tokens_ += length_ == 0 ? 1 : 0;
  const bool only_eos = length_ == 1 && last_is_eos_;
  eos_only_ += only_eos ? 1 : 0;
  counted_tokens_ += counted_;
  uncounted_documents_ += counted_ == 0 ? 1 : 0;
  if (length_ > 0 && !only_eos) {
    const auto length = static_cast<uint64_t>(length_);
    hashes_.push_back({mix64(hash_.first ^ length), mix64(hash_.second + length)});
  }
  hash_ = {};
  length_ = counted_ = 0;
  last_is_eos_ = false;
}

void DocumentCensus::merge(const DocumentCensus& other) {
  lengths_.merge(other.lengths_);
  eos_tokens_ += other.eos_tokens_;
  ended_by_eos_ += other.ended_by_eos_;
  without_tokens_ += other.without_tokens_;
  eos_only_ += other.eos_only_;
  counted_tokens_ += other.counted_tokens_;
  uncounted_documents_ += other.uncounted_documents_;
}

std::vector<DocumentHash> DocumentCensus::take_hashes() { return std::exchange(hashes_, {}); }

void DocumentCensus::write_to(DataReport& report) const {
  report.lengths = lengths_.by_powers_of_two();
  report.shortest = lengths_.shortest();
  report.longest = lengths_.longest();
  report.median = lengths_.quantile(0.5);
  report.ninth_decile = lengths_.quantile(0.9);
  report.last_percentile = lengths_.quantile(0.99);
  report.without_tokens = without_tokens_;
  report.eos_only = eos_only_;
  report.eos_tokens = eos_tokens_;
  report.ended_by_eos = ended_by_eos_;
  report.counted_tokens = counted_tokens_;
  report.uncounted_documents = uncounted_documents_;
}

}  // namespace cplm
