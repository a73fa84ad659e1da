// cplm data inspect, cplm data verify, cplm verify-checkpoint.
#include <chrono>
#include <cmath>
#include <cstdio>

#include "cli/commands.h"
#include "cplm/checkpoint.h"
#include "cplm/shard_tools.h"

namespace cplm {
namespace {

constexpr const char* kVerifyHelp =
    R"(Reads every byte: checksums, the hash of the contents, ids, document offsets, ends of documents,
bytes between the structures, manifest.json. Of several shards also: do vocabulary, eos and
tokenizer agree, is one there twice, does the manifest list what the folder holds.
One line a problem on standard output. Exit code 0: sound; 3: not.

Examples:
  cplm data verify data/fineweb-edu
  cplm data verify 'data/fineweb-edu/train/*.h5'
)";

using Clock = std::chrono::steady_clock;

std::string megabytes_per_s(int64_t bytes, double seconds) {
  return str(with_commas(std::llround(static_cast<double>(bytes) / 1e6 / std::max(seconds, 1e-3))),
             " MB/s");
}

// A status line for the terminal: share done, speed, time left.
ShardProgress progress_line(const std::string& doing) {
  return [doing, start = Clock::now()](int64_t done, int64_t total) {
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    const double share =
        static_cast<double>(done) / static_cast<double>(std::max<int64_t>(total, 1));
    log::progress(str(doing, ": ", std::llround(100 * share), " % of ",
                      with_commas(total / 1'000'000), " MB, ", megabytes_per_s(done, seconds), ", ",
                      format_duration(seconds / std::max(share, 1e-9) - seconds), " left"));
  };
}

void verify(const std::vector<std::string>& names) {
  const auto shards = list_shards(names);
  VerifyOptions options;
  options.on_problem = [](const std::string& problem) {
    log::progress("");  // the status line does not stand in the list
    std::printf("%s\n", problem.c_str());
    std::fflush(stdout);
  };
  options.on_progress = progress_line("verifying");
  const VerifyReport report = verify_shards(shards, options);
  log::progress("");
  const std::string seen =
      str(with_commas(report.shards), " shard", report.shards == 1 ? "" : "s", ", ",
          with_commas(report.tokens), " tokens, ", with_commas(report.documents), " documents");
  if (report.problems > 0) {
    throw Error(str(with_commas(report.problems), " problem", report.problems == 1 ? "" : "s",
                    " (damaged shards: ", report.damaged_shards, " of ", report.shards,
                    "): not what was written; prepare the data again, or take it from a copy"),
                ExitCode::kBadData);
  }
  std::printf("%s: sound\n", seen.c_str());
}

}  // namespace

void add_data_command(CLI::App& app) {
  CLI::App* data = app.add_subcommand("data", "Look into token shards");
  data->require_subcommand(1);
  auto patterns = std::make_shared<std::vector<std::string>>();
  CLI::App* inspect = data->add_subcommand("inspect", "What a shard holds");
  inspect->add_option("files", *patterns, "Shards (.h5)")->required();
  inspect->callback([patterns] {
    for (const auto& file : list_shards(*patterns)) {
      std::printf("%s", describe_shard(file).c_str());
    }
  });
  CLI::App* verify_command = data->add_subcommand("verify", "Is every byte what was written");
  verify_command->add_option("files", *patterns, "Shards (.h5), folders of shards, or patterns")
      ->required();
  verify_command->footer(kVerifyHelp);
  verify_command->callback([patterns] { verify(*patterns); });
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
