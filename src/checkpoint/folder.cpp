// Names, manifest and completeness of a checkpoint's folder.
#include "checkpoint/folder.h"

#include <algorithm>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <system_error>

#include "cplm/base.h"

namespace cplm::checkpoint {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr const char* kFormat = "cplm-checkpoint";
constexpr int64_t kFormatVersion = 1;
constexpr const char* kStepPrefix = "step_";
constexpr size_t kStepDigits = 10;

struct AsideName {
  Aside kind;
  const char* suffix;
};
constexpr AsideName kAsideNames[] = {
    {Aside::kPartial, ".partial"},
    {Aside::kReplaced, ".replaced"},
    {Aside::kRemoved, ".removed"},
};

const json& member(const json& object, const char* key, const std::string& where) {
  CPLM_CHECK(object.is_object(), where, ": expected a JSON object that has '", key, "'");
  const auto found = object.find(key);
  CPLM_CHECK(found != object.end(), where, ": '", key, "' is missing");
  return *found;
}

uint64_t whole_number(const json& object, const char* key, const std::string& where) {
  const json& value = member(object, key, where);
  CPLM_CHECK(value.is_number_unsigned() && value.get<uint64_t>() <= uint64_t{INT64_MAX}, where,
             ": '", key, "' is not a whole number");
  return value.get<uint64_t>();
}

ManifestFile parse_file(const json& value, const std::string& where) {
  ManifestFile file;
  file.size_bytes = whole_number(value, "size_bytes", where);
  const json& sha256 = member(value, "sha256", where);
  CPLM_CHECK(sha256.is_string(), where, ": 'sha256' is not a string");
  file.sha256 = sha256.get<std::string>();
  CPLM_CHECK(file.sha256.size() == 64 &&
                 file.sha256.find_first_not_of("0123456789abcdef") == std::string::npos,
             where, ": 'sha256' is not 64 hex digits");
  if (value.contains("tensors")) {
    file.tensors = static_cast<int64_t>(whole_number(value, "tensors", where));
  }
  return file;
}

Manifest parse_manifest(const std::string& text, const std::string& where) {
  const json root = json::parse(text, nullptr, /*allow_exceptions=*/false);
  CPLM_CHECK(!root.is_discarded(), where, " is not JSON");
  CPLM_CHECK(root.is_object() && root.value("format", json()) == kFormat, where,
             " is not a checkpoint's manifest: expected \"format\": \"", kFormat, "\"");
  const uint64_t version = whole_number(root, "format_version", where);
  CPLM_CHECK(version == uint64_t{kFormatVersion}, where, ": format_version is ", version,
             ", this program reads ", kFormatVersion, "; use the version that wrote it");
  Manifest manifest;
  manifest.step = static_cast<int64_t>(whole_number(root, "step", where));
  const json& files = member(root, "files", where);
  CPLM_CHECK(files.is_object(), where, ": 'files' is not a map");
  for (const auto& [name, value] : files.items()) {
    CPLM_CHECK(!name.empty() && fs::path(name).filename() == name && name != "." && name != "..",
               where, ": '", name, "' is not a plain file name");
    manifest.files.emplace(name, parse_file(value, str(where, ": file '", name, "'")));
  }
  for (const char* name : {kModelFile, kOptimizerFile, kStateFile}) {
    CPLM_CHECK(manifest.files.count(name) != 0, where, " does not list ", name);
  }
  return manifest;
}

// Nothing for a file that does not exist, also when it goes away while we look.
std::optional<std::string> text_if_there(const fs::path& path) try {
  if (type_at(path) == fs::file_type::not_found) return std::nullopt;
  return read_file(path);
} catch (const Error&) {
  if (type_at(path) == fs::file_type::not_found) return std::nullopt;
  throw;
}

// "" or how the folder differs from what its manifest says. Error when that cannot be told.
std::string problem_of_files(const fs::path& folder, const std::string& manifest_text) {
  Manifest manifest;
  try {
    manifest = parse_manifest(manifest_text, (folder / kManifestFile).string());
  } catch (const Error& error) {
    return error.what();
  }
  const auto named_step = step_of_folder(folder);
  if (named_step && *named_step != manifest.step) {
    return str(kManifestFile, " is of step ", manifest.step);
  }
  for (const auto& [name, file] : manifest.files) {
    const fs::file_type type = type_at(folder / name);
    if (type == fs::file_type::not_found) return str(name, " is missing");
    if (type != fs::file_type::regular) return str(name, " is not a file");
    std::error_code error;
    const uintmax_t size_bytes = fs::file_size(folder / name, error);
    CPLM_CHECK(!error, "cannot read ", (folder / name).string(), ": ", error.message());
    if (size_bytes != file.size_bytes) {
      return str(name, " has ", size_bytes, " bytes, expected ", file.size_bytes);
    }
  }
  return "";
}

}  // namespace

fs::path checkpoints_folder(const fs::path& run_dir) { return run_dir / "checkpoints"; }

std::string step_folder_name(int64_t step) {
  std::ostringstream name;
  name << kStepPrefix << std::setw(int{kStepDigits}) << std::setfill('0') << step;
  return name.str();
}

std::optional<int64_t> step_of_folder_name(const std::string& name) {
  const std::string prefix = kStepPrefix;
  if (name.compare(0, prefix.size(), prefix) != 0) return std::nullopt;
  const std::string digits = name.substr(prefix.size());
  if (digits.size() < kStepDigits || digits.size() > 18) return std::nullopt;
  if (digits.find_first_not_of("0123456789") != std::string::npos) return std::nullopt;
  const int64_t step = std::stoll(digits);
  if (step_folder_name(step) != name) return std::nullopt;  // more zeros than we write
  return step;
}

fs::path plain_path(const fs::path& path) {
  const fs::path plain = fs::absolute(path).lexically_normal();
  return plain.has_filename() ? plain : plain.parent_path();
}

std::optional<int64_t> step_of_folder(const fs::path& folder) {
  return step_of_folder_name(plain_path(folder).filename().string());
}

fs::path aside_path(const fs::path& checkpoints, int64_t step, Aside kind) {
  for (const AsideName& name : kAsideNames) {
    if (name.kind == kind) return checkpoints / str(".", step_folder_name(step), name.suffix);
  }
  throw Error("internal: unknown kind of folder set aside");
}

std::optional<AsideFound> parse_aside(const fs::path& path) {
  const std::string name = path.filename().string();
  if (name.empty() || name.front() != '.') return std::nullopt;
  for (const AsideName& aside : kAsideNames) {
    const std::string suffix = aside.suffix;
    if (name.size() < suffix.size() + 1 || !name.ends_with(suffix)) continue;
    const auto step = step_of_folder_name(name.substr(1, name.size() - 1 - suffix.size()));
    if (step) return AsideFound{path, *step, aside.kind};
  }
  return std::nullopt;
}

std::string manifest_text(const Manifest& manifest) {
  json files = json::object();
  for (const auto& [name, file] : manifest.files) {
    files[name] = {{"size_bytes", file.size_bytes}, {"sha256", file.sha256}};
    if (file.tensors) files[name]["tensors"] = *file.tensors;
  }
  const json root = {{"format", kFormat},
                     {"format_version", kFormatVersion},
                     {"program_version", CPLM_VERSION},
                     {"step", manifest.step},
                     {"files", files}};
  return root.dump(2) + "\n";
}

Manifest read_manifest(const fs::path& folder) {
  const fs::path path = folder / kManifestFile;
  return parse_manifest(read_file(path), path.string());
}

fs::file_type type_at(const fs::path& path) {
  std::error_code error;
  const fs::file_type type = fs::status(path, error).type();
  CPLM_CHECK(type != fs::file_type::none, "cannot read ", path.string(), ": ", error.message());
  return type;
}

Condition condition_of(const fs::path& folder, bool was_latest) try {
  Condition no_manifest{was_latest ? CheckpointState::kDamaged : CheckpointState::kUnfinished,
                        type_at(folder) == fs::file_type::directory
                            ? str(kManifestFile, " is missing")
                            : "it is not a folder"};
  const std::optional<std::string> text = text_if_there(folder / kManifestFile);
  if (!text) return no_manifest;
  const std::string problem = problem_of_files(folder, *text);
  if (problem.empty()) return {};
  return {CheckpointState::kDamaged, problem};
} catch (const Error& error) {
  return {CheckpointState::kUnreadable, error.what()};
}

std::string state_problem(const std::string& text, int64_t step) {
  const json state = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (state.is_discarded()) return "it is not JSON";
  if (!state.is_object()) return "it is not a JSON object";
  const auto found = state.find("step");
  if (found != state.end() && *found != step) {
    return str("its step is ", found->dump(), ", the manifest's ", step);
  }
  return "";
}

}  // namespace cplm::checkpoint
