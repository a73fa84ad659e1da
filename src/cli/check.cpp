// cplm check: what a config means, without training.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/check_cluster.h"
#include "cli/check_report.h"
#include "cli/commands.h"
#include "cli/config_argument.h"

namespace cplm {
namespace {

using Json = nlohmann::ordered_json;

void heading(const char* text) { std::printf("\n%s\n", text); }

void row(const std::string& name, const std::string& value) {
  std::printf("  %-22s %s\n", name.c_str(), value.c_str());
}

std::string bytes_text(int64_t bytes) {
  const char* units[] = {"KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes) / 1024.0;
  size_t unit = 0;
  for (; value >= 1024.0 && unit < 3; ++unit) value /= 1024.0;
  char text[32];
  std::snprintf(text, sizeof text, "%8.1f %s", value, units[unit]);
  return text;
}

std::string number(double value, const char* format = "%.4g") {
  char text[32];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

void print_counts(const Json& report) {
  heading("Parameters");
  for (const auto& [part, count] : report["parameters"].items())
    row(part, with_commas(count.get<int64_t>()));
  heading("Memory of one rank (modelled)");
  for (const auto& [part, bytes] : report["memory"]["parts"].items())
    row(part, bytes_text(bytes.get<int64_t>()));
  row("total", bytes_text(report["memory"]["total_bytes"].get<int64_t>()));
  heading("Work (modelled)");
  const Json& work = report["work"];
  row("FLOP a token", number(work["flops_per_token"].get<double>()));
  row("CP head's share", number(100 * work["copy_head_share"].get<double>(), "%.2f %%"));
  row("FLOP of the run", number(work["flops_of_run"].get<double>()));
  row("GPU hours", number(work["modelled_gpu_hours"].get<double>(), "%.3g: ") +
                       work["assumption"].get<std::string>());
}

void print_decay(const Json& report) {
  heading("Weight decay");
  const Json& optimizer = report["optimizer"];
  row("decay", number(optimizer["weight_decay"].get<double>()));
  row("decayed tensors", str(optimizer["decayed"].size()));
  std::vector<std::string> kept = optimizer["not_decayed"];
  row("not decayed", kept.empty() ? "none" : join(kept, ", "));
}

// "full_attention x 3, sliding_attention x 1" in the order of the layers.
std::string layer_runs(const Json& kinds) {
  std::vector<std::string> runs;
  for (size_t i = 0; i < kinds.size();) {
    size_t end = i;
    while (end < kinds.size() && kinds[end] == kinds[i]) ++end;
    runs.push_back(str(kinds[i].get<std::string>(), " x ", end - i));
    i = end;
  }
  return join(runs, ", ");
}

void print_schedule(const Json& report) {
  heading("Schedule");
  const Json& schedule = report["schedule"];
  row("steps", with_commas(schedule["steps"].get<int64_t>()));
  row("tokens", with_commas(schedule["tokens"].get<int64_t>()));
  row("sequences a step", with_commas(schedule["batch_sequences"].get<int64_t>()));
  row("decay starts after", with_commas(schedule["decay_starts_after"].get<int64_t>()));
  for (const Json& entry : schedule["learning_rates"]) {
    row("lr of update " + with_commas(entry["update"].get<int64_t>()),
        number(entry["lr"].get<double>()));
  }
  heading("Layers");
  row("in order", layer_runs(report["layer_types"]));
}

void print_windows(const char* name, const Json& data) {
  if (!data["present"].get<bool>()) {
    row(name, "absent: " + data["problem"].get<std::string>());
    return;
  }
  row(name,
      str(with_commas(data["tokens"].get<int64_t>()), " tokens, ",
          with_commas(data["documents"].get<int64_t>()), " documents, ",
          data["shards"].get<int64_t>(), " shards, ", with_commas(data["windows"].get<int64_t>()),
          " windows",
          data["vocabulary_fits"].get<bool>() ? "" : "; VOCABULARY LARGER THAN model.vocab_size"));
}

// Of a mixture each source has epochs of its own.
void print_sources(const Json& data) {
  const Json& sources = data["train"]["sources"];
  if (sources.size() == 1) {
    row("tokens an epoch", with_commas(data["tokens_per_epoch"].get<int64_t>()));
    row("epochs in the run", number(data["epochs"].get<double>()));
    return;
  }
  for (const Json& source : sources) {
    row("source",
        str(source["path"].get<std::string>(), ": ", number(100 * source["weight"].get<double>()),
            " %, ", with_commas(source["tokens_per_epoch"].get<int64_t>()), " tokens an epoch, ",
            number(source["epochs"].get<double>()), " epochs in the run"));
  }
}

void print_run(const Json& run) {
  heading("Run");
  row("folder", run["dir"].get<std::string>());
  const int64_t step = run["starts_at_step"].get<int64_t>();
  if (run["nothing_to_do"].get<bool>()) {
    row("finished at step", str(with_commas(step), ": train would change nothing"));
  } else if (run.contains("checkpoint")) {
    row("goes on at step", str(with_commas(step), " of ", run["checkpoint"].get<std::string>()));
  } else {
    row("begins at step", "0");
  }
  for (const Json& change : run["changed_settings"]) row("changed", change.get<std::string>());
}

void print_data(const Json& report) {
  heading("Data");
  const Json& data = report["data"];
  print_windows("train", data["train"]);
  if (data.contains("validation")) print_windows("validation", data["validation"]);
  if (data["train"].contains("sources")) print_sources(data);
  const auto list = [&](const char* title, const Json& lines) {
    if (lines.empty()) return;
    heading(title);
    for (const Json& line : lines) std::printf("  %s\n", line.get<std::string>().c_str());
  };
  list("Unused settings", report["unused_settings"]);
  list("Not there yet", report["not_there_yet"]);
  list("Train would refuse", report["train_would_refuse"]);
}

void print_report(const Json& report) {
  print_counts(report);
  print_decay(report);
  if (report.contains("cluster")) print_cluster(report["cluster"]);
  print_schedule(report);
  if (report.contains("run")) print_run(report["run"]);
  print_data(report);
  std::printf("\n%s", report["config"].get<std::string>().c_str());
}

// The report is whole; the exit code is that of the first thing that train would refuse.
void end_as_train(const StartCheck& start) {
  const std::vector<Error>& refusals = start.refusals();
  if (refusals.empty()) return;
  std::fflush(stdout);
  const size_t more = refusals.size() - 1;
  throw Error(str("train would refuse: ", refusals.front().what(),
                  more > 0 ? str(" (and ", more, " more above)") : ""),
              refusals.front().code());
}

}  // namespace

void add_check_command(CLI::App& app) {
  struct Arguments {
    ConfigArgument config;
    bool json = false;
    ClusterArguments cluster;
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand(
      "check",
      "What a config means: sizes, memory, schedule, data, what train would refuse (then with its "
      "exit code); no training");
  add_config_argument(*command, arguments->config);
  command->add_flag("--json", arguments->json, "JSON for programs");
  add_cluster_options(*command, arguments->cluster);
  command->footer([] { return "Fields of a config:\n" + config_reference(); });
  command->callback([arguments] {
    const Config config = arguments->config.load();
    const ClusterArguments& cluster = arguments->cluster;
    const StartCheck start(config, {cluster.num_ranks(), !cluster.given()});
    Json report = check_report(config, start);
    add_cluster(report, config, cluster);
    if (arguments->json) {
      std::printf("%s\n", report.dump(2).c_str());
    } else {
      print_report(report);
    }
    end_as_train(start);
  });
}

}  // namespace cplm
