// Strict reading of golden files: what is not understood is an error, never passed over.
#include "support/golden.h"

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>

#include "cplm/base.h"
#include "cplm/checkpoint.h"
#include "support/models.h"

namespace cplm::test {
namespace {

using nlohmann::json;

const char* const kLoss = "mean of -logp over the targets that are not -1";
const std::set<std::string> kSettings = {"vocab_size",
                                         "hidden_size",
                                         "num_hidden_layers",
                                         "num_attention_heads",
                                         "num_key_value_heads",
                                         "intermediate_size",
                                         "rope_theta",
                                         "rms_norm_eps",
                                         "sliding_window",
                                         "full_attention_every",
                                         "head",
                                         "stop_gradient",
                                         "tie_word_embeddings",
                                         "include_current",
                                         "document_starts",
                                         "loss"};
const std::set<std::string> kOptionalSettings = {"rope", "qk_norm"};  // default: false

template <class T>
T choose(const json& value, const std::map<std::string, T>& known) {
  const auto found = known.find(value.get<std::string>());
  CPLM_CHECK(found != known.end(), "unknown value ", value.dump());
  return found->second;
}

ModelConfig read_config(const json& j) {
  for (const auto& [key, value] : j.items()) {
    CPLM_CHECK(kSettings.count(key) + kOptionalSettings.count(key) > 0, "unknown setting ", key);
  }
  CPLM_CHECK(j.at("loss") == kLoss, "unknown loss ", j.at("loss").dump());
  ModelConfig c;
  c.vocab_size = j.at("vocab_size");
  c.hidden_size = j.at("hidden_size");
  c.num_hidden_layers = j.at("num_hidden_layers");
  c.num_attention_heads = j.at("num_attention_heads");
  c.num_key_value_heads = j.at("num_key_value_heads");
  c.intermediate_size = j.at("intermediate_size");
  c.rope_theta = j.at("rope_theta");
  c.rms_norm_eps = j.at("rms_norm_eps");
  c.tie_word_embeddings = j.at("tie_word_embeddings");
  c.head =
      choose<HeadKind>(j.at("head"), {{"cplm", HeadKind::kCplm}, {"vanilla", HeadKind::kVanilla}});
  c.copy.stop_gradient = choose<StopGradient>(j.at("stop_gradient"),
                                              {{"none", StopGradient::kNone},
                                               {"scores", StopGradient::kScores},
                                               {"scores_and_gate", StopGradient::kScoresAndGate}});
  c.copy.include_current = j.at("include_current");
  c.copy.rope = j.value("rope", false);
  c.copy.qk_norm = j.value("qk_norm", false);
  const int64_t window = j.at("sliding_window"), every = j.at("full_attention_every");
  set_backbone(c, window == 0 ? "full" : every == 0 ? "sliding" : "hybrid", window, every);
  return c;
}

// Lists of first positions, one list a row, to the first position of every position's document.
at::Tensor read_document_starts(const json& lists, int64_t rows, int64_t positions) {
  CPLM_CHECK(lists.size() == static_cast<size_t>(rows), "document_starts: expected ", rows,
             " lists, found ", lists.size());
  std::vector<int> starts;
  for (const json& list : lists) {
    int start = list.at(0);
    size_t next = 1;
    for (int t = 0; t < positions; ++t) {
      if (next < list.size() && list.at(next) == t) start = list.at(next++);
      starts.push_back(start);
    }
    CPLM_CHECK(list.at(0) == 0 && next == list.size(),
               "document_starts: not 0 < ... < T: ", list.dump());
  }
  return id_tensor(starts, {rows, positions});
}

std::set<std::string> expected_names(const ModelConfig& config) {
  std::set<std::string> names = {"ids", "targets", "hidden", "logp"};
  for (const auto& spec : parameter_specs(config)) {
    names.insert(spec.name);
    names.insert("grad." + spec.name);
  }
  if (config.head == HeadKind::kCplm) {
    names.insert({"p.natural", "p.no_copy", "p.force_copy", "copy_gate", "sink"});
  }
  return names;
}

GoldenCase read(const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  const json j = json::parse(file.metadata().at("config"));
  GoldenCase out;
  out.path = path;
  out.config = read_config(j);
  const std::set<std::string> names = expected_names(out.config);
  for (const auto& [name, entry] : file.entries()) {
    CPLM_CHECK(names.count(name) > 0, "unknown tensor ", name);
    CPLM_CHECK(entry.dtype == at::kLong || entry.dtype == at::kDouble, name, ": not F64 or I64");
    out.tensors[name] = file.read(name);
  }
  for (const std::string& name : names) out.at(name);
  out.input = {out.at("ids"), out.at("targets"), {}};
  if (!j.at("document_starts").is_null()) {
    out.input.document_start =
        read_document_starts(j.at("document_starts"), out.input.ids.size(0), out.input.ids.size(1));
  }
  return out;
}

}  // namespace

const at::Tensor& GoldenCase::at(const std::string& name) const {
  const auto found = tensors.find(name);
  CPLM_CHECK(found != tensors.end(), path.string(), ": lacks tensor ", name);
  return found->second;
}

void GoldenCase::load(LanguageModel& model) const {
  for (const Parameter& p : model.parameters().all()) {
    CPLM_CHECK(at(p.name).sizes() == at::IntArrayRef(p.shape), path.string(), ": ", p.name,
               " has shape ", at(p.name).sizes(), ", expected ", at::IntArrayRef(p.shape));
    p.value.copy_(at(p.name));
  }
}

GoldenCase read_golden(const std::filesystem::path& path) {
  try {
    return read(path);
  } catch (const std::exception& error) {
    throw Error(str(path.string(), ": ", error.what()));
  }
}

std::filesystem::path golden_folder() {
  const char* named = std::getenv("CPLM_GOLDEN_DIR");
  if (named != nullptr && *named != '\0') return named;
  return std::filesystem::path(CPLM_SOURCE_DIR) / "tests/golden";
}

std::vector<std::filesystem::path> golden_files(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  }
  CPLM_CHECK(!files.empty(), "no *.safetensors file in ", folder.string());
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace cplm::test
