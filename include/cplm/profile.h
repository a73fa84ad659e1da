// Where a step's time goes, for `cplm bench --profile`: named sections on two axes, the parts of
// the model and the kinds of work. Costs two clock readings a section while recording, else
// nothing.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <string>

namespace cplm::profile {

enum class Axis { kPart, kKind };
using Seconds = std::map<std::string, double>;
struct Profile {
  Seconds parts, kinds;
};

// From now on sections count, on this thread alone. synchronize: waits for the device before each
// reading of the clock; empty on the CPU.
void start(std::function<void()> synchronize);
Profile stop();

// Counts its lifetime under `name`; inside another section of the same axis, under that one.
class Section {
 public:
  Section(Axis axis, const char* name);
  ~Section();
  Section(const Section&) = delete;
  Section& operator=(const Section&) = delete;

 private:
  Axis axis_;
  const char* name_ = nullptr;  // null: not counted
  std::chrono::steady_clock::time_point start_;
};

}  // namespace cplm::profile
