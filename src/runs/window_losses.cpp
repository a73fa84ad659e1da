// RUN/validation/step_N.h5: loss sum and count of each validation window, so that two runs can be
// compared window by window.
#include <unistd.h>

#include "cplm/base.h"
#include "cplm/runs.h"
#include "data/hdf5_file.h"

namespace cplm {
namespace {

namespace fs = std::filesystem;

void write_aside(const fs::path& path, const WindowLosses& losses) {
  Hdf5File file = Hdf5File::create(path);
  file.write_int_attribute("step", losses.step);
  file.write_int_attribute("tokens", losses.tokens);
  file.write_int_attribute("sequence_length", losses.sequence_length);
  file.write_string_attribute("validation_id", losses.validation_id);
  file.write_dataset("loss_sum", losses.loss_sum);
  file.write_dataset("counted", losses.counted);
  file.close();
}

// The size in the file's header is not to be trusted with memory: the bytes must be there.
template <class T>
std::vector<T> read_column(const Hdf5File& file, const fs::path& path, const std::string& name) {
  const Hdf5Dataset dataset = file.open_dataset(name);
  if (static_cast<uint64_t>(dataset.size()) > dataset.stored_bytes() / sizeof(T)) {
    throw Error(str(path.string(), ": dataset '", name, "' claims ", dataset.size(),
                    " elements but stores only ", dataset.stored_bytes(), " bytes"),
                ExitCode::kBadData);
  }
  return dataset.read_all<T>();
}

}  // namespace

fs::path window_losses_path(const fs::path& run_dir, int64_t step) {
  return run_dir / "validation" / str("step_", step, ".h5");
}

void write_window_losses(const fs::path& run_dir, const WindowLosses& losses) {
  CPLM_CHECK(losses.loss_sum.size() == losses.counted.size(), "window losses of step ", losses.step,
             ": ", losses.loss_sum.size(), " loss sums but ", losses.counted.size(), " counts");
  const fs::path path = window_losses_path(run_dir, losses.step);
  const fs::path aside = path.string() + ".partial";
  make_folders(path.parent_path());
  try {
    write_aside(aside, losses);
    rename_durable(aside, path);
  } catch (...) {
    ::unlink(aside.c_str());  // the write's own error is the one to report
    throw;
  }
}

std::string read_validation_id(const fs::path& path, int64_t step) {
  const Hdf5File file = Hdf5File::open(path);
  const int64_t found = file.read_int_attribute("step");
  if (found != step) {
    throw Error(str(path.string(), ": expected the validation at step ", step, ", found that at ",
                    found, ": the file was renamed"),
                ExitCode::kBadData);
  }
  return file.read_string_attribute("validation_id");
}

WindowLosses read_window_losses(const fs::path& path) {
  const Hdf5File file = Hdf5File::open(path);
  WindowLosses losses;
  losses.step = file.read_int_attribute("step");
  losses.tokens = file.read_int_attribute("tokens");
  losses.sequence_length = file.read_int_attribute("sequence_length");
  losses.validation_id = file.read_string_attribute("validation_id");
  losses.loss_sum = read_column<double>(file, path, "loss_sum");
  losses.counted = read_column<int64_t>(file, path, "counted");
  if (losses.loss_sum.size() != losses.counted.size()) {
    throw Error(str(path.string(), ": expected as many loss sums as counts, found ",
                    losses.loss_sum.size(), " and ", losses.counted.size()),
                ExitCode::kBadData);
  }
  for (size_t w = 0; w < losses.counted.size(); ++w) {
    if (losses.counted[w] < 0) {
      throw Error(str(path.string(), ": window ", w, ": expected a count of at least 0, found ",
                      losses.counted[w]),
                  ExitCode::kBadData);
    }
  }
  return losses;
}

}  // namespace cplm
