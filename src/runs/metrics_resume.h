// What a resume makes of RUN/metrics.jsonl: lines up to its step, and what changed there.
#pragma once

#include <filesystem>

#include "cplm/runs.h"

namespace cplm {

// Lines past resume.step, and damaged ones, move to metrics.stale.jsonl beside `path`. With
// resume.settings the lines of kind "settings" at that step become one: what was in force before
// the first of them, or in the checkpoint, against the settings of now.
void trim_metrics(const std::filesystem::path& path, const ResumePoint& resume);

}  // namespace cplm
