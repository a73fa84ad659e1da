// Writes safetensors files piece by piece, from any device and with any strides.
#include "checkpoint/safetensors_writer.h"

#include <algorithm>
#include <utility>

#include "checkpoint/pieces.h"
#include "checkpoint/safetensors_header.h"
#include "cplm/base.h"

namespace cplm {
namespace checkpoint {

SafetensorsLayout::SafetensorsLayout(const NamedTensors& tensors,
                                     const std::map<std::string, std::string>& metadata) {
  for (const auto& [name, tensor] : tensors) {
    CPLM_CHECK(tensor.defined(), "cannot write tensor '", name, "': it is undefined");
    CPLM_CHECK(tensor.layout() == at::kStrided && !tensor.is_meta(), "cannot write tensor '", name,
               "': it has no dense data");
    order_.emplace_back(&name, tensor.detach());
  }
  // Each size is then a multiple of the next type's, which keeps every tensor aligned.
  std::stable_sort(order_.begin(), order_.end(), [](const auto& a, const auto& b) {
    return a.second.element_size() > b.second.element_size();
  });
  std::vector<std::pair<std::string, SafetensorsEntry>> entries;
  uint64_t position = 0;
  for (const auto& [name, tensor] : order_) {
    const uint64_t bytes =
        static_cast<uint64_t>(tensor.numel()) * element_bytes(tensor.scalar_type());
    entries.emplace_back(*name, SafetensorsEntry{tensor.scalar_type(), tensor.sizes().vec(),
                                                 position, position + bytes});
    position += bytes;
  }
  std::map<std::string, std::string> all_metadata = metadata;
  all_metadata.emplace("format", "pt");
  header_ = make_safetensors_header(entries, all_metadata);
  size_bytes_ = header_.size() + position;
}

WrittenFile SafetensorsLayout::write(const std::filesystem::path& path,
                                     const Progress& progress) const {
  CheckedFile file(path);
  file.write(header_.data(), header_.size());
  for (const auto& [name, tensor] : order_) {
    for_each_piece(tensor, [&](const at::Tensor& piece, int64_t) {
      const at::Tensor bytes = piece.to(at::kCPU).contiguous();  // no copy where it is both already
      file.write(bytes.const_data_ptr(), static_cast<size_t>(bytes.nbytes()));
      if (progress) progress();
    });
  }
  const uint64_t size_bytes = file.size_bytes();
  return {size_bytes, file.finish()};
}

}  // namespace checkpoint

WrittenFile write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                              const std::map<std::string, std::string>& metadata) {
  return checkpoint::SafetensorsLayout(tensors, metadata).write(path);
}

}  // namespace cplm
