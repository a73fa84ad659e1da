// RunState to and from state.json; doubles keep every bit (shortest exact decimals).
#include "train/run_state.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "cplm/base.h"
#include "runs/json_number.h"

namespace cplm {
namespace {

constexpr size_t kMaxFiles = 20'000;  // 2 MB of state.json
constexpr size_t kHashDigits = 64;
constexpr int64_t kMaxTokens = 2'000'000'000'000'000;  // a run's 1e15 and its last batch

// "HASH  PATH", as sha256sum writes it: a line of the file for each shard.
nlohmann::ordered_json files_json(const std::vector<TrainingShard>& files) {
  auto lines = nlohmann::ordered_json::array();
  if (files.size() > kMaxFiles) return lines;
  for (const TrainingShard& file : files) lines.push_back(file.content_sha256 + "  " + file.path);
  return lines;
}

std::vector<TrainingShard> files_from_json(const nlohmann::json& lines) {
  std::vector<TrainingShard> files;
  for (const std::string& line : lines.get<std::vector<std::string>>()) {
    const std::string hash = line.substr(0, kHashDigits);
    files.push_back({line.substr(std::min(line.size(), kHashDigits + 2)), hash});
  }
  return files;
}

// By path, or by file name when no path is as it was: then the folder has moved.
std::map<std::string, const TrainingShard*> by_name(const std::vector<TrainingShard>& shards,
                                                    bool whole_path) {
  std::map<std::string, const TrainingShard*> names;
  for (const TrainingShard& shard : shards) {
    const std::filesystem::path path = shard.path;
    names[(whole_path ? path : path.filename()).string()] = &shard;
  }
  return names;
}

bool share_a_path(const std::vector<TrainingShard>& saved, const std::vector<TrainingShard>& now) {
  const auto known = by_name(now, true);
  return std::any_of(saved.begin(), saved.end(),
                     [&](const TrainingShard& shard) { return known.contains(shard.path); });
}

// A count as this program writes it; an edited file may hold anything.
int64_t count(const nlohmann::json& value, const char* name) {
  constexpr auto kLargest = static_cast<uint64_t>(kMaxTokens);
  if (!value.is_number_unsigned() || value.get<uint64_t>() > kLargest) {
    throw Error(str(name, ": a whole number from 0 to ", kMaxTokens, " instead of ", value.dump()));
  }
  return value.get<int64_t>();
}

int64_t count_in(const nlohmann::json& object, const char* name) {
  return count(object.at(name), name);
}

std::vector<int64_t> steps_in(const nlohmann::json& list, const char* name) {
  std::vector<int64_t> steps;
  steps.reserve(list.size());
  for (const auto& step : list) steps.push_back(count(step, name));
  CPLM_CHECK(std::ranges::is_sorted(steps), name, ": steps in order instead of ", list.dump());
  return steps;
}

}  // namespace

std::string changed_files(const std::vector<TrainingShard>& saved,
                          const std::vector<TrainingShard>& now) {
  if (saved.empty() || now.empty()) return "";
  const bool whole_path = share_a_path(saved, now);
  const auto before = by_name(saved, whole_path), after = by_name(now, whole_path);
  std::vector<std::string> changes;
  for (const auto& [name, shard] : before) {
    const auto found = after.find(name);
    if (found == after.end()) {
      changes.push_back(shard->path + " is missing");
    } else if (found->second->content_sha256 != shard->content_sha256) {
      changes.push_back(str(found->second->path, " has changed (content_sha256 ",
                            shard->content_sha256, " then, ", found->second->content_sha256,
                            " now)"));
    }
  }
  for (const auto& [name, shard] : after) {
    if (!before.contains(name)) changes.push_back(shard->path + " is new");
  }
  constexpr size_t kNamed = 5;
  const size_t more = changes.size() - std::min(changes.size(), kNamed);
  changes.resize(changes.size() - more);
  if (more > 0) changes.push_back(str("and ", more, " more"));
  return join(changes, ", ");
}

std::string to_json(const RunState& state, const std::string& config_yaml, int64_t batch_sequences,
                    uint64_t seed, const TrainingData& data) {
  nlohmann::ordered_json json;
  json["version"] = CPLM_VERSION;
  json["step"] = state.step;
  json["tokens"] = state.tokens;
  json["finished"] = state.finished;
  if (state.owes_validation) json["owes_validation"] = true;
  json["data"] = {{"next_sequence", state.step * batch_sequences},
                  {"seed", seed},
                  {"shards", data.shards},
                  {"tokens", data.tokens},
                  {"sha256", data.sha256},
                  {"files", files_json(data.files)}};
  // Weights at step 0 and the data order are functions of the seed; no other generator is in use.
  json["random_state"] = {{"seed", seed}};
  json["running"] = {{"loss_sum", json_number(state.loss_sum)},
                     {"targets", state.loss_targets},
                     {"steps", state.log_steps},
                     {"grad_norm", json_number(state.grad_norm)}};
  json["left_out"] = state.left_out;
  json["loss_window"] = state.loss_window;
  json["rewinds"] = state.rewinds;
  json["config"] = config_yaml;
  // A path may hold any bytes; what is no UTF-8 is only shown.
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

SavedRun run_from_json(const std::string& text, const std::string& origin) {
  try {
    const auto json = nlohmann::json::parse(text);
    SavedRun saved;
    saved.state.step = count_in(json, "step");
    saved.state.tokens = count_in(json, "tokens");
    saved.state.finished = json.at("finished").get<bool>();
    saved.state.owes_validation = json.value("owes_validation", false);
    const auto& data = json.at("data");
    saved.data.shards = data.value("shards", int64_t{0});
    saved.data.tokens = data.value("tokens", int64_t{0});
    saved.data.sha256 = data.value("sha256", "");
    saved.data.files = files_from_json(data.value("files", nlohmann::json::array()));
    const auto& running = json.at("running");
    saved.state.loss_sum = read_json_number(running.at("loss_sum"));
    saved.state.loss_targets = count_in(running, "targets");
    saved.state.log_steps = count_in(running, "steps");
    saved.state.grad_norm = read_json_number(running.at("grad_norm"));
    saved.state.left_out = steps_in(json.at("left_out"), "left_out");
    saved.state.loss_window = json.value("loss_window", std::vector<double>());
    saved.state.rewinds = count_in(json, "rewinds");
    saved.config_yaml = json.at("config").get<std::string>();
    return saved;
  } catch (const std::exception& error) {
    throw Error(str(origin, ": expected the training state this program writes, found: ",
                    error.what(), "; take another checkpoint with --resume PATH"));
  }
}

}  // namespace cplm
