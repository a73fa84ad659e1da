// cplm: sub-commands, exit codes, and the only place where exceptions end.
#include <c10/util/Exception.h>
#include <fcntl.h>

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <new>
#include <utility>

#include "base/argument_checks.h"
#include "base/standard_output.h"
#include "base/system_error.h"
#include "cli/commands.h"
#include "cli/start_error.h"
#include "cplm/comm.h"

namespace {

using cplm::ExitCode;

// A log file that fails only now (full disk) must not turn the error into a crash: the console has
// the message already, and the file is given up.
void report(const std::string& message) {
  try {
    cplm::log::error(message);
  } catch (const cplm::Error& error) {
    // The disk that is full may be what the message tells already.
    const std::string lost = error.what();
    const std::string reason = lost.substr(lost.rfind(": ") + 1);
    if (!message.ends_with(reason)) cplm::log::error(lost);
  }
  cplm::log::flush();
}

// Processes of one machine that are started alike have the same command line and files.
bool is_first_of_machine() {
  try {
    return cplm::read_launch().local_rank == 0;
  } catch (const cplm::Error&) {  // not even known: then it is what is told
    return true;
  }
}

void report_start_error(const std::string& message) {
  if (is_first_of_machine()) return report(message);
  cplm::log::debug("as the first process of this machine: " + message);
}

const std::string kOutOfMemory =
    "out of memory; lower train.micro_batch or the model's size; `cplm check` tells the parts";

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

const CLI::App& chosen_command(const CLI::App& app) {
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  return *command;
}

// Of options with their dashes, a parent's too.
std::vector<std::string> known_names(const CLI::App& command, bool are_options) {
  std::vector<std::string> names;
  if (!are_options) {
    for (const CLI::App* each : command.get_subcommands({})) names.push_back(each->get_name());
    return names;
  }
  for (const CLI::App* app = &command; app != nullptr; app = app->get_parent()) {
    for (const CLI::Option* option : app->get_options()) {
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    }
  }
  return names;
}

// CLI11 would list all that it does not know, backwards, or say only that a command is missing when
// its name is mistyped.
std::string parse_message(const CLI::App& app, const CLI::ParseError& error,
                          const std::vector<std::string>& words) {
  const std::vector<std::string> unknown = app.remaining(/*recurse=*/true);
  const CLI::App& command = chosen_command(app);
  const auto first = std::find_first_of(words.begin(), words.end(), unknown.begin(), unknown.end());
  std::string message = error.what();
  const bool is_unknown = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr ||
                          dynamic_cast<const CLI::RequiredError*>(&error) != nullptr;
  if (is_unknown && first != words.end()) {
    const std::string name = first->substr(0, first->find('='));
    const bool is_option = name.size() > 1 && name.front() == '-';
    const std::vector<std::string> known = known_names(command, is_option);
    const std::string near = cplm::nearest_name(name, known);
    message = cplm::str(
        "\"", name, "\": ", known.empty() ? "one argument too many" : "no such command or option",
        near.empty() ? "" : "; did you mean " + near + "?");
  }
  std::string path;
  for (const CLI::App* at = &command; at != nullptr; at = at->get_parent()) {
    path.insert(0, " " + at->get_name());
  }
  return message + "; see" + path + " --help";
}

int run(int argc, char** argv) {
  CLI::App app{"Pretrain, compare and inspect Copy-Paste language models"};
  app.name("cplm");
  app.set_version_flag("--version", "cplm " CPLM_VERSION);
  app.require_subcommand(1);
  app.fallthrough();
  std::string level = "info";
  app.add_option("--log-level", level, "How much to tell")
      ->check(CLI::IsMember({"trace", "debug", "info", "warn", "error"}))
      ->capture_default_str();
  app.parse_complete_callback([&] { cplm::log::set_level(level); });
  ExitCode exit_code = ExitCode::kDone;
  cplm::add_bench_command(app);
  cplm::add_check_command(app);
  cplm::add_train_command(app, exit_code);
  cplm::add_compare_command(app);
  cplm::add_copy_cache_command(app);
  cplm::add_data_command(app);
  cplm::add_eval_command(app);
  cplm::add_report_command(app);
  cplm::add_generate_command(app);
  cplm::add_export_command(app);
  cplm::add_import_command(app);
  cplm::add_verify_checkpoint_command(app);
  cplm::check_whole_numbers(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) {
      report_start_error(parse_message(app, error, {argv + 1, argv + argc}));
      return static_cast<int>(ExitCode::kBadConfig);
    }
    app.exit(error);  // prints for --help and --version
  }
  cplm::flush_standard_output();
  cplm::log::flush();
  return static_cast<int>(exit_code);
}

// A closed one would be given to the next file that is opened, and what is printed would land
// there: in its place stands one that cannot be written (stdout), or takes and gives nothing.
void keep_standard_descriptors() {
  for (const auto& [descriptor, access] : {std::pair{0, O_WRONLY}, {1, O_RDONLY}, {2, O_RDWR}}) {
    if (::fcntl(descriptor, F_GETFD) < 0)
      ::open("/dev/null", access);  // takes the lowest: this one
  }
}

}  // namespace

int main(int argc, char** argv) {
  keep_standard_descriptors();
  std::signal(SIGXFSZ, SIG_IGN);  // a file past its size limit is an error with a name, not a kill
  try {
    return run(argc, argv);
  } catch (const cplm::StartError& error) {
    report_start_error(error.what());
    return static_cast<int>(error.code());
  } catch (const cplm::Error& error) {
    report(error.what());
    return static_cast<int>(error.code());
  } catch (const c10::OutOfMemoryError&) {
    report(kOutOfMemory);
    return static_cast<int>(ExitCode::kOutOfMemory);
  } catch (const std::bad_alloc&) {
    report(kOutOfMemory);
    return static_cast<int>(ExitCode::kOutOfMemory);
  } catch (const c10::Error& error) {
    const std::string line = first_line(error.what_without_backtrace());
    // LibTorch's CPU allocator reports a failed allocation as a plain error.
    const bool memory = line.find("DefaultCPUAllocator") != std::string::npos ||
                        line.find("not enough memory") != std::string::npos ||
                        line.find("can't allocate memory") != std::string::npos;
    report(memory ? kOutOfMemory : line);
    return static_cast<int>(memory ? ExitCode::kOutOfMemory : ExitCode::kFailed);
  } catch (const std::filesystem::filesystem_error& error) {
    const cplm::Error clear = cplm::as_error(error);
    report(clear.what());
    return static_cast<int>(clear.code());
  } catch (const std::exception& error) {
    report(first_line(error.what()));
    return static_cast<int>(ExitCode::kFailed);
  }
}
