// See document_questions.h.
#include "tasks/document_questions.h"

namespace cplm {
namespace {

void append(std::vector<int64_t>& ids, const std::vector<int64_t>& more) {
  ids.insert(ids.end(), more.begin(), more.end());
}

}  // namespace

int64_t DocumentQuestion::document_tokens() const {
  size_t total = 0;
  for (const auto& document : documents) total += document.size();
  return static_cast<int64_t>(total);
}

std::vector<int64_t> DocumentQuestions::alone(const std::vector<int64_t>& document) const {
  std::vector<int64_t> ids = before_;
  append(ids, document);
  append(ids, behind_);
  return ids;
}

std::vector<int64_t> DocumentQuestions::visible(const DocumentQuestion& question) const {
  std::vector<int64_t> ids = before_;
  for (const auto& document : question.documents) append(ids, document);
  append(ids, question.prompt);
  return ids;
}

}  // namespace cplm
