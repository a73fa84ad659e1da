// cplm verify-checkpoint: everything about a checkpoint that can be checked without its model.
#include <ATen/core/Tensor.h>

#include <system_error>

#include "checkpoint/find.h"
#include "checkpoint/folder.h"
#include "checkpoint/safetensors_header.h"
#include "cplm/base.h"

namespace cplm {

namespace fs = std::filesystem;

namespace {

// Collects problems; each check goes on as far as it makes sense after the last.
class Verifier {
 public:
  explicit Verifier(fs::path folder) : folder_(std::move(folder)) {}

  std::vector<std::string> run() {
    try {
      manifest_ = checkpoint::read_manifest(folder_);
    } catch (const Error& error) {
      add(error.what());
    }
    if (manifest_) check_manifest();
    const auto model = open(checkpoint::kModelFile);
    if (model) check_numbers(*model);
    if (!manifest_) return problems_;
    const auto optimizer = open(checkpoint::kOptimizerFile);
    if (optimizer) check_numbers(*optimizer);
    if (model && optimizer) check_optimizer(*model, *optimizer);
    check_state();
    return problems_;
  }

 private:
  template <class... Args>
  void add(const Args&... args) {
    problems_.push_back(str(args...));
  }
  std::string file(const std::string& name) const { return (folder_ / name).string(); }

  void check_manifest() {
    const auto named_step = checkpoint::step_of_folder(folder_);
    if (named_step && *named_step != manifest_->step) {
      add(file(checkpoint::kManifestFile), " is of step ", manifest_->step,
          ", the folder's name says ", *named_step);
    }
    for (const auto& [name, expected] : manifest_->files) check_bytes(name, expected);
  }

  void check_bytes(const std::string& name, const checkpoint::ManifestFile& expected) {
    std::error_code error;
    const uintmax_t size_bytes = fs::file_size(folder_ / name, error);
    if (error) return add(file(name), ": ", error.message());
    if (size_bytes != expected.size_bytes) {
      return add(file(name), " has ", size_bytes, " bytes, the manifest says ",
                 expected.size_bytes);
    }
    try {
      const std::string found = sha256_file(folder_ / name);
      if (found != expected.sha256) {
        add(file(name), " has the sha256 ", found, ", the manifest says ", expected.sha256);
      }
    } catch (const Error& unreadable) {
      add(unreadable.what());
    }
  }

  std::unique_ptr<SafetensorsFile> open(const char* name) {
    try {
      auto opened = std::make_unique<SafetensorsFile>(folder_ / name);
      const auto expected = manifest_ ? manifest_->files.at(name).tensors : std::nullopt;
      const int64_t found = static_cast<int64_t>(opened->entries().size());
      if (expected && *expected != found) {
        add(file(name), " has ", found, " tensors, the manifest says ", *expected);
      }
      return opened;
    } catch (const Error& error) {
      std::error_code missing;
      // A missing file of the manifest has its line already.
      if (!manifest_ || fs::exists(folder_ / name, missing)) add(error.what());
      return nullptr;
    }
  }

  void check_numbers(const SafetensorsFile& tensors) {
    for (const auto& [name, entry] : tensors.entries()) {
      try {
        const at::Tensor values = tensors.read(name);
        const int64_t wrong = values.numel() - values.isfinite().sum().item<int64_t>();
        if (wrong > 0) {
          add(tensors.path().string(), ": tensor '", name, "' holds ", wrong,
              " values that are NaN or infinite, of ", values.numel());
        }
      } catch (const Error& error) {
        add(error.what());
      }
    }
  }

  // Optimizer tensors are SLOT.NAME (exp_avg.NAME, exp_avg_sq.NAME) with NAME's shape; a scalar
  // without a dot counts for the whole optimizer (adam_step).
  void check_optimizer(const SafetensorsFile& model, const SafetensorsFile& optimizer) {
    std::map<std::string, int> slots;
    for (const auto& [full_name, entry] : optimizer.entries()) {
      const size_t dot = full_name.find('.');
      if (dot == std::string::npos && entry.shape.empty()) continue;
      const std::string name = dot == std::string::npos ? "" : full_name.substr(dot + 1);
      if (!model.contains(name)) {
        add(optimizer.path().string(), ": '", full_name, "' belongs to no tensor of ",
            checkpoint::kModelFile);
        continue;
      }
      ++slots[name];
      const std::vector<int64_t>& expected = model.entries().at(name).shape;
      if (entry.shape != expected) {
        add(optimizer.path().string(), ": '", full_name, "' has the shape ",
            checkpoint::shape_text(entry.shape), ", the weight has ",
            checkpoint::shape_text(expected));
      }
      const std::string first = "exp_avg.", second = "exp_avg_sq.";
      const bool paired = (full_name != first + name || optimizer.contains(second + name)) &&
                          (full_name != second + name || optimizer.contains(first + name));
      if (!paired) {
        add(optimizer.path().string(), ": '", full_name,
            "' stands alone, expected both exp_avg and exp_avg_sq");
      }
    }
    if (optimizer.entries().empty()) return;  // no update was made yet
    for (const auto& [name, entry] : model.entries()) {
      if (slots.count(name) == 0) {
        add(optimizer.path().string(), " has nothing for the weight '", name, "'");
      }
    }
  }

  void check_state() {
    try {
      const std::string problem =
          checkpoint::state_problem(read_file(folder_ / checkpoint::kStateFile), manifest_->step);
      if (!problem.empty()) add(file(checkpoint::kStateFile), ": ", problem);
    } catch (const Error&) {
      // check_bytes() has said that it is missing or unreadable.
    }
  }

  fs::path folder_;
  std::optional<checkpoint::Manifest> manifest_;
  std::vector<std::string> problems_;
};

}  // namespace

std::vector<std::string> verify_checkpoint(const fs::path& path) {
  const fs::file_type type = checkpoint::type_at(path);
  if (type != fs::file_type::directory) {
    return {str(path.string(), ": expected a checkpoint's or a run's folder, found ",
                type == fs::file_type::not_found ? "nothing" : "a file")};
  }
  if (checkpoint::type_at(checkpoint::checkpoints_folder(path)) != fs::file_type::directory) {
    return Verifier(path).run();
  }
  std::vector<std::string> problems;
  for (const CheckpointFound& found : list_checkpoints(path)) {
    if (!found.complete()) {
      problems.push_back(str(found.path.string(), ": ", found.problem));
      continue;
    }
    const std::vector<std::string> of_newest = Verifier(found.path).run();
    problems.insert(problems.end(), of_newest.begin(), of_newest.end());
    return problems;
  }
  problems.push_back(str("no complete checkpoint in ", path.string()));
  return problems;
}

}  // namespace cplm
