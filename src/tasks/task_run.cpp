// Pieces of a measurement on disk: one JSON line each, with a key that names the measurement and
// the subject. A torn last line is one piece to make again.
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>

#include "base/appended_file.h"
#include "cplm/base.h"
#include "cplm/tasks.h"

namespace cplm {
namespace fs = std::filesystem;
namespace {

constexpr double kTellEvery = 20;  // seconds, where no terminal shows a status line

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

class TaskRun::Pieces {
 public:
  Pieces(const fs::path& folder, const std::string& task)
      : path_(folder / (task + ".pieces.jsonl")),
        lock_((make_folders(folder), folder / ("." + task + ".lock"))) {
    std::istringstream lines(fs::exists(path_) ? read_file(path_) : std::string());
    for (std::string line; std::getline(lines, line);) {
      const Json piece = Json::parse(line, nullptr, /*allow_exceptions=*/false);
      if (!piece.is_object() || !piece.contains("key") || !piece.contains("value")) continue;
      lines_.emplace(piece["key"].get<std::string>(), line);
    }
  }

  void begin(const std::string& measurement) {
    measurement_ = sha256_hex(measurement);
    used_.clear();
  }
  std::string key(const Subject& subject, const std::string& name) {
    std::string& identity = identities_[subject.name];
    if (identity.empty()) identity = subject.identity();
    return measurement_ + " " + sha256_hex(identity) + " " + name;
  }
  std::optional<Json> find(const std::string& key) {
    const auto found = lines_.find(key);
    if (found == lines_.end()) return std::nullopt;
    used_.insert(key);
    return Json::parse(found->second)["value"];
  }
  void add(const std::string& key, const Json& value) {
    const std::string line = Json{{"key", key}, {"value", value}}.dump();
    if (!file_) file_.emplace(path_);
    file_->append("\n" + line + "\n");  // a torn line before it stays one
    lines_[key] = line;
    used_.insert(key);
  }
  void forget() {
    for (const std::string& key : used_) lines_.erase(key);
    used_.clear();
    file_.reset();
    if (lines_.empty()) {
      std::error_code ignored;  // nothing counts on its being gone
      fs::remove(path_, ignored);
      lock_.remove_file();
      return;
    }
    std::string text;
    for (const auto& [key, line] : lines_) text += line + "\n";
    write_file_atomic(path_, text);
  }

 private:
  fs::path path_;
  FileLock lock_;
  std::map<std::string, std::string> lines_, identities_;
  std::set<std::string> used_;  // since begin()
  std::string measurement_;
  std::optional<AppendedFile> file_;
};

TaskRun::TaskRun() = default;
TaskRun::TaskRun(const fs::path& folder, const std::string& task)
    : pieces_(std::make_unique<Pieces>(folder, task)) {}
TaskRun::~TaskRun() = default;

void TaskRun::begin(const std::string& measurement, int64_t num_pieces) {
  if (pieces_) pieces_->begin(measurement);
  num_pieces_ = num_pieces;
  num_done_ = 0;
  last_told_ = seconds_now();
}

Json TaskRun::piece(const Subject& subject, const std::string& name,
                    const std::function<Json()>& make) {
  if (heartbeat_) heartbeat_();
  ++num_done_;
  if (!pieces_) {
    tell(subject);
    return make();
  }
  const std::string key = pieces_->key(subject, name);
  if (const std::optional<Json> kept = pieces_->find(key)) return *kept;
  if (stop_requested()) {
    throw Error("stopped; the same command goes on from the pieces that are done",
                ExitCode::kStopped);
  }
  tell(subject);
  const Json value = make();
  pieces_->add(key, value);
  return value;
}

void TaskRun::tell(const Subject& subject) {
  const std::string line = str(subject.name, ": piece ", num_done_, " of ", num_pieces_);
  log::progress(line);
  if (!log::is_terminal() && seconds_now() - last_told_ > kTellEvery) {
    last_told_ = seconds_now();
    log::info(line);
  }
}

void TaskRun::forget() {
  log::progress("");
  if (pieces_) pieces_->forget();
}

}  // namespace cplm
