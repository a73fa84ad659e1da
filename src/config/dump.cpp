// Config -> text: the resolved YAML, the flat list by which two configs are compared, and the
// reference table. What is written reads back to the same values in YAML 1.1 and 1.2.
#include <algorithm>

#include "config/types.h"
#include "config/utf8.h"
#include "cplm/config_changes.h"

namespace cplm {
namespace {

// Double quotes always: then no text can look like a number, a boolean or null.
std::string yaml_quoted(const std::string& text) {
  std::string out = "\"";
  for (size_t i = 0; i < text.size();) {
    const Utf8Char next = read_utf8(std::string_view(text).substr(i));
    CPLM_CHECK(next.size_bytes > 0, "a config's text is not UTF-8: ", text);
    const uint32_t c = next.code_point;
    // Raw, these end a line or are refused by one of the two YAML versions.
    const bool escaped = c < 0x20 || (c >= 0x7f && c <= 0xa0) || c == 0x2028 || c == 0x2029 ||
                         c == 0xfeff || c == 0xfffe || c == 0xffff;
    if (escaped) {
      constexpr char kHex[] = "0123456789abcdef";
      out += {'\\', 'u', kHex[c >> 12 & 15], kHex[c >> 8 & 15], kHex[c >> 4 & 15], kHex[c & 15]};
    } else {
      if (c == '"' || c == '\\') out += '\\';
      out.append(text, i, next.size_bytes);
    }
    i += next.size_bytes;
  }
  return out + "\"";
}

template <class Value>
std::string value_text(const Value& value);

template <HasFields Struct>
std::string flow_map(const Struct& value) {
  std::vector<std::string> parts;
  for_each_field<Struct>([&](const auto& field) {
    parts.push_back(str(field.key, ": ", value_text(value.*field.member)));
  });
  return "{" + join(parts, ", ") + "}";
}

template <class Value>
std::string value_text(const Value& value) {
  if constexpr (IsOptional<Value>::value) {
    return value ? value_text(*value) : "null";
  } else if constexpr (IsVector<Value>::value) {
    std::vector<std::string> parts;
    parts.reserve(value.size());
    for (const auto& item : value) parts.push_back(value_text(item));
    return "[" + join(parts, ", ") + "]";
  } else if constexpr (std::is_same_v<Value, DataSource>) {
    return value.weight ? flow_map(value) : yaml_quoted(value.path);
  } else if constexpr (HasFields<Value>) {
    return flow_map(value);
  } else if constexpr (std::is_enum_v<Value>) {
    return name_of(value);
  } else if constexpr (std::is_same_v<Value, bool>) {
    return value ? "true" : "false";
  } else if constexpr (std::is_same_v<Value, double>) {
    return format_double(value);
  } else if constexpr (std::is_same_v<Value, std::string>) {
    return yaml_quoted(value);
  } else {
    return std::to_string(value);
  }
}

template <class Struct, class Value>
std::string field_text(const Field<Struct, Value>& field, const Value& value) {
  if constexpr (std::is_same_v<Value, std::string>) {
    if (*field.rule.choices != '\0') return value;  // one of a few plain words, or a count
  }
  return value_text(value);
}

// backbone and layer_types exclude each other, and total_tokens and steps too: only what was
// given is written, so that a file which includes the resolved config can still choose.
bool is_left_out(const Config& config, const std::string& key) {
  if (key == "model.backbone") return config.model.backbone.empty();
  if (key == "model.layer_types") return !config.model.backbone.empty();
  if (key == "train.total_tokens") return !config.train.total_tokens;
  if (key == "train.steps") return !config.train.steps;
  return false;
}

// What a section's rule says of all its fields.
struct ResumeRule {
  bool fixed = false, same_numbers = false;
};

// Calls visit(section, key, value, rule) for every section and value, in the order of the lists.
template <HasFields Struct, class Visit>
void walk(const Struct& value, const std::string& section, ResumeRule above, Visit&& visit) {
  for_each_field<Struct>([&]<class Value>(const Field<Struct, Value>& field) {
    const ResumeRule rule{above.fixed || field.rule.fixed_on_resume,
                          above.same_numbers || field.rule.same_numbers};
    visit(section, field, value.*field.member, rule);
    if constexpr (HasFields<Value>) {
      walk(value.*field.member, section + field.key + ".", rule, visit);
    }
  });
}

}  // namespace

std::string dump_config(const Config& config) {
  std::string out = "# Resolved config, written by cplm " CPLM_VERSION "\n";
  walk(config, "", {},
       [&]<class Value>(const std::string& section, const auto& field, const Value& value,
                        ResumeRule) {
         if (is_left_out(config, section + field.key)) return;
         const auto depth = std::count(section.begin(), section.end(), '.');
         out += std::string(static_cast<size_t>(2 * depth), ' ') + field.key + ":";
         if constexpr (!HasFields<Value>) out += " " + field_text(field, value);
         out += "\n";
       });
  return out;
}

std::map<std::string, std::string> flatten_config(const Config& config) {
  std::map<std::string, std::string> flat;
  walk(config, "", {},
       [&]<class Value>(const std::string& section, const auto& field, const Value& value,
                        ResumeRule) {
         const std::string key = section + field.key;
         if constexpr (!HasFields<Value>) {
           if (!is_left_out(config, key)) flat[key] = field_text(field, value);
         }
       });
  return flat;
}

std::vector<ConfigChange> compare_configs(const Config& checkpoint, const Config& now) {
  const std::map<std::string, std::string> before = flatten_config(checkpoint);
  const std::map<std::string, std::string> after = flatten_config(now);
  const auto text_in = [](const auto& flat, const std::string& key) {
    const auto found = flat.find(key);
    return found == flat.end() ? std::string(kNotGiven) : found->second;
  };
  std::vector<ConfigChange> changes;
  walk(now, "", {},
       [&]<class Value>(const std::string& section, const auto& field, const Value&,
                        ResumeRule rule) {
         if constexpr (!HasFields<Value>) {
           const std::string key = section + field.key;
           ConfigChange change{key, text_in(before, key), text_in(after, key), !rule.fixed};
           if (change.before != change.now) changes.push_back(std::move(change));
         }
       });
  return changes;
}

std::string text_of(const ConfigChange& change) {
  return str(change.key, ": ", change.before, " -> ", change.now);
}

bool changes_numbers(const std::string& key) {
  if (key == "train.init_from") return false;  // a run that goes on does not read it
  bool changes = true;
  walk(Config(), "", {},
       [&]<class Value>(const std::string& section, const auto& field, const Value&,
                        ResumeRule rule) {
         if (section + field.key == key) changes = !rule.same_numbers;
       });
  return changes;
}

std::string config_reference() {
  std::string out =
      "| key | value | default | meaning |\n"
      "|---|---|---|---|\n";
  walk(Config(), "", {},
       [&]<class Value>(const std::string& section, const auto& field, const Value& value,
                        ResumeRule) {
         if constexpr (!HasFields<Value>) {
           const std::string unit = *field.unit != '\0' ? str(", ", field.unit) : "";
           const std::string fallback =
               field.rule.required ? "required" : "`" + field_text(field, value) + "`";
           out += str("| `", section, field.key, "` | ", expected_of<Value>(field.rule), unit,
                      " | ", fallback, " | ", field.meaning, " |\n");
         }
       });
  return out;
}

}  // namespace cplm
