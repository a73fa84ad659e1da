// What the kinds of `cplm data make` share.
#pragma once

#include <CLI/App.hpp>
#include <optional>
#include <string>

#include "cplm/shard_tools.h"

namespace cplm {

// "128" or "16:128"; nothing for "". Error(kBadConfig) naming the option.
std::optional<WholeRange> parse_range(const char* option, const std::string& text);
// Those of text: ruler, needle.
void add_text_kinds(CLI::App& data_make);

}  // namespace cplm
