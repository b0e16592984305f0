// How an IVF-PQ search works: for now what tests force.
#pragma once

#include <cstdint>
#include <optional>

namespace shortlist::core {

/// For tests: whether SHORTLIST_FORCE_IVF_PQ is "decode", and searches are to decode every row of the lists; "filter"
/// is what they do otherwise. @throws invalid_argument if it is anything else.
bool decodes_all_rows();

/// For tests: how many hits of a query a filter has room for, from SHORTLIST_IVF_PQ_HITS.
/// @throws invalid_argument if that is not a number from 1 to 16,384.
std::optional<std::int64_t> forced_hits();

}  // namespace shortlist::core
