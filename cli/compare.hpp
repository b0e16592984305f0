// Two answers to one search, compared to the bit.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "shortlist/flat_index.hpp"

namespace shortlist::program {

/// Where `result` first differs from `expected`, in words that name both sides; nothing if every id and every bit of
/// every score is the same.
std::optional<std::string> first_difference(const search_result& result, std::string_view result_name,
                                            const search_result& expected, std::string_view expected_name);

}  // namespace shortlist::program
