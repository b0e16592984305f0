// How fast all cores together read memory: the limit of a scan on the CPU.
#pragma once

#include <cstdint>

namespace shortlist::benchmark {

/// The fewest milliseconds, of some trials, in which all cores read `bytes` bytes at `data` once, after having read
/// them before: what fits a cache comes from there. The better of two ways, with and without prefetching.
double cpu_read_ms(const void* data, std::int64_t bytes);

}  // namespace shortlist::benchmark
