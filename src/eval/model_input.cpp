// Host batches to model inputs.
#include <ATen/ops/from_blob.h>

#include "cplm/eval.h"

namespace cplm {
namespace {

// A view of host memory; the caller copies it before the batch goes away.
at::Tensor view(const void* data, at::IntArrayRef sizes, at::ScalarType dtype) {
  return at::from_blob(const_cast<void*>(data), sizes, at::TensorOptions().dtype(dtype));
}

}  // namespace

ModelInput model_input(const TokenBatch& batch, int64_t begin, int64_t end, bool document_mask,
                       at::Device device) {
  const int64_t rows = end - begin, positions = batch.sequence_length;
  const at::Tensor tokens =
      view(batch.tokens.data() + begin * (positions + 1), {rows, positions + 1}, at::kInt);
  const at::Tensor counted =
      view(batch.target_counted.data() + begin * positions, {rows, positions}, at::kByte);
  // From pinned memory: a copy from any other may wait for the device.
  const auto upload = [&](const at::Tensor& x) {
    return device.is_cpu() ? x : x.pin_memory().to(device, /*non_blocking=*/true);
  };
  ModelInput input;
  input.ids = upload(tokens.narrow(1, 0, positions).to(at::kLong).contiguous());
  input.targets =
      upload(tokens.narrow(1, 1, positions).to(at::kLong).masked_fill(counted.eq(0), -1));
  if (document_mask && batch.has_document_breaks) {
    input.document_start = ops::DocumentStarts(
        view(batch.document_start.data() + begin * positions, {rows, positions}, at::kInt)
            .to(at::kLong),
        device);
  }
  return input;
}

}  // namespace cplm
