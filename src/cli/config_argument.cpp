// See config_argument.h.
#include "cli/config_argument.h"

namespace cplm {

void add_config_argument(CLI::App& command, ConfigArgument& argument) {
  command.add_option("config", argument.path, "YAML file")->required();
  command
      .add_option("--set", argument.overrides,
                  "Override a field: key.path=value (any number of times)")
      ->allow_extra_args(false);
}

}  // namespace cplm
