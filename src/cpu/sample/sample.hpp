// Sampling on the CPU. See sample.cpp.
#pragma once

#include "core/backend.hpp"

namespace shortlist::cpu {

/// Draws a token of every row. @throws std::bad_alloc if scratch memory runs out.
void sample(const core::sample_request& request);

}  // namespace shortlist::cpu
