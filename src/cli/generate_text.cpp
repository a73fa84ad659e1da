// See generate_text.h.
#include "cli/generate_text.h"

#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/standard_output.h"
#include "cplm/base.h"
#include "cplm/tokenizer.h"
#include "cplm/train.h"

namespace cplm {
namespace {

constexpr size_t kPreceding = 8;  // tokens that a stream's decoder wants to know

void print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  flush_standard_output();
}

const char* reason_name(StopReason reason) {
  switch (reason) {
    case StopReason::kStopId:
      return "eos";
    case StopReason::kCaller:
      return "stop";
    case StopReason::kLength:
      break;
  }
  return "length";
}

class Writer {
 public:
  Writer(LanguageModel& model, const SavedModel& saved, const TextOptions& text,
         const GenerateOptions& options)
      : model_(model), saved_(saved), text_(text), options_(options) {
    if (!saved.tokenizer.empty())
      tokenizer_.emplace(saved.tokenizer, TokenizerOptions{.eos = text.eos});
    if (tokenizer_ && tokenizer_->eos_id()) {
      options_.stop_ids.push_back(*tokenizer_->eos_id());
      if (saved.config.data.intra_document_mask) {
        options_.decoder.document_end = *tokenizer_->eos_id();
      }
    }
    if (tokenizer_ && tokenizer_->vocab_size() > vocab_size()) {
      log::warn(str(saved.tokenizer.string(), " has ", tokenizer_->vocab_size(),
                    " tokens, the model ", vocab_size(), ": is it this model's? A text that needs ",
                    "an id from ", vocab_size(), " on is refused"));
    }
    if (!tokenizer_ && !text.stops.empty()) refuse("--stop");
    if (!tokenizer_ && text.chat) refuse("--chat");
    if (!tokenizer_ && !text.eos.empty()) refuse("--eos");
    if (!text.explain.empty()) check_explain();
    for (const Prompt& prompt : text.prompts) prompts_.push_back(ids_of(prompt));
    if (prompts_.empty()) prompts_.push_back({document_start()});
  }

  void run() {
    const auto batch = static_cast<size_t>(text_.batch);
    for (size_t begin = 0; begin < prompts_.size(); begin += batch) {
      write_batch(begin, std::min(prompts_.size(), begin + batch));
    }
    if (!text_.explain.empty()) explain();
    report();
  }

 private:
  int64_t vocab_size() const { return model_.config().vocab_size; }

  [[noreturn]] void refuse(const char* option) const {
    throw Error(
        str(option, ": needs the run's tokenizer.json, and there is none beside ",
            saved_.folder.string(), "; give the prompt by --ids, or copy the tokenizer ", "there"),
        ExitCode::kBadConfig);
  }

  void check_explain() const {
    const std::string suffix = std::filesystem::path(text_.explain).extension().string();
    if (suffix != ".html" && suffix != ".json") {
      throw Error(str("--explain: expected FILE.html or FILE.json, found ", text_.explain),
                  ExitCode::kBadConfig);
    }
    const std::filesystem::path path = expand_tilde(text_.explain), folder = path.parent_path();
    if (std::filesystem::is_directory(path) ||
        (!folder.empty() && !std::filesystem::is_directory(folder))) {
      throw Error(str("--explain: expected a file in a folder that exists, found ", path.string()),
                  ExitCode::kBadConfig);
    }
    if (text_.prompts.size() > 1) {
      throw Error(str("--explain: expected one prompt, found ", text_.prompts.size()),
                  ExitCode::kBadConfig);
    }
  }

  int64_t document_start() const {
    if (tokenizer_ && tokenizer_->eos_id()) return *tokenizer_->eos_id();
    throw Error(
        "expected a prompt: without a tokenizer.json and its end-of-text token no document "
        "can be begun; give --ids",
        ExitCode::kBadConfig);
  }

  std::vector<int64_t> ids_of(const Prompt& prompt) {
    std::vector<int64_t> ids = prompt.ids;
    if (ids.empty()) {
      if (!tokenizer_) refuse(prompt.origin.c_str());
      ids = encode_prompt(prompt, [&](const std::string& written) {
        if (text_.chat) return tokenizer_->encode_chat(messages_of(written));
        return tokenizer_->encode(written,
                                  text_.special ? SpecialText::kAsToken : SpecialText::kAsText);
      });
      if (ids.empty()) ids.push_back(document_start());
    }
    check_prompt_ids(ids, prompt.origin, vocab_size());
    return ids;
  }

  // A conversation as JSON, or the text of one user's message.
  static std::string messages_of(const std::string& text) {
    const nlohmann::json parsed = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (parsed.is_array() || (parsed.is_object() && parsed.contains("messages"))) return text;
    if (parsed.is_object() || text.starts_with("[{") || text.starts_with("{\"")) {
      throw Error(str("expected a message, or a conversation as JSON: [{\"role\": \"user\", "
                      "\"content\": ...}], alone or as \"messages\"; found ",
                      parsed.is_object() ? "an object without \"messages\"" : "damaged JSON"),
                  ExitCode::kBadData);
    }
    return nlohmann::json::array({{{"role", "user"}, {"content", text}}}).dump();
  }

  // One text while it is written.
  struct Output {
    std::string text;
    StopText stop;
  };

  void write_batch(size_t begin, size_t end) {
    std::vector<Output> outputs(end - begin, Output{"", StopText(text_.stops)});
    const auto show = text_.special ? SpecialTokens::kShow : SpecialTokens::kSkip;
    const bool streams = prompts_.size() == 1 && !text_.json;
    for (size_t i = 0; tokenizer_ && i < outputs.size(); ++i) {
      const std::vector<int64_t>& ids = prompts_[begin + i];
      const size_t known = std::min(kPreceding, ids.size());
      tokenizer_->begin_stream(static_cast<int64_t>(i),
                               {ids.end() - static_cast<int64_t>(known), ids.end()}, show);
    }
    const auto add = [&](Output& output, const std::string& text) {
      output.text += text;
      if (streams) print(text);
    };
    GenerateOptions options = options_;
    options.first_prompt = static_cast<int64_t>(begin);
    const std::vector<std::vector<int64_t>> prompts(prompts_.begin() + static_cast<int64_t>(begin),
                                                    prompts_.begin() + static_cast<int64_t>(end));
    const Generated out = generate(model_, prompts, options, [&](const NewToken& token) {
      Output& output = outputs[token.prompt];
      if (!tokenizer_) {
        add(output, str(output.text.empty() ? "" : ",", token.id));
        return true;
      }
      if (token.id >= tokenizer_->vocab_size()) ++without_text_;
      add(output,
          output.stop.add(tokenizer_->step_stream(static_cast<int64_t>(token.prompt), token.id)));
      return !output.stop.found();
    });
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (tokenizer_) {
        const std::string rest = tokenizer_->end_stream(static_cast<int64_t>(i));
        add(outputs[i], outputs[i].stop.add(rest) + outputs[i].stop.rest());
      }
      finish(begin + i, outputs[i].text, out.texts[i], streams);
    }
    if (begin == 0) first_ = out.texts.front().ids;
    add_counts(out.counts);
  }

  void finish(size_t index, const std::string& text, const GeneratedText& generated,
              bool streamed) const {
    if (text_.json) {
      const nlohmann::ordered_json line = {
          {"prompt", text_.prompts.empty() ? "" : text_.prompts[index].text},
          {"prompt_ids", prompts_[index]},
          {"text", tokenizer_ ? nlohmann::ordered_json(text) : nullptr},
          {"ids", generated.ids},
          {"log_probs", generated.log_probs},
          {"stop", reason_name(generated.reason)}};
      print(line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
      return;
    }
    if (streamed) return print("\n");
    print(str("==> ", index + 1, " <==\n", text, "\n"));
  }

  void add_counts(const GenerateCounts& counts) {
    counts_.prompt_tokens += counts.prompt_tokens;
    counts_.new_tokens += counts.new_tokens;
    counts_.drafted += counts.drafted;
    counts_.accepted += counts.accepted;
    counts_.passes += counts.passes;
    counts_.prefill_s += counts.prefill_s;
    counts_.decode_s += counts.decode_s;
    if (counts.caches.total() > counts_.caches.total()) counts_.caches = counts.caches;
  }

  void explain() {
    std::vector<int64_t> ids = prompts_.front();
    ids.insert(ids.end(), first_.begin(), first_.end());
    ExplainOptions options;
    options.name = saved_.config.run.name;
    options.backbone = saved_.config.model.backbone;
    options.step = saved_.step;
    options.prompt_tokens = static_cast<int64_t>(prompts_.front().size());
    options.mode = options_.mode;
    options.mode_changes = options_.mode_changes;
    options.decoder = options_.decoder;
    const std::string json =
        explain_json(model_, ids, options, [&](const std::vector<int64_t>& of) {
          if (tokenizer_) return tokenizer_->token_texts(of);
          std::vector<std::string> texts;
          texts.reserve(of.size());
          for (const int64_t id : of) texts.push_back(str(" ", id));
          return texts;
        });
    const std::filesystem::path path = expand_tilde(text_.explain);
    write_file_atomic(path, path.extension() == ".json" ? json : explain_page(json));
    log::info(str("explained: ", path.string()));
  }

  void report() const {
    const auto rate = [](int64_t tokens, double seconds) {
      char text[64];
      std::snprintf(text, sizeof text, " in %.2f s (%.1f a second)", seconds,
                    static_cast<double>(tokens) / std::max(seconds, 1e-9));
      return with_commas(tokens) + text;
    };
    const auto mib = [](double bytes) {
      char text[32];
      std::snprintf(text, sizeof text, "%.1f MiB", bytes / (1 << 20));
      return std::string(text);
    };
    // The first new token of each text comes with its prompt.
    const int64_t decoded = counts_.new_tokens - static_cast<int64_t>(prompts_.size());
    log::info(str("prompt tokens: ", rate(counts_.prompt_tokens, counts_.prefill_s),
                  "; new tokens: ", rate(std::max<int64_t>(decoded, 0), counts_.decode_s)));
    if (options_.speculation == Speculation::kCopy) {
      log::info(str("drafted ", counts_.drafted, " tokens, accepted ", counts_.accepted, ", in ",
                    counts_.passes, " passes"));
    }
    if (without_text_ > 0) {  // a vocabulary that is only padded has no weight on such ids
      log::warn(str(with_commas(without_text_), " new tokens have no text: ",
                    saved_.tokenizer.string(), " has ", tokenizer_->vocab_size(),
                    " tokens, the model ", vocab_size(), "; is it this model's?"));
    }
    const at::Tensor& weights = model_.parameters().flat_value();
    const std::string states =
        counts_.caches.states > 0
            ? str(", recurrent states ", mib(static_cast<double>(counts_.caches.states)))
            : "";
    log::info(
        str("memory: weights ",
            mib(static_cast<double>(weights.numel()) * static_cast<double>(weights.element_size())),
            ", keys and values ", mib(static_cast<double>(counts_.caches.keys_and_values)), states,
            ", copy keys ", mib(static_cast<double>(counts_.caches.copy_keys)), ", copy ids ",
            mib(static_cast<double>(counts_.caches.copy_ids)), ", peak ",
            mib(peak_memory_mb(weights.device()) * (1 << 20))));
  }

  LanguageModel& model_;
  const SavedModel& saved_;
  const TextOptions& text_;
  GenerateOptions options_;
  std::optional<Tokenizer> tokenizer_;
  std::vector<std::vector<int64_t>> prompts_;
  std::vector<int64_t> first_;  // new tokens of the first text
  GenerateCounts counts_;
  int64_t without_text_ = 0;  // new tokens that the tokenizer does not have
};

}  // namespace

void write_texts(LanguageModel& model, const SavedModel& saved, const TextOptions& text,
                 const GenerateOptions& options) {
  Writer(model, saved, text, options).run();
}

}  // namespace cplm
