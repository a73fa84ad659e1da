// RunState to and from state.json; doubles keep every bit (shortest exact decimals).
#include "train/run_state.h"

#include <nlohmann/json.hpp>

#include "cplm/base.h"
#include "runs/json_number.h"

namespace cplm {

std::string to_json(const RunState& state, const std::string& config_yaml, int64_t batch_sequences,
                    uint64_t seed, const TrainingData& data) {
  nlohmann::ordered_json json;
  json["version"] = CPLM_VERSION;
  json["step"] = state.step;
  json["tokens"] = state.tokens;
  json["finished"] = state.finished;
  json["data"] = {{"next_sequence", state.step * batch_sequences},
                  {"seed", seed},
                  {"shards", data.shards},
                  {"tokens", data.tokens},
                  {"sha256", data.sha256}};
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
  return json.dump(2) + "\n";
}

SavedRun run_from_json(const std::string& text, const std::string& origin) {
  try {
    const auto json = nlohmann::json::parse(text);
    SavedRun saved;
    saved.state.step = json.at("step").get<int64_t>();
    saved.state.tokens = json.at("tokens").get<int64_t>();
    saved.state.finished = json.at("finished").get<bool>();
    const auto& data = json.at("data");
    saved.data.shards = data.value("shards", int64_t{0});
    saved.data.tokens = data.value("tokens", int64_t{0});
    saved.data.sha256 = data.value("sha256", "");
    const auto& running = json.at("running");
    saved.state.loss_sum = read_json_number(running.at("loss_sum"));
    saved.state.loss_targets = running.at("targets").get<int64_t>();
    saved.state.log_steps = running.at("steps").get<int64_t>();
    saved.state.grad_norm = read_json_number(running.at("grad_norm"));
    saved.state.left_out = json.at("left_out").get<std::vector<int64_t>>();
    saved.state.loss_window = json.value("loss_window", std::vector<double>());
    saved.state.rewinds = json.at("rewinds").get<int64_t>();
    saved.config_yaml = json.at("config").get<std::string>();
    return saved;
  } catch (const nlohmann::json::exception& error) {
    throw Error(str(origin, ": expected the training state this program writes, found: ",
                    error.what(), "; take another checkpoint with --resume PATH"));
  }
}

}  // namespace cplm
