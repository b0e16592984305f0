// How an IVF-PQ search works: for now what tests force.
#pragma once

#include <cstdint>
#include <optional>

namespace shortlist::core {

/// How a CUDA device searches.
enum class ivf_pq_way : std::uint8_t {
  few,     ///< every row of the lists decoded by all of the GPU: few queries
  filter,  ///< lists against queries on the matrix units
  decode,  ///< every row of the lists decoded, by a block a query
};

/// For tests: what SHORTLIST_FORCE_IVF_PQ names, which searches do if it serves them.
/// @throws invalid_argument if that is not few, filter or decode.
std::optional<ivf_pq_way> forced_ivf_pq_way();

/// For tests: how many hits of a query a filter has room for, from SHORTLIST_IVF_PQ_HITS.
/// @throws invalid_argument if that is not a number from 1 to 16,384.
std::optional<std::int64_t> forced_hits();

}  // namespace shortlist::core
