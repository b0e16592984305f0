// Flat search on the CPU: the drivers of both algorithms, and their scratch memory.
#pragma once

#include <memory>

#include "core/backend.hpp"
#include "core/plan.hpp"

namespace shortlist::cpu {

/// Scratch that serves every search within `limits` without allocating; a larger one makes it grow.
/// @param max_dim the largest dim, or 0 if it is not known: every dim is served, at the price of address space.
/// @param kept    what the corpora have: full, or anything else for all.
std::unique_ptr<core::scratch> make_flat_scratch(const search_limits& limits, std::int64_t max_dim, storage kept);

/// The k best rows of each query by the given algorithm. @throws out_of_memory if the scratch cannot grow.
void flat_search(core::flat_algorithm algorithm, core::scratch& memory, const core::flat_corpus& corpus,
                 const core::flat_request& request);

/// inverse_norms[i] of row first + i, for i < count.
void inverse_norms(const core::flat_corpus& corpus, std::int64_t first, std::int64_t count, float* inverse_norms);

}  // namespace shortlist::cpu
