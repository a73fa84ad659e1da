// score_model CHECKPOINT float32|float64 IN OUT [distributions]: what the model makes of the
// tensors "ids" and "targets" [B, T] of a safetensors file: "log_prob", and P(v) in each mode. For
// comparisons with Python implementations.
#include <ATen/ops/stack.h>

#include <cstdio>
#include <string>

#include "cplm/base.h"
#include "cplm/checkpoint.h"
#include "cplm/saved_model.h"

namespace {

using namespace cplm;

at::Tensor distributions(LanguageModel& model, const ModelInput& input, CopyMode mode) {
  const at::Tensor hidden = model.hidden(input);
  std::vector<at::Tensor> rows;
  for (int64_t row = 0; row < input.ids.size(0); ++row) {
    rows.push_back(model.distribution(hidden, input, row, 0, input.ids.size(1), mode));
  }
  return at::stack(rows);
}

void run(int argc, char** argv) {
  CPLM_CHECK(argc == 5 || argc == 6, "expected CHECKPOINT TYPE IN OUT [distributions]");
  const SavedModel saved = find_saved_model(argv[1]);
  ModelOptions options;
  options.tensor =
      at::TensorOptions().dtype(std::string(argv[2]) == "float64" ? at::kDouble : at::kFloat);
  LanguageModel model(saved.config.model, options);
  load_model(saved.folder, model.parameters());
  const SafetensorsFile in(argv[3]);
  const ModelInput input{in.read("ids"), in.read("targets"), {}};
  NamedTensors out{{"log_prob", model.score(input).log_prob}};
  if (argc == 6) {
    out.emplace_back("p.natural", distributions(model, input, CopyMode::kNatural));
    if (saved.config.model.head == HeadKind::kCplm) {
      out.emplace_back("p.no_copy", distributions(model, input, CopyMode::kNoCopy));
      out.emplace_back("p.force_copy", distributions(model, input, CopyMode::kForceCopy));
    }
  }
  write_safetensors(argv[4], out);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
