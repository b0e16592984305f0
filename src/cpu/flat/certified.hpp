// Certified flat search on the CPU: see docs/certified.md for why what it leaves out cannot matter.
#pragma once

#include <cstdint>

#include "core/backend.hpp"
#include "cpu/flat/scratch.hpp"

namespace shortlist::cpu {

/// The k best rows of each query, through the corpus's plane. @pre it has one, and rows.
void certified_search(flat_scratch& memory, const core::flat_corpus& corpus, const core::flat_request& request);

/// Room for certified searches within `limits`. @throws out_of_memory.
void reserve_certified(const search_limits& limits, std::int64_t dim, flat_scratch& memory);

/// Writes rows [first, first + count) of a corpus into its plane, and adds them to `summary`.
void write_plane(const core::flat_corpus& corpus, std::int64_t first, std::int64_t count, std::byte* plane,
                 core::plane_summary& summary);

}  // namespace shortlist::cpu
