// Measurements of trained models beside each other: what `cplm eval TASK CHECKPOINT...` and
// `validation.tasks` run. A task takes its arguments from a command line, measures piece by piece,
// and tells what it found as JSON, CSV and a table.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cplm/config.h"
#include "cplm/model.h"

namespace CLI {
class App;
}

namespace cplm {

using Json = nlohmann::ordered_json;

// One model under measurement.
struct Subject {
  std::string name;                 // in tables and pictures; no two alike
  std::string path;                 // the CHECKPOINT as the user named it
  Config config;                    // as the model computes, with the command's changes
  std::filesystem::path tokenizer;  // tokenizer.json; empty: none
  int64_t step = 0;
  // Of weights, config and arithmetic: equal identity, equal numbers. Asked for when pieces are
  // kept; reads the weights' file.
  std::function<std::string()> identity;
  // Loads it. A task holds one model at a time. Not there for a config alone (needs_weights()).
  std::function<std::shared_ptr<LanguageModel>()> open;
};

// A measurement under way: keeps its finished pieces, so that a kill costs at most one of them, and
// tells how far it is.
class TaskRun {
 public:
  TaskRun();  // keeps nothing
  // Pieces are kept in FOLDER/TASK.pieces.jsonl, which one process at a time may hold. Error(
  // kStopped) between two pieces when a stop is requested.
  TaskRun(const std::filesystem::path& folder, const std::string& task);
  ~TaskRun();
  TaskRun(const TaskRun&) = delete;
  TaskRun& operator=(const TaskRun&) = delete;

  // All that decides the numbers besides subject and piece: options, hashes of the data. Pieces of
  // other measurements are left as they are. num_pieces: of all subjects, for the progress.
  void begin(const std::string& measurement, int64_t num_pieces);
  // The value of a piece as kept, else of make(), which is kept before this returns. Numbers that
  // are not finite go through json_number().
  Json piece(const Subject& subject, const std::string& name, const std::function<Json()>& make);
  // The report is written: forgets the pieces that it used, and the file when nothing is left.
  void forget();
  // Called between pieces (a peer's watch of a training run, for instance).
  void set_heartbeat(std::function<void()> heartbeat) { heartbeat_ = std::move(heartbeat); }
  bool keeps_pieces() const { return pieces_ != nullptr; }

 private:
  class Pieces;
  void tell(const Subject& subject);
  std::unique_ptr<Pieces> pieces_;
  std::function<void()> heartbeat_;
  int64_t num_pieces_ = 0, num_done_ = 0;
  double last_told_ = 0;
};

// The few numbers of a subject that stand for the whole: a training run logs them.
using TaskSummary = std::vector<std::pair<std::string, double>>;

// One more file of a result: its path in the folder, and what it holds, made when it is written.
struct TaskFile {
  std::string path;
  std::function<std::string()> contents;
};

struct TaskResult {
  std::string json;                    // "format": "cplm-eval-TASK-1"
  std::string csv;                     // one row a number's place
  std::string table;                   // for a console
  std::vector<TaskSummary> summaries;  // by subject
  std::vector<TaskFile> files = {};
};

class Task {
 public:
  virtual ~Task() = default;
  virtual void add_arguments(CLI::App& command) = 0;
  // False: subjects may be configs without weights.
  virtual bool needs_weights() const { return true; }
  // What can be told before anything is measured; run() finds the same. Errors as the program's:
  // kBadConfig for arguments that do not fit, kBadData for the data.
  virtual void check(const std::vector<Subject>& subjects) const = 0;
  virtual TaskResult run(const std::vector<Subject>& subjects, TaskRun& run) = 0;
};

struct TaskKind {
  const char* name;     // as on the command line
  const char* summary;  // one line
  const char* notes;    // what is measured, and examples, for --help
  std::unique_ptr<Task> (*make)();
};
const std::vector<TaskKind>& task_kinds();
// "recall --pairs 16": a task with its arguments, as `cplm eval` takes them. Error(kBadConfig).
std::unique_ptr<Task> parse_task(const std::string& line);

// Writes FOLDER/TASK.json, .csv, .txt (the table) and the result's other files, and draws TASK.png
// and .svg from the JSON. Error(kFailed) when only the pictures could not be drawn.
void write_task_result(const TaskResult& result, const std::string& task,
                       const std::filesystem::path& folder);

}  // namespace cplm
