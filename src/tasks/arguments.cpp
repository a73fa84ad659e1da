// See arguments.h.
#include "tasks/arguments.h"

#include "cplm/base.h"

namespace cplm {

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

Json subject_header(const Subject& subject) {
  const ModelConfig& model = subject.config.model;
  Json header = {{"name", subject.name},
                 {"path", subject.path},
                 {"step", subject.step},
                 {"head", name_of(model.head)},
                 {"backbone", model.backbone.empty() ? Json(nullptr) : Json(model.backbone)},
                 {"layers", Json::array()},
                 {"sliding_window", nullptr},
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
