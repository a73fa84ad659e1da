// What `cplm train` would find before its first step, asked in its order: what it would refuse, and
// what is not there yet. Changes nothing.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cplm/base.h"
#include "cplm/config.h"
#include "cplm/data.h"
#include "train/run_folder.h"

namespace cplm {

struct StartOptions {
  int64_t ranks = 1;
  bool on_this_machine = true;  // false: planned for another, whose devices are not known
};

class StartCheck {
 public:
  StartCheck(const Config& config, const StartOptions& options);

  // With train's messages and exit codes; the first is what train would end with.
  const std::vector<Error>& refusals() const { return refusals_; }
  // Data, weights and folder that the config names, or leaves out, and that are not there yet.
  const std::vector<std::string>& absent() const { return absent_; }
  struct Split {
    std::optional<WindowSet> windows;
    std::string problem;  // why there are none
  };
  const Split& train_data() const { return train_; }
  const Split& validation_data() const { return validation_; }
  // What is in the run's folder; null where that is not known.
  const RunFolder* run() const { return run_ ? &*run_ : nullptr; }
  bool has_nothing_to_do() const;

 private:
  bool ask(const std::function<void()>& question);  // whether nothing was wrong
  void ask_run_folder();
  void open_data();
  void ask_data();
  void ask_initial_weights();

  const Config& config_;
  std::vector<Error> refusals_;
  std::vector<std::string> absent_;
  Split train_, validation_;
  std::optional<RunFolder> run_;
};

}  // namespace cplm
