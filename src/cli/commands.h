// The sub-commands. Each registers its arguments and returns nothing until its callback runs; a
// callback sets the exit code or throws Error.
#pragma once

#include <CLI/App.hpp>

#include "cplm/base.h"

namespace cplm {

void add_bench_command(CLI::App& app);
void add_check_command(CLI::App& app);
void add_train_command(CLI::App& app, ExitCode& exit_code);
void add_compare_command(CLI::App& app);
void add_copy_cache_command(CLI::App& app);
void add_data_command(CLI::App& app);
void add_data_make_command(CLI::App& data);  // below `cplm data`
void add_eval_command(CLI::App& app);
void add_report_command(CLI::App& app);
void add_generate_command(CLI::App& app);
void add_export_command(CLI::App& app);
void add_import_command(CLI::App& app);
void add_verify_checkpoint_command(CLI::App& app);

}  // namespace cplm
