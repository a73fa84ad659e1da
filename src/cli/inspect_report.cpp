// See inspect_report.h.
#include "cli/inspect_report.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cplm/base.h"
#include "data/token_text.h"
#include "runs/text_table.h"

namespace cplm {
namespace {

using Json = nlohmann::ordered_json;

double share(int64_t part, int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(std::max<int64_t>(whole, 1));
}

std::string percent(int64_t part, int64_t whole) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f %%", 100 * share(part, whole));
  return text;
}

std::string fixed(double value, const char* format) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

CopyReach all_targets(const DataReport& report) {
  return {report.first_half.targets + report.second_half.targets,
          report.first_half.found + report.second_half.found};
}

std::string storage_of(const ShardInfo& info) {
  return str(info.token_bytes == 2 ? "uint16" : "uint32", ", chunks of ",
             with_commas(info.tokens_per_chunk), " tokens with fletcher32, ",
             info.has_gzip ? "gzip" : "not compressed");
}

// ---- text

std::string shards_text(const DataReport& report) {
  const ShardInfo& first = report.shards.front().info;
  std::string text;
  if (report.shards.size() == 1) {
    text = str(first.path.string(), "\n  source      ", escaped(first.source),
               "\n  content     sha256 ", first.content_sha256, "\n  storage     ",
               storage_of(first), "\n");
  } else {
    constexpr size_t kListed = 20;
    const size_t listed = std::min(kListed, report.shards.size());
    TextTable table({{"shard", Align::kLeft}, {"tokens"}, {"documents"}, {"bytes"}});
    for (size_t i = 0; i < listed; ++i) {
      const auto& [info, file_bytes] = report.shards[i];
      table.add_row({info.path.string(), with_commas(info.token_count),
                     with_commas(info.document_count), with_commas(file_bytes)});
    }
    const size_t more = report.shards.size() - listed;
    if (more > 0) table.add_row({str("and ", more, " more"), "", "", ""});
    text = table.text() + "\n";
  }
  const std::string tokenizer =
      first.tokenizer_sha256.empty() ? "none" : "sha256 " + first.tokenizer_sha256;
  return text + str("  tokens      ", with_commas(report.tokens), " in ",
                    with_commas(report.documents), " documents, ", with_commas(report.file_bytes),
                    " bytes, ", report.shards.size(), " shard(s)\n  vocabulary  ",
                    with_commas(first.vocab_size), ", ", with_commas(report.distinct_tokens),
                    " occur; eos ", first.eos_token_id, "; tokenizer ", tokenizer, "\n");
}

std::string documents_text(const DataReport& report) {
  const double mean = share(report.tokens, report.documents);
  std::string text =
      str("\nDocuments\n  length      ", with_commas(report.shortest), " to ",
          with_commas(report.longest), " tokens, median ", with_commas(report.median), ", mean ",
          fixed(mean, "%.1f"), ", 90 % up to ", with_commas(report.ninth_decile), ", 99 % up to ",
          with_commas(report.last_percentile), "\n  empty       ",
          with_commas(report.eos_only + report.without_tokens), " (", with_commas(report.eos_only),
          " of eos alone, ", with_commas(report.without_tokens), " without a token)\n");
  text +=
      str("  copies      ", with_commas(report.duplicates), " of ", with_commas(report.looked_at),
          " with text are like one before (", percent(report.duplicates, report.looked_at),
          "), at most ", with_commas(report.most_copies), " alike",
          report.looked_at_all ? "" : "; looked at a share of them, chosen by hash", "\n");
  const int64_t inside = report.eos_tokens - report.ended_by_eos;
  text += str("  eos         ", with_commas(report.ended_by_eos), " documents end with it, ",
              with_commas(inside), " inside documents\n");
  if (report.has_loss_mask) {
    text += str("  loss mask   ", with_commas(report.counted_tokens), " tokens counted (",
                percent(report.counted_tokens, report.tokens), "), ",
                with_commas(report.uncounted_documents), " documents without any\n");
  }
  return text;
}

std::string lengths_text(const DataReport& report) {
  TextTable table(
      {{"  tokens", Align::kRight}, {"documents"}, {"share"}, {"of tokens"}, {"", Align::kLeft}});
  for (const DataReport::LengthBin& bin : report.lengths) {
    const auto bar = static_cast<size_t>(40 * share(bin.documents, report.documents) + 0.5);
    table.add_row({bin.min == bin.max || bin.max == 0
                       ? "  " + with_commas(bin.min)
                       : "  " + with_commas(bin.min) + " - " + with_commas(bin.max),
                   with_commas(bin.documents), percent(bin.documents, report.documents),
                   percent(bin.tokens, report.tokens), std::string(bar, '#')});
  }
  return "\n" + table.text();
}

std::string frequent_text(const DataReport& report) {
  TextTable table({{"  id"}, {"count"}, {"share"}, {"text", Align::kLeft}});
  for (const DataReport::TokenCount& token : report.frequent) {
    table.add_row({str("  ", token.id), with_commas(token.count),
                   percent(token.count, report.tokens),
                   report.tokenizer.empty() ? "" : "\"" + token.text + "\""});
  }
  return "\nMost frequent tokens" +
         (report.tokenizer.empty() ? " (no text: " + report.why_no_text + ")" : "") + "\n" +
         table.text();
}

std::string copy_text(const DataReport& report, const InspectOptions& options) {
  const CopyReach all = all_targets(report);
  std::string text = str(
      "\nNext tokens that occur earlier in their window of ", with_commas(options.sequence_length),
      " (what a copy head could reach)\n  all         ", percent(all.found, all.targets), " of ",
      with_commas(all.targets), "; first half of the windows ",
      percent(report.first_half.found, report.first_half.targets), ", second half ",
      percent(report.second_half.found, report.second_half.targets), "\n");
  if (report.has_loss_mask) {
    text += str("  counted     ", percent(report.counted.found, report.counted.targets), " of ",
                with_commas(report.counted.targets), "\n");
  }
  return text;
}

std::string samples_text(const DataReport& report) {
  std::string text;
  for (const DataReport::Sample& sample : report.samples) {
    text += str("\n", sample.shard.string(), ", document ", with_commas(sample.document), ", ",
                with_commas(sample.tokens), " tokens\n  ",
                report.tokenizer.empty() ? sample.text : "\"" + sample.text + "\"", "\n");
  }
  return text;
}

// ---- JSON

Json to_json(const CopyReach& reach) {
  return {{"targets", reach.targets},
          {"found", reach.found},
          {"share", share(reach.found, reach.targets)}};
}

Json shards_json(const DataReport& report) {
  Json shards = Json::array();
  for (const auto& [info, file_bytes] : report.shards) {
    shards.push_back({{"path", info.path.string()},
                      {"tokens", info.token_count},
                      {"documents", info.document_count},
                      {"bytes", file_bytes},
                      {"token_type", info.token_bytes == 2 ? "uint16" : "uint32"},
                      {"tokens_per_chunk", info.tokens_per_chunk},
                      {"gzip", info.has_gzip},
                      {"loss_mask", info.has_loss_mask},
                      {"source", info.source},
                      {"content_sha256", info.content_sha256}});
  }
  return shards;
}

Json documents_json(const DataReport& report) {
  Json lengths = Json::array();
  for (const DataReport::LengthBin& bin : report.lengths) {
    lengths.push_back(
        {{"min", bin.min}, {"max", bin.max}, {"documents", bin.documents}, {"tokens", bin.tokens}});
  }
  return {{"count", report.documents},
          {"shortest", report.shortest},
          {"longest", report.longest},
          {"mean", share(report.tokens, report.documents)},
          {"median", report.median},
          {"quantile_90", report.ninth_decile},
          {"quantile_99", report.last_percentile},
          {"lengths", lengths},
          {"eos_only", report.eos_only},
          {"without_tokens", report.without_tokens},
          {"duplicates", report.duplicates},
          {"looked_at_for_duplicates", report.looked_at},
          {"looked_at_all", report.looked_at_all},
          {"most_copies", report.most_copies}};
}

Json text_or_null(const DataReport& report, const std::string& text) {
  return report.tokenizer.empty() ? Json(nullptr) : Json(text);
}

Json frequent_json(const DataReport& report) {
  Json tokens = Json::array();
  for (const DataReport::TokenCount& token : report.frequent) {
    tokens.push_back({{"id", token.id},
                      {"count", token.count},
                      {"share", share(token.count, report.tokens)},
                      {"text", text_or_null(report, token.text)}});
  }
  return tokens;
}

}  // namespace

std::string report_text(const DataReport& report, const InspectOptions& options) {
  return shards_text(report) + documents_text(report) + lengths_text(report) +
         frequent_text(report) + copy_text(report, options) + samples_text(report);
}

std::string report_json(const DataReport& report, const InspectOptions& options) {
  const ShardInfo& first = report.shards.front().info;
  Json samples = Json::array();
  for (const DataReport::Sample& sample : report.samples) {
    samples.push_back({{"shard", sample.shard.string()},
                       {"document", sample.document},
                       {"tokens", sample.tokens},
                       {report.tokenizer.empty() ? "ids" : "text", sample.text}});
  }
  const Json json = {
      {"shards", shards_json(report)},
      {"tokens", report.tokens},
      {"bytes", report.file_bytes},
      {"vocab_size", first.vocab_size},
      {"distinct_tokens", report.distinct_tokens},
      {"tokenizer_sha256", first.tokenizer_sha256},
      {"documents", documents_json(report)},
      {"eos",
       {{"id", first.eos_token_id},
        {"tokens", report.eos_tokens},
        {"ended_documents", report.ended_by_eos},
        {"inside_documents", report.eos_tokens - report.ended_by_eos}}},
      {"loss_mask", report.has_loss_mask ? Json{{"counted_tokens", report.counted_tokens},
                                                {"uncounted_documents", report.uncounted_documents}}
                                         : Json(nullptr)},
      {"frequent_tokens", frequent_json(report)},
      {"occurs_earlier_in_window",
       {{"sequence_length", options.sequence_length},
        {"all", to_json(all_targets(report))},
        {"first_half", to_json(report.first_half)},
        {"second_half", to_json(report.second_half)},
        {"counted", to_json(report.counted)}}},
      {"samples", samples}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace cplm
