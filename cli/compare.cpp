// Two answers to one search, compared to the bit. See compare.hpp.
#include "compare.hpp"

#include <fmt/core.h>

#include <bit>
#include <cstdint>

namespace shortlist::program {
namespace {

std::string describe(std::int64_t id, float score) {
  return fmt::format("id {} with score {} (0x{:08X})", id, score, std::bit_cast<std::uint32_t>(score));
}

}  // namespace

std::optional<std::string> first_difference(const search_result& result, std::string_view result_name,
                                            const search_result& expected, std::string_view expected_name) {
  if (result.queries != expected.queries || result.k != expected.k || result.k_found != expected.k_found) {
    return fmt::format("{} has {} queries, k {}, k_found {}; {} has {}, {}, {}", result_name, result.queries, result.k,
                       result.k_found, expected_name, expected.queries, expected.k, expected.k_found);
  }
  for (std::int64_t query = 0; query < result.queries; ++query) {
    for (std::int64_t place = 0; place < result.k; ++place) {
      const auto at = static_cast<std::size_t>(query * result.k + place);
      const bool same = result.ids[at] == expected.ids[at] && std::bit_cast<std::uint32_t>(result.scores[at]) ==
                                                                  std::bit_cast<std::uint32_t>(expected.scores[at]);
      if (same) continue;
      return fmt::format("query {}, place {}: {} has {}, {} has {}", query, place, result_name,
                         describe(result.ids[at], result.scores[at]), expected_name,
                         describe(expected.ids[at], expected.scores[at]));
    }
  }
  return std::nullopt;
}

}  // namespace shortlist::program
