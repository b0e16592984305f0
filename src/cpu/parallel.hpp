// Work on all cores: one pool per process (oneTBB's), any number of callers at once.
#pragma once

#include <tbb/info.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <cfenv>

namespace shortlist::cpu {

/// Round to nearest, denormals kept, whatever the caller's thread was set to: scores are defined to the last bit.
class default_float_environment {
 public:
  default_float_environment() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~default_float_environment() { std::fesetenv(&saved_); }
  default_float_environment(const default_float_environment&) = delete;
  default_float_environment& operator=(const default_float_environment&) = delete;

 private:
  std::fenv_t saved_;
};

/// Cores that this process may run on.
inline int core_count() { return tbb::info::default_concurrency(); }

/// Threads that work started here can occupy: the pool's, or fewer where the caller's arena has a limit.
inline int thread_count() { return std::min(core_count(), tbb::this_task_arena::max_concurrency()); }

/// Calls body(slot) for every slot in [0, slots), spread over the pool and the calling thread.
///
/// Slots pull their work from a counter of their own, so it does not matter how many run at the same time, and a busy
/// pool delays nobody: the caller does what nobody else takes. A waiting caller takes no foreign tasks, which could be
/// searches that wait in turn.
template <class Body>
void for_each_slot(int slots, const Body& body) {
  if (slots == 1) {
    body(0);
    return;
  }
  tbb::this_task_arena::isolate([&] {
    tbb::parallel_for(
        0, slots,
        [&](int slot) {
          const default_float_environment environment;
          body(slot);
        },
        tbb::simple_partitioner());
  });
}

}  // namespace shortlist::cpu
