// A training step never waits for the device: no operation inside it reads a value back. Seen by
// an observer of every ATen call; the CPU runs the same calls as CUDA, where it matters.
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <mutex>
#include <set>
#include <string>

#include "cplm/train.h"
#include "support/models.h"
#include "support/token_batch.h"

namespace cplm::test {
namespace {

const std::vector<std::string> kReadBack = {
    "aten::item",     "aten::_local_scalar_dense", "aten::is_nonzero",
    "aten::nonzero",  "aten::masked_select",       "aten::equal",
    "aten::_unique2", "aten::unique_consecutive",
};

// The CPU body of the fused optimizer reads its step counter by item(); the CUDA body takes a
// pointer. What it calls inside is its own affair.
const std::string kOptimizer = "aten::_fused_adamw_";

// Names of the ATen operations called while it lives, on any thread.
class Observer {
 public:
  Observer() {
    const std::scoped_lock lock(mutex());
    seen().clear();
    handle_ = at::addGlobalCallback(
        at::RecordFunctionCallback(&begin_call, &end_call).scopes({at::RecordScope::FUNCTION}));
  }
  ~Observer() { at::removeCallback(handle_); }
  Observer(const Observer&) = delete;
  Observer& operator=(const Observer&) = delete;

  bool has(const std::string& name) const {
    const std::scoped_lock lock(mutex());
    return seen().count(name) > 0;
  }

 private:
  static std::unique_ptr<at::ObserverContext> begin_call(const at::RecordFunction& call) {
    const std::scoped_lock lock(mutex());
    if (optimizer_depth() == 0) seen().insert(call.name());
    if (call.name() == kOptimizer) ++optimizer_depth();
    return nullptr;
  }
  static void end_call(const at::RecordFunction& call, at::ObserverContext*) {
    if (call.name() == kOptimizer) --optimizer_depth();
  }
  static int& optimizer_depth() {
    static thread_local int depth = 0;
    return depth;
  }
  static std::mutex& mutex() {
    static std::mutex instance;
    return instance;
  }
  static std::set<std::string>& seen() {
    static std::set<std::string> instance;
    return instance;
  }
  at::CallbackHandle handle_;
};

TEST(TrainStepSync, TheObserverSeesAReadBack) {
  const at::Tensor x = at::zeros({2});
  const Observer observer;
  EXPECT_FALSE(observer.has("aten::item"));
  (void)x.sum().item();
  (void)x.nonzero();
  EXPECT_TRUE(observer.has("aten::item"));
  EXPECT_TRUE(observer.has("aten::_local_scalar_dense"));
  EXPECT_TRUE(observer.has("aten::nonzero"));
}

TEST(TrainStepSync, AStepReadsNothingBack) {
  for (const HeadKind head : {HeadKind::kVanilla, HeadKind::kCplm}) {
    for (const OpsKind ops : {OpsKind::kComposed, OpsKind::kFused}) {
      ModelConfig config = tiny_config(head);
      config.sliding_window = 3;
      config.num_hidden_layers = 3;
      config.layer_types = {LayerKind::kLinear, LayerKind::kSliding, LayerKind::kFull};
      config.copy.rope = config.copy.qk_norm = true;
      const auto model = make_model(config, at::kFloat, ops);
      AdamW optimizer(model->parameters(), OptimizerConfig{}, ops);
      const at::Tensor blocked = at::zeros({});
      const TokenBatch batch = make_batch(config);
      const StepOptions options{
          .micro_batch = 2, .document_mask = true, .grad_clip = 1.0, .path_norms = true};
      const Observer observer;
      train_step(*model, optimizer, batch, 1e-3, options, blocked);
      EXPECT_TRUE(observer.has("aten::zero_"));  // the step was seen, to its end
      EXPECT_TRUE(observer.has("aten::stack"));
      EXPECT_EQ(observer.has(kOptimizer), ops == OpsKind::kComposed);
      for (const std::string& name : kReadBack) EXPECT_FALSE(observer.has(name)) << name;
    }
  }
}

}  // namespace
}  // namespace cplm::test
