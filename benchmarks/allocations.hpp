// Counts what the process takes from the heap.
#pragma once

#include <cstdint>

namespace shortlist::benchmark {

/// Calls of operator new so far, by any thread of the process, the library's and its backends' included.
std::int64_t heap_allocations() noexcept;

}  // namespace shortlist::benchmark
