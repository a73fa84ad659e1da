// What a field's type and rule ask of its value, in words: for error messages and the reference.
#pragma once

#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "config/fields.h"
#include "config/names.h"
#include "cplm/base.h"

namespace cplm {

template <class T>
struct IsVector : std::false_type {};
template <class T>
struct IsVector<std::vector<T>> : std::true_type {};
template <class T>
struct IsOptional : std::false_type {};
template <class T>
struct IsOptional<std::optional<T>> : std::true_type {};

// "a number above 0 and below 1"
std::string expected_number(const char* kind, const Rule& rule);
// "one of a, b, c"
std::string expected_choice(const std::vector<std::string>& names, bool or_count = false);
std::vector<std::string> split_choices(const char* choices);

template <class Enum>
std::vector<std::string> enum_words() {
  std::vector<std::string> words;
  for (const auto& entry : EnumNames<Enum>::list) words.emplace_back(entry.name);
  return words;
}

template <class Value>
std::string expected_of(const Rule& rule) {
  if constexpr (IsOptional<Value>::value) {
    return expected_of<typename Value::value_type>(rule) + " or null";
  } else if constexpr (std::is_same_v<Value, std::vector<DataSource>>) {
    return "a list of globs or maps {path, weight}";
  } else if constexpr (IsVector<Value>::value) {
    const std::string item = expected_of<typename Value::value_type>(rule);
    return rule.length > 0 ? str("a list of ", rule.length, ", each ", item)
                           : str("a list, each ", item);
  } else if constexpr (HasFields<Value>) {
    return "a map of keys";
  } else if constexpr (std::is_enum_v<Value>) {
    return expected_choice(enum_words<Value>());
  } else if constexpr (std::is_same_v<Value, bool>) {
    return "true or false";
  } else if constexpr (std::is_integral_v<Value>) {
    return expected_number("a whole number", rule);
  } else if constexpr (std::is_floating_point_v<Value>) {
    return expected_number("a number", rule);
  } else {
    static_assert(std::is_same_v<Value, std::string>);
    return *rule.choices != '\0' ? expected_choice(split_choices(rule.choices), rule.or_count)
                                 : "text";
  }
}

}  // namespace cplm
