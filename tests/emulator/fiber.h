// A fiber: a function with a stack of its own, which runs when resumed and can suspend itself.
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <functional>

namespace cplm::emulator {

class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // The next resume() begins `body`, which must not throw. Only while the fiber is finished.
  void start(std::function<void()> body);
  // Runs the fiber until it suspends itself or finishes.
  void resume();
  bool finished() const { return finished_; }
  // Called inside the fiber that runs: back to who resumed it.
  static void suspend();

 private:
  static void entry();
  void switch_in();
  void switch_out();

  std::byte* stack_;
  ucontext_t context_;
  void* jump_[5];  // the size that __builtin_setjmp asks for
  void* resumer_jump_[5];
  bool entered_ = false, finished_ = true;
  std::function<void()> body_;
#if defined(__SANITIZE_ADDRESS__)
  void* fake_stack_ = nullptr;
  const void* resumer_stack_ = nullptr;
  std::size_t resumer_stack_bytes_ = 0;
#endif
};

}  // namespace cplm::emulator
