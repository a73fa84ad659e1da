// name_of(): enum value -> its word in a config.
#include "config/names.h"

#include "cplm/base.h"

namespace cplm {
namespace {

template <class Enum>
const char* find_name(Enum value) {
  for (const auto& entry : EnumNames<Enum>::list) {
    if (entry.value == value) return entry.name;
  }
  throw Error(str("no name for value ", static_cast<int>(value), " of a config's enum"));
}

}  // namespace

const char* name_of(LayerKind value) { return find_name(value); }
const char* name_of(HeadKind value) { return find_name(value); }
const char* name_of(StopGradient value) { return find_name(value); }
const char* name_of(Device value) { return find_name(value); }
const char* name_of(Precision value) { return find_name(value); }
const char* name_of(OpsKind value) { return find_name(value); }
const char* name_of(ScheduleKind value) { return find_name(value); }
const char* name_of(DecayShape value) { return find_name(value); }
const char* name_of(OnNonfinite value) { return find_name(value); }

}  // namespace cplm
