// The words that stand for enum values in a config, each once.
#pragma once

#include "cplm/config.h"

namespace cplm {

template <class Enum>
struct EnumName {
  Enum value;
  const char* name;
};

template <class Enum>
struct EnumNames;  // specialised for every enum of a config

template <>
struct EnumNames<LayerKind> {
  static constexpr EnumName<LayerKind> list[] = {{LayerKind::kFull, "full_attention"},
                                                 {LayerKind::kSliding, "sliding_attention"},
                                                 {LayerKind::kLinear, "linear_attention"}};
};
template <>
struct EnumNames<HeadKind> {
  static constexpr EnumName<HeadKind> list[] = {{HeadKind::kVanilla, "vanilla"},
                                                {HeadKind::kCplm, "cplm"}};
};
template <>
struct EnumNames<StopGradient> {
  static constexpr EnumName<StopGradient> list[] = {
      {StopGradient::kNone, "none"},
      {StopGradient::kScores, "scores"},
      {StopGradient::kScoresAndGate, "scores_and_gate"}};
};
template <>
struct EnumNames<Device> {
  static constexpr EnumName<Device> list[] = {
      {Device::kAuto, "auto"}, {Device::kCpu, "cpu"}, {Device::kCuda, "cuda"}};
};
template <>
struct EnumNames<Precision> {
  static constexpr EnumName<Precision> list[] = {{Precision::kFloat64, "float64"},
                                                 {Precision::kFloat32, "float32"},
                                                 {Precision::kBFloat16, "bfloat16"}};
};
template <>
struct EnumNames<OpsKind> {
  static constexpr EnumName<OpsKind> list[] = {{OpsKind::kFused, "fused"},
                                               {OpsKind::kComposed, "composed"}};
};
template <>
struct EnumNames<ScheduleKind> {
  static constexpr EnumName<ScheduleKind> list[] = {{ScheduleKind::kWsd, "wsd"},
                                                    {ScheduleKind::kCosine, "cosine"},
                                                    {ScheduleKind::kConstant, "constant"}};
};
template <>
struct EnumNames<DecayShape> {
  static constexpr EnumName<DecayShape> list[] = {{DecayShape::kLinear, "linear"},
                                                  {DecayShape::kSqrt, "sqrt"},
                                                  {DecayShape::kCosine, "cosine"}};
};
template <>
struct EnumNames<OnNonfinite> {
  static constexpr EnumName<OnNonfinite> list[] = {
      {OnNonfinite::kStop, "stop"}, {OnNonfinite::kSkip, "skip"}, {OnNonfinite::kRewind, "rewind"}};
};

}  // namespace cplm
