// load_config and parse_config: files with their includes first, then --set arguments, then the
// rules that span several keys.
#include <algorithm>
#include <cmath>

#include "config/node.h"
#include "config/read.h"
#include "config/validate.h"
#include "cplm/base.h"
#include "cplm/config.h"

namespace cplm {
namespace fs = std::filesystem;
namespace {

constexpr int kMaxFiles = 1000;  // files that include each other twice grow without bound

// A device or a huge file would fill the memory before any limit of the parser.
std::string read_config_file(const fs::path& path) {
  std::error_code ignored;  // read_file reports what is wrong with the path
  const fs::file_status status = fs::status(path, ignored);
  const bool regular = fs::is_regular_file(status);
  if (fs::is_character_file(status) || fs::is_block_file(status)) {
    throw Error(str("cannot read ", path.string(), ": it is a device"));
  }
  if (regular && fs::file_size(path, ignored) > kMaxConfigBytes) {
    throw Error(str("cannot read ", path.string(), ": expected a config of at most ",
                    kMaxConfigBytes, " bytes, found ", fs::file_size(path, ignored)));
  }
  return read_file(path);
}

// Reads one file after those it includes, so that its own values win.
class FileLoader {
 public:
  FileLoader(Config& config, Places& places) : config_(config), places_(places) {}

  void load_text(const std::string& yaml, const std::string& origin, const fs::path& folder) {
    Node root = parse_yaml(yaml, origin);
    if (root.kind == Node::Kind::kNull)
      fail_at(root.place, "expected a config, found an empty file");
    places_.set("", root.place);
    std::erase_if(root.entries, [&](const Entry& entry) {
      if (entry.key != "include") return false;
      include(entry.value, folder);
      return true;
    });
    places_.set("", root.place);  // an include has put its own there
    apply_tree(root, config_, places_);
  }

  void load_file(const fs::path& path, const std::string& contents) {
    chain_.push_back(fs::weakly_canonical(path));
    load_text(contents, path.string(), path.parent_path());
    chain_.pop_back();
  }

 private:
  void include(const Node& value, const fs::path& folder) {
    const bool is_list = value.kind == Node::Kind::kList;
    const std::vector<Node> files = is_list ? value.items : std::vector<Node>{value};
    for (const Node& file : files) {
      if (file.kind != Node::Kind::kScalar || file.text.empty()) {
        fail_at(file.place,
                str("include: expected a file or a list of files, found ", describe(file)));
      }
      if (chain_.empty()) {
        fail_at(file.place, "include: expected a whole config, since this text is not a file");
      }
      include_file(file, folder / expand_tilde(file.text));
    }
  }

  void include_file(const Node& node, const fs::path& path) {
    if (++num_files_ > kMaxFiles) {
      fail_at(node.place, str("include: expected at most ", kMaxFiles, " files, found more"));
    }
    const fs::path canonical = fs::weakly_canonical(path);
    const auto first = std::find(chain_.begin(), chain_.end(), canonical);
    if (first != chain_.end()) {
      std::vector<std::string> names;
      for (auto file = first; file != chain_.end(); ++file) names.push_back(file->filename());
      names.push_back(canonical.filename());
      fail_at(node.place, str("include: the files include each other: ", join(names, " -> ")));
    }
    std::string contents;
    try {
      contents = read_config_file(path);
    } catch (const Error& error) {
      fail_at(node.place, str("include: ", error.what()));
    }
    load_file(path, contents);
  }

  Config& config_;
  Places& places_;
  std::vector<fs::path> chain_;
  int num_files_ = 0;
};

// "model.copy.rope=true" -> the tree {model: {copy: {rope: true}}}.
Node override_tree(const std::string& argument) {
  const std::string shown = quoted_for_message(argument);
  const std::string origin = "--set " + shown.substr(1, shown.size() - 2);
  Place place{std::make_shared<const std::string>(origin), 0};
  const size_t equals = argument.find('=');
  if (equals == std::string::npos || equals == 0) {
    fail_at(place, "expected key.path=value, for example train.steps=100");
  }
  if (argument.substr(0, equals) == "include") fail_at(place, "include: only a file can include");

  Node node = parse_yaml(std::string_view(argument).substr(equals + 1), origin, false);
  std::string path = argument.substr(0, equals);
  while (true) {
    const size_t dot = path.rfind('.');
    Node section = make_node(Node::Kind::kMap, place);
    section.entries.push_back({path.substr(dot + 1), place, std::move(node)});  // npos + 1 is 0
    node = std::move(section);
    if (dot == std::string::npos) return node;
    path.resize(dot);
  }
}

void finish(const std::vector<std::string>& overrides, Config& config, Places& places) {
  for (const std::string& argument : overrides) {
    apply_tree(override_tree(argument), config, places);
  }
  validate(config, places);
}

}  // namespace

Config load_config(const fs::path& path, const std::vector<std::string>& overrides) {
  std::string contents;
  try {
    contents = read_config_file(path);
  } catch (const Error& error) {
    throw Error(error.what(), ExitCode::kBadConfig);
  }
  Config config;
  Places places;
  FileLoader(config, places).load_file(path, contents);
  finish(overrides, config, places);
  return config;
}

Config parse_config(const std::string& yaml, const std::string& origin,
                    const std::vector<std::string>& overrides) {
  Config config;
  Places places;
  FileLoader(config, places).load_text(yaml, origin, "");
  finish(overrides, config, places);
  return config;
}

int64_t ScheduleConfig::decay_steps(int64_t total_steps) const {
  if (name != ScheduleKind::kWsd) return 0;
  return std::llround(decay_fraction * static_cast<double>(total_steps));
}

bool ModelConfig::has_layer(LayerKind kind) const {
  return std::find(layer_types.begin(), layer_types.end(), kind) != layer_types.end();
}

int64_t Config::total_steps() const {
  if (train.steps) return *train.steps;
  const int64_t tokens = train.total_tokens.value_or(0), batch = train.batch_tokens;
  CPLM_CHECK(tokens > 0 && batch > 0,
             "the length of a run needs train.steps, or train.total_tokens and train.batch_tokens");
  return (tokens - 1) / batch + 1;
}

}  // namespace cplm
