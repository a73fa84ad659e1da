// cplm bench loader: how fast one process streams batches out of shards that the system has cached.
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <random>

#include "base/argument_checks.h"
#include "cli/bench.h"
#include "cplm/base.h"
#include "cplm/data.h"

namespace cplm {
namespace {

namespace fs = std::filesystem;

struct LoaderArguments {
  std::vector<std::string> data;
  int64_t sequence_length = 2048, rows = 64, prefetch = 2, vocab_size = 49152;
  int64_t million_tokens = 64;
  bool json = false;
};

// A folder for made-up shards, gone when the bench ends.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name = (fs::temp_directory_path() / "cplm-bench-XXXXXX").string();
    CPLM_CHECK(::mkdtemp(name.data()) != nullptr, "cannot make a folder in ",
               fs::temp_directory_path().string(), "; set TMPDIR to a folder with room");
    path_ = name;
  }
  ~ScratchFolder() {
    std::error_code ignored;  // a bench has nothing to lose
    fs::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// Ids by Zipf's law, in documents of about 800 tokens: compresses about as text does.
ShardContents made_up_shard(int64_t num_tokens, int64_t vocab_size, uint64_t seed) {
  ShardContents contents;
  contents.vocab_size = vocab_size;
  contents.document_offsets = {0};
  contents.tokens.reserve(static_cast<size_t>(num_tokens));
  std::mt19937_64 random(seed);
  const double log_vocab = std::log(static_cast<double>(vocab_size));
  for (int64_t i = 1; i <= num_tokens; ++i) {
    const uint64_t word = random();
    const double unit = static_cast<double>(word >> 11) * 0x1.0p-53;
    const bool ends = word % 800 == 0 || i == num_tokens;
    const auto id = static_cast<int32_t>(std::exp(unit * log_vocab));
    contents.tokens.push_back(ends ? 0 : std::min(id, static_cast<int32_t>(vocab_size - 1)));
    if (ends) contents.document_offsets.push_back(i);
  }
  return contents;
}

void write_shards(const fs::path& folder, const LoaderArguments& arguments, int gzip_level) {
  constexpr int64_t kShards = 4;
  fs::create_directory(folder);
  for (int64_t i = 0; i < kShards; ++i) {
    ShardContents contents = made_up_shard(arguments.million_tokens * 1'000'000 / kShards,
                                           arguments.vocab_size, static_cast<uint64_t>(i));
    contents.gzip_level = gzip_level;
    write_shard(folder / str(i, ".h5"), contents);
  }
}

// One epoch of the training order, taken as fast as it comes.
BenchJson measure(const std::vector<std::string>& patterns, const LoaderArguments& arguments) {
  using Clock = std::chrono::steady_clock;
  const auto seconds_since = [](Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  const Clock::time_point opening = Clock::now();
  const WindowSet windows(patterns, arguments.sequence_length, WindowSet::ShortWindows::kDrop);
  const double open_seconds = seconds_since(opening);
  uint64_t stored_bytes = 0;
  for (const ShardInfo& shard : windows.shards()) {
    stored_bytes += fs::file_size(shard.path);
    sha256_file(shard.path);  // the system has it cached from here on
  }
  const int64_t steps = windows.size() / arguments.rows;
  if (steps == 0) {
    throw Error(str("expected at least ", arguments.rows, " windows, found ", windows.size(),
                    "; take more data or a smaller --rows"),
                ExitCode::kBadConfig);
  }
  const Clock::time_point start = Clock::now();
  BatchLoader loader(windows, {.seed = 1,
                               .global_rows = arguments.rows,
                               .last_row = arguments.rows,
                               .prefetch = arguments.prefetch});
  for (int64_t step = 0; step < steps; ++step) loader.next();
  const double seconds = seconds_since(start);
  const auto tokens = static_cast<double>(steps * arguments.rows * arguments.sequence_length);
  return {{"tokens_per_s", tokens / seconds},
          {"seconds", seconds},
          {"open_seconds", open_seconds},
          {"shards", windows.shards().size()},
          {"stored_bytes_per_token",
           static_cast<double>(stored_bytes) /
               static_cast<double>(windows.size() * arguments.sequence_length)}};
}

BenchJson bench_loader(const LoaderArguments& arguments) {
  BenchJson report{{"sequence_length", arguments.sequence_length}, {"rows", arguments.rows}};
  if (!arguments.data.empty()) {
    report["data"] = measure(arguments.data, arguments);
    return report;
  }
  const ScratchFolder folder;
  for (const int gzip_level : {0, 1}) {
    const fs::path shards = folder.path() / str("gzip", gzip_level);
    write_shards(shards, arguments, gzip_level);
    report[gzip_level == 0 ? "uncompressed" : "gzip"] =
        measure({(shards / "*.h5").string()}, arguments);
  }
  return report;
}

}  // namespace

void add_bench_loader(CLI::App& bench) {
  auto arguments = std::make_shared<LoaderArguments>();
  CLI::App* loader = bench.add_subcommand(
      "loader", "Batches out of cached shards, by one process: given ones, or made-up ones");
  loader->add_option("--data", arguments->data,
                     "Patterns of shards; without it some are written to TMPDIR, plain and gzip");
  const auto count = [&](const char* name, int64_t& value, const char* meaning) {
    loader->add_option(name, value, meaning)->check(whole_from(1))->capture_default_str();
  };
  count("--length", arguments->sequence_length, "Tokens of a sequence");
  count("--rows", arguments->rows, "Sequences of a batch");
  count("--prefetch", arguments->prefetch, "Batches read ahead");
  count("--million-tokens", arguments->million_tokens, "Size of the made-up set");
  count("--vocab", arguments->vocab_size, "Vocabulary of the made-up set");
  loader->add_flag("--json", arguments->json, "JSON for programs");
  loader->callback([arguments] { print_report(bench_loader(*arguments), arguments->json); });
}

}  // namespace cplm
