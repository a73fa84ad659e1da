// See arguments.h.
#include "tasks/arguments.h"

#include <algorithm>
#include <optional>

#include "cplm/base.h"

namespace cplm {
namespace {

constexpr int64_t kMostCount = int64_t{1} << 40;

std::optional<int64_t> parse_count(std::string_view text) {
  const bool thousands = text.ends_with('k');
  if (thousands) text.remove_suffix(1);
  const std::optional<int64_t> value = read_whole_number<int64_t>(text);
  if (!value || *value < 0 || *value > kMostCount) return std::nullopt;
  return thousands ? *value * 1024 : *value;
}

std::vector<std::string_view> split_at_commas(std::string_view text) {
  std::vector<std::string_view> parts;
  for (size_t comma = text.find(','); comma != std::string_view::npos; comma = text.find(',')) {
    parts.push_back(text.substr(0, comma));
    text.remove_prefix(comma + 1);
  }
  parts.push_back(text);
  return parts;
}

}  // namespace

ArgumentCheck counts_between(int64_t least, int64_t most) {
  return [least, most](const std::string& text) -> std::string {
    for (const std::string_view part : split_at_commas(text)) {
      const std::optional<int64_t> count = parse_count(part);
      if (count && *count >= least && *count <= most) continue;
      return str("expected whole numbers from ", least, " to ", most,
                 " with commas between (k: 1,024), ", found_number(part, "k"));
    }
    return "";
  };
}

std::vector<int64_t> parse_counts(const std::string& text) {
  std::vector<int64_t> counts;
  for (const std::string_view part : split_at_commas(text)) {
    const std::optional<int64_t> count = parse_count(part);
    CPLM_CHECK(count.has_value(), "expected whole numbers with commas between, found ", text);
    counts.push_back(*count);
  }
  std::sort(counts.begin(), counts.end());
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  return counts;
}

int64_t common_context(int64_t asked, const std::vector<Subject>& subjects) {
  if (asked > 0) return asked;
  const Subject& first = subjects.front();
  for (const Subject& subject : subjects) {
    if (subject.config.data.sequence_length == first.config.data.sequence_length) continue;
    throw Error(str("--context: expected a length for all, since ", first.path,
                    " was trained on sequences of ", first.config.data.sequence_length, " and ",
                    subject.path, " of ", subject.config.data.sequence_length),
                ExitCode::kBadConfig);
  }
  return first.config.data.sequence_length;
}

void check_one_vocabulary(const std::vector<Subject>& subjects) {
  const Subject& first = subjects.front();
  for (const Subject& subject : subjects) {
    if (subject.config.model.vocab_size == first.config.model.vocab_size) continue;
    throw Error(str("expected models of one vocabulary; ", first.path, " has ",
                    first.config.model.vocab_size, " tokens and ", subject.path, " has ",
                    subject.config.model.vocab_size, "; measure them apart"),
                ExitCode::kBadConfig);
  }
}

Json subject_header(const Subject& subject) {
  const ModelConfig& model = subject.config.model;
  Json header = {{"name", subject.name},
                 {"path", subject.path},
                 {"step", subject.step},
                 {"head", name_of(model.head)},
                 {"backbone", model.backbone.empty() ? Json(nullptr) : Json(model.backbone)},
                 {"layers", Json::array()},
                 {"sliding_window", nullptr},
                 {"hidden_size", model.hidden_size},
                 {"sequence_length", subject.config.data.sequence_length},
                 {"seed", subject.config.run.seed}};
  bool slides = false;
  for (const LayerKind kind : model.layer_types) {
    header["layers"].push_back(name_of(kind));
    slides = slides || kind == LayerKind::kSliding;
  }
  if (slides) header["sliding_window"] = model.sliding_window;
  return header;
}

std::string json_text(const Json& json) {
  return json.dump(1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
}

}  // namespace cplm
