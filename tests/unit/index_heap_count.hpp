// Counts what any thread of the test program takes from the heap through operator new.
#pragma once

#include <cstdint>

namespace shortlist::test {

void start_heap_count() noexcept;
/// Allocations since the start; counting ends.
std::int64_t end_heap_count() noexcept;

}  // namespace shortlist::test
