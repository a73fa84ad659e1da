// The flat weight and gradient buffers and the named views into them.
#include <ATen/ops/zeros.h>

#include <numeric>

#include "cplm/base.h"
#include "cplm/model.h"
#include "cplm/ops.h"

namespace cplm {
namespace {

constexpr int64_t kAlignment =
    64;  // elements; at least 64 bytes in every dtype, so kernels see equal alignment

int64_t count(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

}  // namespace

size_t ParameterStore::add(const std::vector<Spec>& group, bool computes_by_master) {
  CPLM_CHECK(!flat_value_.defined(), "[model.parameters] add() after allocate()");
  const size_t first = parameters_.size();
  flat_size_ = (flat_size_ + kAlignment - 1) / kAlignment * kAlignment;
  for (const Spec& spec : group) {
    Parameter parameter{spec.name, spec.shape, spec.init,  {},
                        {},        {},         flat_size_, count(spec.shape)};
    parameter.computes_by_master = computes_by_master;
    flat_size_ += parameter.numel;
    parameters_.push_back(std::move(parameter));
  }
  return first;
}

void ParameterStore::allocate(const at::TensorOptions& options, int64_t multiple) {
  const int64_t unit = multiple > 1 ? multiple * kAlignment : 1;
  flat_size_ = (flat_size_ + unit - 1) / unit * unit;
  flat_value_ = at::zeros({flat_size_}, options);
  for (Parameter& p : parameters_) {
    p.value = flat_value_.narrow(0, p.offset, p.numel).view(p.shape);
  }
  allocate_masters();
}

void ParameterStore::allocate_masters() {
  const auto dtype = ops::accumulation_dtype(flat_value_.scalar_type());
  const bool one = dtype == flat_value_.scalar_type();
  flat_master_ = one ? flat_value_ : at::zeros({flat_size_}, flat_value_.options().dtype(dtype));
  for (Parameter& p : parameters_) {
    p.master = flat_master_.narrow(0, p.offset, p.numel).view(p.shape);
  }
}

void ParameterStore::keep_master_part(const at::Tensor& part) {
  for (Parameter& p : parameters_) {
    p.master = p.computes_by_master ? p.master.clone() : at::Tensor();
  }
  flat_master_ = part;
}

void ParameterStore::allocate_gradients() {
  flat_grad_ = at::zeros({flat_size_}, flat_master_.options());  // masters may be a part
  for (Parameter& p : parameters_) p.grad = flat_grad_.narrow(0, p.offset, p.numel).view(p.shape);
}

void ParameterStore::round_values() {
  if (!master_is_value()) flat_value_.copy_(flat_master_);
}

void ParameterStore::release_gradients() {
  flat_grad_.reset();
  for (Parameter& p : parameters_) p.grad.reset();
}

const Parameter* ParameterStore::find(const std::string& name) const {
  for (const Parameter& p : parameters_) {
    if (p.name == name) return &p;
  }
  return nullptr;
}

at::Tensor ParameterStore::stacked(const at::Tensor& flat, size_t first,
                                   size_t member_count) const {
  int64_t rows = 0, size = 0;
  for (size_t i = first; i < first + member_count; ++i) {
    CPLM_CHECK(parameters_[i].offset == parameters_[first].offset + size, "[model.parameters] ",
               parameters_[i].name, " is not next to its group");
    rows += parameters_[i].shape.front();
    size += parameters_[i].numel;
  }
  std::vector<int64_t> shape = parameters_[first].shape;
  shape.front() = rows;
  return flat.narrow(0, parameters_[first].offset, size).view(shape);
}

at::Tensor ParameterStore::stacked_value(size_t first, size_t member_count) const {
  return stacked(flat_value_, first, member_count);
}

at::Tensor ParameterStore::stacked_grad(size_t first, size_t member_count) const {
  return stacked(flat_grad_, first, member_count);
}

int64_t ParameterStore::num_parameters() const {
  int64_t total = 0;
  for (const Parameter& p : parameters_) total += p.numel;
  return total;
}

}  // namespace cplm
