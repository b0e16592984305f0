// Row-wise top k on the CPU. See top_k.cpp.
#pragma once

#include "core/backend.hpp"
#include "core/plan.hpp"

namespace shortlist::cpu {

/// The k best of every row by the given algorithm. @throws std::bad_alloc if scratch memory runs out.
void top_k(core::top_k_algorithm algorithm, const core::top_k_request& request);

}  // namespace shortlist::cpu
