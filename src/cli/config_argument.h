// The CONFIG of a command, and the fields of it that the command line overrides.
#pragma once

#include <CLI/App.hpp>
#include <string>
#include <vector>

#include "cplm/base.h"
#include "cplm/config.h"

namespace cplm {

struct ConfigArgument {
  std::string path;
  std::vector<std::string> overrides;

  Config load() const { return load_config(expand_tilde(path), overrides); }
};
// Adds `config` and `--set`; `argument` must outlive the parse.
void add_config_argument(CLI::App& command, ConfigArgument& argument);

}  // namespace cplm
