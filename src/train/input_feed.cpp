// See input_feed.h; streams and events by c10 only, so that no CUDA header is needed here.
#include "train/input_feed.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <utility>

#include "cplm/eval.h"
#include "cplm/profile.h"

namespace cplm {
namespace {

c10::Stream current_stream(at::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

// The allocator must not hand the memory out again before `user` is through with it.
void keep_for(const ModelInput& input, c10::Stream user) {
  for (const at::Tensor& tensor :
       {input.ids, input.targets, input.document_start.device(), input.document_start.offsets()}) {
    if (tensor.defined()) tensor.record_stream(user);
  }
}

}  // namespace

InputFeed::InputFeed(const WindowSet& windows, const LoaderOptions& loader, int64_t micro_batch,
                     bool document_mask, at::Device device)
    : loader_(windows, loader),
      micro_batch_(micro_batch),
      document_mask_(document_mask),
      device_(device) {
  if (device.is_cpu()) return;
  copies_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}

InputFeed::Prepared InputFeed::make() {
  Prepared prepared;
  auto batch = std::make_shared<const TokenBatch>(loader_.next());
  const profile::Section section(profile::Axis::kPart, "data");
  const c10::OptionalStreamGuard guard(copies_);
  for (int64_t begin = 0; begin < batch->rows; begin += micro_batch_) {
    const int64_t end = std::min(begin + micro_batch_, batch->rows);
    prepared.inputs.parts.push_back(model_input(*batch, begin, end, document_mask_, device_));
  }
  prepared.inputs.batch = std::move(batch);
  if (copies_) prepared.copied.emplace(device_.type()).record(*copies_);
  return prepared;
}

void InputFeed::prepare() {
  if (prepared_ || failure_) return;
  try {
    prepared_ = make();
  } catch (...) {
    failure_ = std::current_exception();
  }
}

StepInputs InputFeed::next() {
  prepare();
  if (failure_) std::rethrow_exception(failure_);
  Prepared prepared = *std::exchange(prepared_, std::nullopt);
  if (prepared.copied) {
    const c10::Stream user = current_stream(device_);
    prepared.copied->block(user);
    for (const ModelInput& part : prepared.inputs.parts) keep_for(part, user);
  }
  return std::move(prepared.inputs);
}

}  // namespace cplm
