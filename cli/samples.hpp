// Random vectors for the benchmark.
#pragma once

#include <cstdint>

#include "shortlist/io.hpp"

namespace shortlist::program {

/// [rows, dim] of independent standard normal values, the same for the same seed. The 8-bit types hold them scaled to
/// fill their range: 32 units a standard deviation, u8 around 128.
vectors normal_vectors(std::int64_t rows, std::int64_t dim, element_type type, std::uint64_t seed);

}  // namespace shortlist::program
