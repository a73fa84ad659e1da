// The first entry goes through ucontext; later switches through the compiler's setjmp and longjmp,
// which spare ucontext's two system calls (15 times faster) and the C library's refusal to change
// stacks. AddressSanitizer is told of every switch.
#include "emulator/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace cplm::emulator {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr std::size_t kStackBytes = 256 * 1024;  // instrumented frames are large
#else
constexpr std::size_t kStackBytes = 64 * 1024;
#endif

thread_local Fiber* running = nullptr;

std::size_t page_bytes() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }

// Not inlined: the compiler's longjmp must not stand in the function of its setjmp. This and its
// callers stay free of AddressSanitizer, which would unpoison the whole stack before each jump.
[[gnu::noinline, gnu::no_sanitize("address")]] void jump(void** to) { __builtin_longjmp(to, 1); }

[[noreturn]] void throw_errno(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

}  // namespace

Fiber::Fiber() {
  // One page without access below the stack: an overflow must crash, not spoil a neighbour.
  void* memory = mmap(nullptr, page_bytes() + kStackBytes, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  if (memory == MAP_FAILED) throw_errno("emulator: no memory for a fiber's stack");
  stack_ = static_cast<std::byte*>(memory) + page_bytes();
  if (mprotect(stack_, kStackBytes, PROT_READ | PROT_WRITE) != 0) {
    throw_errno("emulator: cannot open a fiber's stack");
  }
  if (getcontext(&context_) != 0) throw_errno("emulator: getcontext failed");
  context_.uc_stack.ss_sp = stack_;
  // Tops spread over a page: at equal offsets all stacks would compete for the same cache lines.
  static thread_local std::size_t num_fibers = 0;
  context_.uc_stack.ss_size = kStackBytes - num_fibers++ * 320 % 4096;
  context_.uc_link = nullptr;
  makecontext(&context_, &Fiber::entry, 0);
}

Fiber::~Fiber() { munmap(stack_ - page_bytes(), page_bytes() + kStackBytes); }

void Fiber::start(std::function<void()> body) {
  body_ = std::move(body);
  finished_ = false;
}

void Fiber::entry() {
  Fiber& self = *running;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &self.resumer_stack_, &self.resumer_stack_bytes_);
#endif
  for (;;) {  // a stack serves one body after another
    self.body_();
    self.finished_ = true;
    self.switch_out();
  }
}

void Fiber::resume() {
  running = this;
  switch_in();
  running = nullptr;
}

void Fiber::suspend() { running->switch_out(); }

[[gnu::no_sanitize("address")]] void Fiber::switch_in() {
#if defined(__SANITIZE_ADDRESS__)
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(&fake_stack, stack_, kStackBytes);
#endif
  if (__builtin_setjmp(resumer_jump_) == 0) {
    if (entered_) {
      jump(jump_);
    } else {
      entered_ = true;
      setcontext(&context_);
    }
  }
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
}

[[gnu::no_sanitize("address")]] void Fiber::switch_out() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&fake_stack_, resumer_stack_, resumer_stack_bytes_);
#endif
  if (__builtin_setjmp(jump_) == 0) jump(resumer_jump_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack_, &resumer_stack_, &resumer_stack_bytes_);
#endif
}

}  // namespace cplm::emulator
