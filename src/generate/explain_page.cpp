// The page of an explained text: the template with the JSON in its place.
#include <generate/explain_template.h>

#include "cplm/base.h"
#include "cplm/generate.h"

namespace cplm {

std::string explain_page(const std::string& json) {
  static constexpr std::string_view kMark = "@EXPLAIN_JSON@";
  const std::string_view page = kExplainTemplate;
  const size_t place = page.find(kMark);
  CPLM_CHECK(place != std::string_view::npos, "[explain] the page has no place for its data");
  std::string safe;  // no token can end the element it stands in
  safe.reserve(json.size());
  for (const char c : json) {
    if (c == '<') {
      safe += "\\u003c";
    } else {
      safe += c;
    }
  }
  return str(page.substr(0, place), safe, page.substr(place + kMark.size()));
}

}  // namespace cplm
