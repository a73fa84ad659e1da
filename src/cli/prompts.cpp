// See prompts.h.
#include "cli/prompts.h"

#include <algorithm>
#include <filesystem>

#include "base/argument_checks.h"

namespace cplm {
namespace {

std::vector<int64_t> parse_ids(const std::string& text) {
  std::vector<int64_t> ids;
  for (const std::string& part : split_list(text, ',')) {
    ids.push_back(parse_whole_number("--ids", part));
  }
  return ids;
}

}  // namespace

int64_t parse_whole_number(const char* option, const std::string& text) {
  const std::string problem = whole_from(0)(text);
  if (!problem.empty()) throw Error(str(option, ": ", problem), ExitCode::kBadConfig);
  return *read_whole_number<int64_t>(text);
}

std::vector<std::string> split_list(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::vector<Prompt> read_prompts(const std::vector<std::string>& texts,
                                 const std::vector<std::string>& files,
                                 const std::vector<std::string>& ids) {
  std::vector<Prompt> prompts;
  prompts.reserve(texts.size() + files.size() + ids.size());
  for (const std::string& text : texts) prompts.push_back({text, {}, "--prompt"});
  for (const std::string& file : files) {
    const std::filesystem::path path = file == "-" ? "/dev/stdin" : expand_tilde(file);
    if (!std::filesystem::exists(path)) {
      throw Error(str(path.string(), ": no such file"), ExitCode::kBadData);
    }
    prompts.push_back({read_file(path), {}, path.string()});
  }
  for (const std::string& text : ids) prompts.push_back({"", parse_ids(text), "--ids"});
  return prompts;
}

void check_prompt_ids(const std::vector<int64_t>& ids, const std::string& origin,
                      int64_t vocab_size) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < vocab_size) continue;
    throw Error(str(origin, ", token ", i, ": expected an id below the vocabulary of ", vocab_size,
                    ", found ", ids[i]),
                ExitCode::kBadData);
  }
}

}  // namespace cplm
