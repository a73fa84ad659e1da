// cplm data inspect, cplm data verify, cplm verify-checkpoint.
#include <cstdio>

#include "cli/commands.h"
#include "cplm/checkpoint.h"
#include "cplm/shard_tools.h"

namespace cplm {
namespace {

// Patterns the shell did not expand are expanded here; a plain name stays, so that its absence is
// told.
std::vector<std::filesystem::path> files_of(const std::vector<std::string>& patterns) {
  std::vector<std::filesystem::path> files;
  for (const std::string& pattern : patterns) {
    const auto found = glob_paths(pattern);
    if (found.empty()) throw Error(pattern + ": no such file", ExitCode::kBadData);
    files.insert(files.end(), found.begin(), found.end());
  }
  return files;
}

void verify_shards(const std::vector<std::string>& patterns) {
  size_t damaged = 0;
  const auto files = files_of(patterns);
  for (const auto& file : files) {
    const auto problems = verify_shard(file);
    std::printf("%s: %s\n", file.c_str(), problems.empty() ? "ok" : "DAMAGED");
    for (const std::string& problem : problems) std::printf("  %s\n", problem.c_str());
    damaged += problems.empty() ? 0 : 1;
  }
  if (damaged > 0) {
    throw Error(
        str(damaged, " of ", files.size(), " files are not what was written; prepare them again"),
        ExitCode::kBadData);
  }
}

}  // namespace

void add_data_command(CLI::App& app) {
  CLI::App* data = app.add_subcommand("data", "Look into token shards");
  data->require_subcommand(1);
  auto patterns = std::make_shared<std::vector<std::string>>();
  CLI::App* inspect = data->add_subcommand("inspect", "What a shard holds");
  inspect->add_option("files", *patterns, "Shards (.h5)")->required();
  inspect->callback([patterns] {
    for (const auto& file : files_of(*patterns)) std::printf("%s", describe_shard(file).c_str());
  });
  CLI::App* verify = data->add_subcommand("verify", "Is every byte what was written");
  verify->add_option("files", *patterns, "Shards (.h5)")->required();
  verify->callback([patterns] { verify_shards(*patterns); });
}

void add_verify_checkpoint_command(CLI::App& app) {
  auto path = std::make_shared<std::string>();
  CLI::App* command =
      app.add_subcommand("verify-checkpoint", "Hashes, shapes and completeness of a checkpoint");
  command
      ->add_option("checkpoint", *path,
                   "A step folder, or a run's folder for its newest complete one")
      ->required();
  command->callback([path] {
    const auto problems = verify_checkpoint(*path);
    for (const std::string& problem : problems) std::printf("%s\n", problem.c_str());
    CPLM_CHECK(problems.empty(), *path, ": ", problems.size(), " problems; it must not be trusted");
    std::printf("%s: ok\n", path->c_str());
  });
}

}  // namespace cplm
