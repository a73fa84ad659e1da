// A Hugging Face folder as a checkpoint.
#include <algorithm>
#include <set>

#include "checkpoint/safetensors_header.h"
#include "cplm/base.h"
#include "cplm/hugging_face.h"
#include "cplm/saved_model.h"
#include "hf/config_in.h"
#include "hf/config_out.h"
#include "hf/folder_writer.h"
#include "hf/tokenizer_files.h"
#include "hf/weights.h"

namespace cplm {

namespace fs = std::filesystem;

namespace {

using hf::Weight;
using hf::WeightFolder;

constexpr const char* kLmHead = "lm_head.weight";
constexpr const char* kEmbedding = "model.embed_tokens.weight";
constexpr ptrdiff_t kShownNames = 3;  // in a message

bool is_copy_head(const std::string& name) {
  return name.starts_with("cp_head.") || name.starts_with("copy_token.");
}

// Old Llama folders hold the frequencies of RoPE, which follow from rope_theta.
bool is_derived(const std::string& name) { return name.ends_with(".rotary_emb.inv_freq"); }

std::string named(const std::vector<std::string>& names) {
  std::vector<std::string> first(names.begin(),
                                 names.begin() + std::min(std::ssize(names), kShownNames));
  return str(join(first, ", "), std::ssize(names) > kShownNames ? ", ..." : "");
}

class Importer {
 public:
  // own_head: the folder's.
  Importer(const fs::path& folder, const ModelConfig& model, HeadKind own_head)
      : folder_(folder), model_(model), own_head_(own_head), source_(folder) {}

  std::vector<Weight> weights() {
    const auto specs = parameter_specs(model_);
    for (const auto& [name, entry] : source_.entries()) left_.insert(name);
    std::vector<Weight> weights;
    std::vector<ParameterStore::Spec> fresh;
    std::vector<std::string> missing;
    for (const auto& spec : specs) {
      if (left_.erase(spec.name) > 0) {
        weights.push_back(stored(spec));
      } else if (is_copy_head(spec.name) && own_head_ == HeadKind::kVanilla) {
        fresh.push_back(spec);
      } else {
        missing.push_back(spec.name);
      }
    }
    if (!missing.empty()) {
      fail(str("lacks ", missing.size(),
               " of the tensors that config.json asks for: ", named(missing)));
    }
    check_the_rest();
    add_fresh(fresh, weights);
    return weights;
  }

 private:
  [[noreturn]] void fail(const std::string& problem) const {
    throw Error(str(folder_.string(), ": ", problem), ExitCode::kBadData);
  }

  Weight stored(const ParameterStore::Spec& spec) const {
    const SafetensorsEntry& entry = source_.entries().at(spec.name);
    if (entry.shape != spec.shape) {
      fail(str("tensor ", spec.name, " has the shape ", checkpoint::shape_text(entry.shape),
               ", expected ", checkpoint::shape_text(spec.shape), " by config.json"));
    }
    if (!at::isFloatingType(entry.dtype)) {
      fail(str("tensor ", spec.name, " holds ", checkpoint::safetensors_dtype_name(entry.dtype),
               ", expected F64, F32, BF16 or F16"));
    }
    return {spec.name, entry.shape, entry.dtype,
            [this, name = spec.name] { return source_.read(name); }};
  }

  void check_the_rest() const {
    std::vector<std::string> extra, copy_head;
    for (const std::string& name : left_) {
      if (is_derived(name)) continue;
      if (is_copy_head(name) && own_head_ == HeadKind::kCplm && model_.head == HeadKind::kVanilla) {
        copy_head.push_back(name);
      } else if (name == kLmHead && model_.tie_word_embeddings) {
        check_tie();
      } else {
        extra.push_back(name);
      }
    }
    if (!copy_head.empty()) log::info(str("the copy head is left out: ", named(copy_head)));
    if (!extra.empty()) {
      fail(str("holds ", extra.size(),
               " tensors that have no place in the model of config.json: ", named(extra)));
    }
  }

  // Some folders store the tied matrix twice.
  void check_tie() const {
    if (!source_.read(kLmHead).equal(source_.read(kEmbedding))) {
      fail(str(kLmHead, " and ", kEmbedding,
               " differ, but config.json has tie_word_embeddings: ", "true"));
    }
  }

  // As a fresh model of this seed would have them.
  void add_fresh(const std::vector<ParameterStore::Spec>& specs, std::vector<Weight>& weights) {
    if (specs.empty()) return;
    for (const auto& spec : specs) fresh_.add({spec});
    fresh_.allocate(at::TensorOptions().dtype(at::kFloat));
    initialize(fresh_, model_, RunConfig().seed);
    for (const Parameter& p : fresh_.all()) {
      weights.push_back({p.name, p.shape, at::kFloat, [value = p.value] { return value; }});
    }
    log::info("the copy head starts fresh");
  }

  fs::path folder_;
  ModelConfig model_;
  HeadKind own_head_;
  WeightFolder source_;
  ParameterStore fresh_;
  std::set<std::string> left_;  // tensors that no parameter has taken
};

void check_folder(const fs::path& folder) {
  if (!fs::is_directory(folder)) {
    throw Error(str(folder.string(), ": no such folder"), ExitCode::kBadConfig);
  }
  if (!fs::exists(folder / "config.json")) {
    throw Error(str(folder.string(), ": holds no config.json; expected a Hugging Face folder"),
                ExitCode::kBadConfig);
  }
}

}  // namespace

FolderWritten import_hugging_face(const fs::path& folder, const fs::path& checkpoint,
                                  const ImportOptions& options) {
  check_folder(folder);
  const auto [config, own_head] = hf::imported_config(folder / "config.json", options.head);
  Importer importer(folder, config.model, own_head);
  const std::vector<Weight> weights = importer.weights();
  hf::FolderWriter out(checkpoint, options.overwrite, "config.yaml", folder);
  out.require_space(hf::bytes_of(weights));
  hf::write_weights(out.folder(), weights, UINT64_MAX);
  for (const fs::path& file : hf::tokenizer_files_of(folder)) out.copy(file, file.filename());
  if (!fs::exists(out.folder() /
                  hf::kGenerationConfig)) {  // older folders keep its ids in config.json
    const hf::SpecialIds ids = hf::special_ids_of(folder / "config.json");
    out.write(hf::kGenerationConfig, hf::generation_json(config.model, ids).dump(2) + "\n");
  }
  out.write("config.yaml",
            str("# Imported; data, train and all below are placeholders.\n", dump_config(config)));
  out.publish();
  return {out.target(), hf::class_name(hf::architecture_of(config.model)), std::ssize(weights),
          hf::bytes_of(weights)};
}

}  // namespace cplm
