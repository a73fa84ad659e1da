// cplm bench decode: time a new token behind contexts of given lengths, with a config's model and
// made-up weights and tokens.
#include <chrono>

#include "base/argument_checks.h"
#include "cli/bench_passes.h"
#include "cli/config_argument.h"
#include "cplm/base.h"
#include "cplm/generate.h"

namespace cplm {
namespace {

struct DecodeArguments {
  ConfigArgument config;
  std::vector<int64_t> contexts = {512, 4096};
  int64_t tokens = 32, batch = 1, rounds = 3;
  bool json = false;
};

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::vector<int64_t> made_up_ids(int64_t count, int64_t vocab_size, uint64_t seed) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < count; ++i) {
    ids.push_back(static_cast<int64_t>(mix64(seed + static_cast<uint64_t>(i)) %
                                       static_cast<uint64_t>(vocab_size)));
  }
  return ids;
}

DecoderOptions options_of(const DecodeArguments& arguments) {
  DecoderOptions options;
  options.sequences = arguments.batch;
  return options;
}

// Sequences of one context length, kept from round to round.
class Context {
 public:
  Context(LanguageModel& model, int64_t length, const DecodeArguments& arguments)
      : model_(model),
        arguments_(arguments),
        length_(length),
        decoder_(model, options_of(arguments)),
        last_(static_cast<size_t>(arguments.batch), 0) {
    decoder_.reserve(length + arguments.rounds * arguments.tokens);
    std::vector<NewTokens> prompts;
    for (int64_t row = 0; row < arguments.batch; ++row) {
      prompts.push_back(
          {row, made_up_ids(length, model.config().vocab_size, static_cast<uint64_t>(row) << 32), 1,
           false});
    }
    const auto start = Clock::now();
    for (const NextTokens& next : decoder_.advance(prompts)) take(next);
    prefill_s_ = seconds_since(start);
  }

  // Greedy tokens, each timed.
  void decode() {
    profile::start(device_synchronizer(model_.options().tensor.device()));
    for (int64_t i = 0; i < arguments_.tokens; ++i) {
      const auto start = Clock::now();
      std::vector<NewTokens> tokens;
      for (int64_t row = 0; row < arguments_.batch; ++row) {
        tokens.push_back({row, {last_[static_cast<size_t>(row)]}, 1, false});
      }
      for (const NextTokens& next : decoder_.advance(tokens)) take(next);
      seconds_.push_back(seconds_since(start));
      total_ += seconds_.back();
    }
    for (const auto& [name, seconds] : profile::stop().parts) parts_[name] += seconds;
  }

  BenchJson report() const {
    BenchJson report{
        {"context", length_},
        {"prefill_tokens_per_s", static_cast<double>(length_ * arguments_.batch) / prefill_s_},
        {"token_ms_median", 1000 * median_of(seconds_)},
        {"tokens_per_s", static_cast<double>(arguments_.batch) / median_of(seconds_)},
        {"cache_mib", static_cast<double>(decoder_.bytes().total()) / (1 << 20)}};
    for (const auto& [name, seconds] : parts_) report["share"][name] = seconds / total_;
    return report;
  }
  double median() const { return median_of(seconds_); }

 private:
  void take(const NextTokens& next) {
    ops::NextTokenInput input = next.input;
    input.log_space = true;
    const at::Tensor log_prob = ops::next_token_distribution(input, model_.options().ops);
    const at::Tensor ids = log_prob.argmax(1).cpu();
    for (size_t r = 0; r < next.sequences.size(); ++r) {
      last_[static_cast<size_t>(next.sequences[r])] =
          ids.const_data_ptr<int64_t>()[static_cast<int64_t>(r)];
    }
  }

  LanguageModel& model_;
  const DecodeArguments& arguments_;
  int64_t length_;
  Decoder decoder_;
  std::vector<int64_t> last_;
  double prefill_s_ = 0, total_ = 0;
  std::vector<double> seconds_;
  profile::Seconds parts_;
};

BenchJson bench_decode(const Config& config, const DecodeArguments& arguments) {
  BenchModel bench(config);
  std::vector<std::unique_ptr<Context>> contexts;
  for (const int64_t length : arguments.contexts) {
    contexts.push_back(std::make_unique<Context>(bench.model, length, arguments));
  }
  for (int64_t round = 0; round < arguments.rounds; ++round) {  // in turn: a ratio of one run
    for (const auto& context : contexts) context->decode();
  }
  BenchJson report{{"threads", bench.threads}, {"batch", arguments.batch}};
  for (const auto& context : contexts) report["contexts"].push_back(context->report());
  report["last_over_first"] = contexts.back()->median() / contexts.front()->median();
  return report;
}

}  // namespace

void add_bench_decode(CLI::App& bench) {
  auto arguments = std::make_shared<DecodeArguments>();
  CLI::App* decode = bench.add_subcommand("decode", "New tokens behind contexts of given lengths");
  add_config_argument(*decode, arguments->config);
  decode->add_option("--contexts", arguments->contexts, "Lengths, as 512,4096")
      ->delimiter(',')
      ->check(whole_from(1))
      ->capture_default_str();
  decode->add_option("--tokens", arguments->tokens, "Timed tokens of a round")
      ->check(whole_from(1))
      ->capture_default_str();
  decode->add_option("--rounds", arguments->rounds, "Turns of each context")
      ->check(whole_from(1))
      ->capture_default_str();
  decode->add_option("--batch", arguments->batch, "Sequences")
      ->check(whole_from(1))
      ->capture_default_str();
  decode->add_flag("--json", arguments->json, "JSON for programs");
  decode->callback([arguments] {
    print_report(bench_decode(arguments->config.load(), *arguments), arguments->json);
  });
}

}  // namespace cplm
