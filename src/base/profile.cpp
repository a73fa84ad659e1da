// See cplm/profile.h.
#include "cplm/profile.h"

#include <utility>

namespace cplm::profile {
namespace {

struct Recording {
  bool on = false;
  bool inside[2] = {false, false};  // by axis
  std::function<void()> synchronize;
  Profile profile;

  std::chrono::steady_clock::time_point now() const {
    if (synchronize) synchronize();
    return std::chrono::steady_clock::now();
  }
};

thread_local Recording recording;

}  // namespace

void start(std::function<void()> synchronize) {
  recording = {};
  recording.on = true;
  recording.synchronize = std::move(synchronize);
}

Profile stop() { return std::exchange(recording, {}).profile; }

Section::Section(Axis axis, const char* name) : axis_(axis) {
  bool& inside = recording.inside[static_cast<size_t>(axis)];
  if (!recording.on || inside) return;
  inside = true;
  name_ = name;
  start_ = recording.now();
}

Section::~Section() {
  if (name_ == nullptr || !recording.on) return;
  recording.inside[static_cast<size_t>(axis_)] = false;
  const std::chrono::duration<double> elapsed = recording.now() - start_;
  Seconds& seconds = axis_ == Axis::kPart ? recording.profile.parts : recording.profile.kinds;
  seconds[name_] += elapsed.count();
}

}  // namespace cplm::profile
