// cplm train and cplm compare.
#include "cplm/train.h"

#include <csignal>

#include "base/argument_checks.h"
#include "cli/commands.h"
#include "cli/config_argument.h"
#include "cli/start_error.h"
#include "cplm/comm.h"
#include "cplm/config.h"
#include "cplm/runs.h"
#include "train/start_checks.h"

namespace cplm {
namespace {

// Once train() has begun, an error may be one rank's own.
Config load_checked_config(const ConfigArgument& argument) {
  try {
    Config config = argument.load();
    check_settings(config, read_launch().size);
    return config;
  } catch (const Error& error) {
    throw StartError(error.what(), error.code());
  }
}

}  // namespace

void add_train_command(CLI::App& app, ExitCode& exit_code) {
  struct Arguments {
    ConfigArgument config;
    TrainOptions options;
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command =
      app.add_subcommand("train", "Train, or go on from the run's newest complete checkpoint");
  add_config_argument(*command, arguments->config);
  command->add_option("--resume", arguments->options.resume, "auto, none, or a checkpoint's folder")
      ->capture_default_str();
  command->add_flag("--overwrite", arguments->options.overwrite,
                    "With --resume none: delete the run in the folder");
  command
      ->add_option("--stop-after", arguments->options.stop_after,
                   "Do so many steps, save, and end with code 75")
      ->check(whole_from(1));
  command->callback([arguments, &exit_code] {
    install_stop_signals();  // before anything that takes time
    // A reader of the console that ends, or a peer that is gone, must not take the run with it.
    std::signal(SIGPIPE, SIG_IGN);
    const Config config = load_checked_config(arguments->config);
    const RunOutcome outcome = train(config, arguments->options);
    exit_code = outcome == RunOutcome::kStopped ? ExitCode::kStopped : ExitCode::kDone;
  });
}

void add_compare_command(CLI::App& app) {
  struct Arguments {
    std::vector<std::string> runs;
    std::optional<std::string> out;
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("compare", "Compare runs; the first is the baseline");
  command->add_option("runs", arguments->runs, "Run folders")->required()->expected(2, -1);
  command->add_option("--out", arguments->out, "Folder for compare.json, .csv, .png and .svg");
  command->footer(compare_rules());
  command->callback([arguments] {
    CompareOptions options;
    for (const std::string& run : arguments->runs) options.runs.push_back(expand_tilde(run));
    if (arguments->out) options.out = expand_tilde(*arguments->out);
    compare_runs(options);
  });
}

}  // namespace cplm
