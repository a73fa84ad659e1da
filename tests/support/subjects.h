// A model of a test as the subject of a task.
#pragma once

#include <memory>
#include <string>

#include "cplm/model.h"
#include "cplm/tasks.h"

namespace cplm::test {

// runs/NAME, trained on 24 tokens, with no tokenizer.
inline Subject subject_of(const std::shared_ptr<LanguageModel>& model, const std::string& name) {
  Subject subject;
  subject.name = name;
  subject.path = "runs/" + name;
  subject.config.model = model->config();
  subject.config.data.sequence_length = 24;
  subject.identity = [] { return "weights"; };
  subject.open = [model] { return model; };
  return subject;
}

}  // namespace cplm::test
