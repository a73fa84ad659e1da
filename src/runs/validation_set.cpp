// Leaves out validations of another set than a run's last one, and refuses runs of different sets.
#include "runs/validation_set.h"

#include <algorithm>

#include "cplm/base.h"

namespace cplm {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const std::string& message) { throw Error(message, ExitCode::kBadConfig); }

// Of each validation; "" where its file of window losses does not exist.
std::vector<std::string> validation_ids(const ComparedRun& run) {
  std::vector<std::string> ids;
  for (const ValidationRecord& record : run.validation) {
    const fs::path path = window_losses_path(run.dir, record.step);
    ids.push_back(fs::exists(path) ? read_validation_id(path, record.step) : "");
  }
  return ids;
}

// The first validation from which on all have the last one's number of counted tokens.
size_t first_of_last_count(const std::vector<ValidationRecord>& validation) {
  size_t first = validation.size() - 1;
  while (first > 0 && validation[first - 1].counted_tokens == validation[first].counted_tokens) {
    --first;
  }
  return first;
}

// From `first` on, where the set of the last id begins. After another set's last id, validations
// without a file may belong to either: they do not count.
size_t first_of_last_id(const std::vector<std::string>& ids, size_t first) {
  size_t begin = first;
  std::string last;
  for (size_t i = first; i < ids.size(); ++i) {
    if (ids[i].empty()) continue;
    if (!last.empty() && ids[i] != last) begin = i;
    last = ids[i];
  }
  return begin;
}

struct ValidationSettings {
  std::string windows, sequence_length;
  bool operator==(const ValidationSettings&) const = default;
};
ValidationSettings settings_of(const ComparedRun& run) {
  const auto flat = flatten_config(run.config);
  return {flat.at("data.validation"), flat.at("data.sequence_length")};
}

[[noreturn]] void refuse_different(const ComparedRun& a, const ComparedRun& b) {
  refuse(str(a.dir.string(), " and ", b.dir.string(), " were validated on different windows (",
             with_commas(a.validation.back().counted_tokens), " and ",
             with_commas(b.validation.back().counted_tokens),
             " counted tokens): their losses cannot be compared; make data.validation, ",
             "validation.sequences and data.sequence_length equal"));
}

[[noreturn]] void refuse_unknown(const ComparedRun& unknown, const ComparedRun& other) {
  const ValidationSettings here = settings_of(unknown), there = settings_of(other);
  refuse(str(unknown.dir.string(), " and ", other.dir.string(),
             " may have been validated on different windows: data.validation is ", here.windows,
             " and ", there.windows, " (data.sequence_length ", here.sequence_length, " and ",
             there.sequence_length, "), and no ",
             (unknown.dir / "validation" / "step_N.h5").string(),
             " tells which windows they were; put these files back, or make the settings equal"));
}

}  // namespace

void keep_last_validation_set(ComparedRun& run) {
  std::vector<std::string> ids = validation_ids(run);
  const size_t first = first_of_last_id(ids, first_of_last_count(run.validation));
  if (first > 0) {
    run.notes.push_back(str(first, first == 1 ? " validation" : " validations", " up to step ",
                            with_commas(run.validation[first - 1].step),
                            " left out: its validation set is another one since"));
    run.validation.erase(run.validation.begin(),
                         run.validation.begin() + static_cast<ptrdiff_t>(first));
    ids.erase(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(first));
  }
  const auto unknown = std::count(ids.begin(), ids.end(), "");
  if (unknown > 0) {
    run.notes.push_back(str(unknown, " of its ", ids.size(),
                            " validations have no validation/step_N.h5: that they are of the same ",
                            "windows is known by their counted tokens alone"));
  }
  const auto known = std::find_if(ids.rbegin(), ids.rend(), [](auto& id) { return !id.empty(); });
  if (known != ids.rend()) run.validation_id = *known;
}

void check_same_validation_set(const std::vector<ComparedRun>& runs) {
  std::vector<const ComparedRun*> named, certain;
  for (const ComparedRun& run : runs) {
    if (run.validation.back().counted_tokens != runs.front().validation.back().counted_tokens) {
      refuse_different(runs.front(), run);
    }
    if (!run.validation_id.empty()) named.push_back(&run);
    if (run.window_losses) certain.push_back(&run);
  }
  for (const ComparedRun* run : named) {
    if (run->validation_id != named.front()->validation_id) refuse_different(*named.front(), *run);
  }
  if (certain.empty()) certain.push_back(&runs.front());
  for (const ComparedRun& run : runs) {
    const auto same = [&](const ComparedRun* other) {
      return settings_of(*other) == settings_of(run);
    };
    if (!run.window_losses && std::none_of(certain.begin(), certain.end(), same)) {
      refuse_unknown(run, *certain.front());
    }
  }
}

}  // namespace cplm
