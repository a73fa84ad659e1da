// cplm data inspect, cplm data verify, cplm verify-checkpoint.
#include <chrono>
#include <cmath>
#include <cstdio>

#include "base/argument_checks.h"
#include "cli/commands.h"
#include "cli/inspect_report.h"
#include "cplm/checkpoint.h"
#include "cplm/shard_tools.h"

namespace cplm {
namespace {

constexpr const char* kNamesHelp = "Shards (.h5), folders of shards, or patterns";

constexpr const char* kInspectHelp =
    R"(Counts, lengths, ends and copies of documents, most frequent tokens, samples, and the share of
tokens that occur earlier in their window. Several shards are summed.

Examples:
  cplm data inspect data/fineweb-edu/validation
  cplm data inspect 'data/fineweb-edu/train/shard_0000*.h5' --samples 10 --seed 7
  cplm data inspect data/fineweb-edu --json
)";

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

// A status line for the terminal: share done, speed, time left.
ShardProgress progress_line(const std::string& doing, const std::string& unit) {
  return [=, start = Clock::now()](int64_t done, int64_t total) {
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    const double share =
        static_cast<double>(done) / static_cast<double>(std::max<int64_t>(total, 1));
    const double million_per_s = static_cast<double>(done) / 1e6 / std::max(seconds, 1e-3);
    log::progress(str(doing, ": ", std::llround(100 * share), " % of ",
                      with_commas(total / 1'000'000), " million ", unit, ", ",
                      std::llround(million_per_s), " million/s, ",
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
  options.on_progress = progress_line("verifying", "bytes");
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

void add_inspect_command(CLI::App& data) {
  struct Arguments {
    std::vector<std::string> names;
    InspectOptions options;
    bool json = false;
  };
  auto arguments = std::make_shared<Arguments>();
  InspectOptions& options = arguments->options;
  CLI::App* command = data.add_subcommand("inspect", "What shards hold");
  command->add_option("files", arguments->names, kNamesHelp)->required();
  const auto add = [command](const char* name, int64_t& value, int64_t min, const char* help) {
    command->add_option(name, value, help)
        ->check(whole_between(min, int64_t{1} << 30))
        ->capture_default_str();
  };
  add("--sequence-length", options.sequence_length, 1, "Tokens a window");
  add("--top", options.frequent_tokens, 0, "Most frequent tokens to list");
  add("--samples", options.samples, 0, "Documents to show");
  add("--sample-tokens", options.sample_tokens, 1, "Tokens of each to show");
  command->add_option("--seed", options.seed, "Shows other documents")
      ->check(seed_problem)
      ->capture_default_str();
  command->add_option("--tokenizer", options.tokenizer,
                      "tokenizer.json [the shards' own, beside them or one folder above]");
  command->add_flag("--json", arguments->json, "JSON for programs");
  command->footer(kInspectHelp);
  command->callback([arguments] {
    InspectOptions& chosen = arguments->options;
    chosen.on_progress = progress_line("inspecting", "tokens");
    const DataReport report = inspect_shards(list_shards(arguments->names), chosen);
    log::progress("");
    const std::string text =
        arguments->json ? report_json(report, chosen) : report_text(report, chosen);
    std::fwrite(text.data(), 1, text.size(), stdout);
  });
}

void add_verify_command(CLI::App& data) {
  auto names = std::make_shared<std::vector<std::string>>();
  CLI::App* command = data.add_subcommand("verify", "Is every byte what was written");
  command->add_option("files", *names, kNamesHelp)->required();
  command->footer(kVerifyHelp);
  command->callback([names] { verify(*names); });
}

}  // namespace

void add_data_command(CLI::App& app) {
  CLI::App* data = app.add_subcommand("data", "Look into token shards, or make synthetic ones");
  data->require_subcommand(1);
  add_inspect_command(*data);
  add_verify_command(*data);
  add_data_make_command(*data);
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
    const auto problems = verify_checkpoint(expand_tilde(*path));
    for (const std::string& problem : problems) std::printf("%s\n", problem.c_str());
    CPLM_CHECK(problems.empty(), *path, ": ", problems.size(), " problems; it must not be trusted");
    std::printf("%s: ok\n", path->c_str());
  });
}

}  // namespace cplm
