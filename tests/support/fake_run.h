// Makes a run's folder by hand: config.yaml, metrics.jsonl and window losses, for tests of what
// reads runs.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cplm/base.h"
#include "cplm/runs.h"

namespace cplm::test {

struct FakeRun {
  static constexpr int64_t kBatchTokens = 160;
  static constexpr int64_t kCountedTokens = 64;

  std::string name = "run";
  std::string head = "vanilla";
  int64_t seed = 1;
  int64_t steps = 100;
  std::string schedule = "{name: wsd, decay_fraction: 0.2}";
  std::string optimizer = "{lr: 1.0e-3}";
  std::vector<std::pair<int64_t, double>> losses;  // step, validation loss
  std::vector<SettingsRecord> settings = {};       // changes on the way, by rising step
  std::string validation_id = "windows";
  std::vector<double> window_loss_sums = {};  // of the last step; empty: no file
  // Of the steps before, with the same losses; "": no file.
  std::vector<std::string> earlier_validation_ids = {};
  std::string validation_data = "validation/*.h5";
  int64_t counted_tokens = kCountedTokens;

  std::string config_yaml() const {
    return str("run: {name: '", name, "', dir: runs/x, seed: ", seed, "}\n",
               "model: {vocab_size: 64, hidden_size: 32, num_hidden_layers: 1, ",
               "num_attention_heads: 2, num_key_value_heads: 1, intermediate_size: 64, ",
               "backbone: full, head: ", head, "}\n",
               "data: {train: ['train/*.h5'], validation: ['", validation_data, "'], ",
               "sequence_length: 16}\n", "train: {steps: ", steps, ", batch_tokens: ", kBatchTokens,
               ", micro_batch: 1}\n", "optimizer: ", optimizer, "\n", "schedule: ", schedule, "\n");
  }

  void write_to(const std::filesystem::path& dir) const {
    make_folders(dir);
    write_file_atomic(dir / "config.yaml", config_yaml());
    std::optional<MetricsWriter> writer;
    writer.emplace(dir, -1);
    auto change = settings.begin();
    for (const auto& [step, loss] : losses) {
      for (; change != settings.end() && change->step < step; ++change)
        resume(*change, dir, writer);
      ValidationRecord record{.step = step,
                              .tokens = step * kBatchTokens,
                              .loss = loss,
                              .perplexity = 0,
                              .counted_tokens = counted_tokens,
                              .copy = std::nullopt};
      if (head == "cplm") record.copy = CopyMeans{loss + 0.5, 0.25, 0.5, 0.125};
      writer->write(record);
    }
    if (!window_loss_sums.empty()) write_windows(dir, losses.back().first, validation_id);
    for (size_t i = 0; i < earlier_validation_ids.size(); ++i) {
      const std::string& id = earlier_validation_ids[i];
      if (!id.empty()) write_windows(dir, losses.at(i).first, id);
    }
  }

 private:
  static void resume(const SettingsRecord& record, const std::filesystem::path& dir,
                     std::optional<MetricsWriter>& writer) {
    ResumePoint point{record.step, record.step * kBatchTokens, record.changes, {}};
    for (const SettingChange& change : record.changes) point.settings[change.key] = change.now;
    writer.reset();
    writer.emplace(dir, point);
  }

  void write_windows(const std::filesystem::path& dir, int64_t step, const std::string& id) const {
    const std::vector<double> sums =
        window_loss_sums.empty() ? std::vector<double>{32, 32} : window_loss_sums;
    const auto windows = static_cast<int64_t>(sums.size());
    write_window_losses(dir,
                        {.step = step,
                         .tokens = step * kBatchTokens,
                         .sequence_length = 16,
                         .validation_id = id,
                         .loss_sum = sums,
                         .counted = std::vector<int64_t>(sums.size(), counted_tokens / windows)});
  }
};

}  // namespace cplm::test
