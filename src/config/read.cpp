// The typed half of reading: one overload for each kind of value, driven by the field lists.
#include "config/read.h"

#include <algorithm>

#include "config/scalar.h"
#include "config/types.h"

namespace cplm {
namespace {

std::string joined_key(const std::string& section, const std::string& key) {
  return section.empty() ? key : section + "." + key;
}

template <HasFields Struct>
void collect_keys(const std::string& section, std::vector<std::string>& out) {
  for_each_field<Struct>([&]<class Value>(const Field<Struct, Value>& field) {
    const std::string key = joined_key(section, field.key);
    out.push_back(key);
    if constexpr (HasFields<Value>) collect_keys<Value>(key, out);
    if constexpr (std::is_same_v<Value, std::optional<RopeScalingConfig>>) {
      collect_keys<RopeScalingConfig>(key, out);
    }
  });
}

// The known key that was most likely meant: a sibling, or the same word in another section.
std::string suggestion(const std::string& section, const std::string& key,
                       const std::vector<std::string>& siblings) {
  const std::string near = nearest_name(key, siblings);
  if (!near.empty()) return str("did you mean ", joined_key(section, near), "?");
  for (const std::string& known : all_keys()) {
    if (known.ends_with("." + key)) return str("did you mean ", known, "?");
  }
  return str("known here: ", join(siblings, ", "));
}

[[noreturn]] void fail_unknown(const Entry& entry, const std::string& section,
                               const std::vector<std::string>& siblings) {
  const std::string shown = quoted_for_message(entry.key);
  const std::string name = joined_key(section, shown.substr(1, shown.size() - 2));
  fail_at(entry.place, str(name, ": unknown key; ", suggestion(section, entry.key, siblings)));
}

class Reader {
 public:
  explicit Reader(Places& places) : places_(places) {}

  template <HasFields Struct>
  void read_section(const Node& node, const std::string& section, Struct& out) {
    if (node.kind == Node::Kind::kNull) return;  // an empty section changes nothing
    if (node.kind != Node::Kind::kMap) {
      const std::string key = section.empty() ? "a config" : section;
      fail_value(node, {key, "a map of keys"});
    }
    for (const Entry& entry : node.entries) {
      bool known = false;
      std::vector<std::string> siblings;
      for_each_field<Struct>([&]<class Value>(const Field<Struct, Value>& field) {
        siblings.emplace_back(field.key);
        if (entry.key != field.key) return;
        known = true;
        const std::string key = joined_key(section, field.key);
        places_.set(key, entry.place);
        read_field(entry.value, key, field.rule, out.*field.member);
      });
      if (!known) fail_unknown(entry, section, siblings);
    }
  }

 private:
  template <class Value>
  void read_field(const Node& node, const std::string& key, const Rule& rule, Value& out) {
    if (node.kind == Node::Kind::kNull && (rule.may_be_null || IsOptional<Value>::value)) {
      out = Value();
      places_.forget(key);
    } else {
      read(node, key, rule, out);
    }
  }

  template <class Value>
  requires std::is_arithmetic_v<Value>
  void read(const Node& node, const std::string& key, const Rule& rule, Value& out) {
    const Wanted wanted{key, expected_of<Value>(rule)};
    if constexpr (std::is_same_v<Value, bool>) {
      out = boolean_of(node, wanted);
    } else {
      if constexpr (std::is_same_v<Value, double>) out = number_of(node, wanted);
      if constexpr (std::is_same_v<Value, int64_t>) out = integer_of(node, wanted);
      if constexpr (std::is_same_v<Value, uint64_t>) out = unsigned_of(node, wanted);
      const auto value = static_cast<double>(out);
      const bool low = rule.above_min ? value <= rule.min : value < rule.min;
      const bool high = rule.below_max ? value >= rule.max : value > rule.max;
      if (low || high) fail_value(node, wanted);
    }
  }

  void read(const Node& node, const std::string& key, const Rule& rule, std::string& out) {
    const Wanted wanted{key, expected_of<std::string>(rule)};
    out = text_of(node, wanted);
    if (*rule.choices == '\0' || (rule.or_count && is_count(out))) return;
    check_choice(node, wanted, split_choices(rule.choices));
  }

  template <class Enum>
  requires std::is_enum_v<Enum>
  void read(const Node& node, const std::string& key, const Rule& rule, Enum& out) {
    const Wanted wanted{key, expected_of<Enum>(rule)};
    if (node.kind != Node::Kind::kScalar) fail_value(node, wanted);
    check_choice(node, wanted, enum_words<Enum>());
    for (const auto& entry : EnumNames<Enum>::list) {
      if (node.text == entry.name) out = entry.value;
    }
  }

  static bool is_count(const std::string& text) {
    constexpr size_t kMostDigits = 9;
    return !text.empty() && text.size() <= kMostDigits && text[0] != '0' &&
           text.find_first_not_of("0123456789") == std::string::npos;
  }

  static void check_choice(const Node& node, const Wanted& wanted,
                           const std::vector<std::string>& words) {
    if (std::find(words.begin(), words.end(), node.text) != words.end()) return;
    const std::string near = nearest_name(node.text, words);
    fail_value(node, wanted, near.empty() ? "" : "did you mean " + near + "?");
  }

  template <class Item>
  void read(const Node& node, const std::string& key, const Rule& rule, std::vector<Item>& out) {
    const Wanted wanted{key, expected_of<std::vector<Item>>(rule)};
    if (node.kind != Node::Kind::kList) {
      fail_value(node, wanted,
                 node.kind == Node::Kind::kScalar ? "write it in brackets: [...]" : "");
    }
    if (rule.length > 0 && node.items.size() != rule.length) {
      fail_at(node.place,
              str(key, ": expected ", wanted.expected, ", found ", node.items.size(), " values"));
    }
    if (node.items.empty() && (rule.required || rule.may_be_null)) fail_value(node, wanted);
    out.assign(node.items.size(), Item());
    for (size_t i = 0; i < node.items.size(); ++i) {
      read_item(node.items[i], str(key, "[", i, "]"), rule, out[i]);
    }
  }

  template <class Item>
  void read_item(const Node& node, const std::string& key, const Rule& rule, Item& out) {
    read(node, key, rule, out);
    if constexpr (std::is_same_v<Item, std::string>) {
      if (out.empty()) fail_value(node, {key, "text that is not empty"});
    }
  }

  // A training source: a glob alone, or {path, weight}.
  void read_item(const Node& node, const std::string& key, const Rule&, DataSource& out) {
    if (node.kind == Node::Kind::kMap) {
      read_section(node, key, out);
      if (!places_.given(key + ".path"))
        fail_at(node.place, key + ".path: missing; name the shards");
      places_.forget(key);  // the next list must not find this one's keys
    } else {
      out.path = text_of(node, {key, "a glob or a map {path, weight}"});
    }
    if (out.path.empty()) fail_value(node, {key, "a glob that is not empty"});
  }

  template <class Inner>
  void read(const Node& node, const std::string& key, const Rule& rule, std::optional<Inner>& out) {
    Inner value = out.value_or(Inner());
    read(node, key, rule, value);
    out = value;
  }

  template <HasFields Struct>
  void read(const Node& node, const std::string& key, const Rule&, Struct& out) {
    read_section(node, key, out);
  }

  Places& places_;
};

template <HasFields Struct>
void collect_missing(const std::string& section, const Places& places,
                     std::vector<std::string>& out) {
  for_each_field<Struct>([&]<class Value>(const Field<Struct, Value>& field) {
    const std::string key = joined_key(section, field.key);
    if (field.rule.required && !places.given(key)) out.push_back(key);
    if constexpr (HasFields<Value>) collect_missing<Value>(key, places, out);
  });
}

}  // namespace

void Places::forget(const std::string& key) {
  std::erase_if(places_, [&key](const auto& entry) {
    return entry.first == key || entry.first.starts_with(key + ".");
  });
}

Place Places::of(std::string key) const {
  while (!places_.contains(key) && !key.empty()) {
    const size_t dot = key.rfind('.');
    key = dot == std::string::npos ? "" : key.substr(0, dot);
  }
  return places_.at(key);
}

void apply_tree(const Node& root, Config& config, Places& places) {
  Reader(places).read_section(root, "", config);
}

const std::vector<std::string>& all_keys() {
  static const std::vector<std::string> keys = [] {
    std::vector<std::string> out;
    collect_keys<Config>("", out);
    return out;
  }();
  return keys;
}

std::vector<std::string> missing_keys(const Config& config, const Places& places) {
  std::vector<std::string> missing;
  collect_missing<Config>("", places, missing);
  if (config.model.rope_scaling) {
    collect_missing<RopeScalingConfig>("model.rope_scaling", places, missing);
  }
  return missing;
}

}  // namespace cplm
