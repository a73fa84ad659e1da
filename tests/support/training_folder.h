// A folder with token shards and a tiny config, and real runs of the program in it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "support/process.h"
#include "support/temp_dir.h"

namespace cplm::test {

using Texts = std::vector<std::string>;

class TrainingFolder {
 public:
  static constexpr int kSteps = 40;

  // 40 steps of 4 sequences of 16 tokens; a line of metrics each step, a checkpoint every 10.
  TrainingFolder();

  const std::filesystem::path& path() const { return dir_.path(); }
  std::filesystem::path operator/(const std::filesystem::path& name) const { return dir_ / name; }
  const TempDir& files() const { return dir_; }

  // `cplm ARGUMENTS` in the folder.
  ProcessResult cplm(const Texts& arguments, ProcessOptions options = {}) const;
  // `cplm train config.yaml --set run.dir=RUN --set OVERRIDE... ARGUMENTS...`
  ProcessResult train(const std::string& run, const Texts& overrides = {},
                      const Texts& arguments = {}, ProcessOptions options = {}) const;

  // The same as a child of a shell that runs `prelude` first, such as "ulimit -f 24".
  ProcessResult train_after(const std::string& prelude, const std::string& run,
                            const Texts& overrides = {}) const;

  // Lines of RUN/metrics.jsonl of a kind ("" for all), without the fields that hold times, rates
  // and memory: what two equal runs share.
  Texts metrics(const std::string& run, const std::string& kind = "") const;
  std::filesystem::path checkpoint(const std::string& run, int step) const;
  // sha256 of the model's and the optimizer's file of a checkpoint.
  Texts weights(const std::string& run, int step = kSteps) const;
  // Every file below a folder with its size, time of change and hash.
  Texts snapshot(const std::string& folder) const;

 private:
  TempDir dir_;
};

// The number of a field in a line of metrics.
double number_in(const std::string& line, const char* field);

// Its last line of stderr, with nothing else wrong than the exit code says.
std::string error_line(const ProcessResult& result);

}  // namespace cplm::test
