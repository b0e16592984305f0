// Chooses few points out of a product of factors, so that every pair of values of any two factors is in at least one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace shortlist::conformance {

/// A value of each factor, as an index into the factor's values.
using choice = std::vector<std::size_t>;

struct pairwise_rules {
  choice counts;                                    ///< how many values each factor has
  std::function<std::int64_t(const choice&)> cost;  ///< what a point costs; negative: it is not allowed
};

/// Points that have every pair that an allowed point can have; the same on every machine.
std::vector<choice> pairwise_choices(const pairwise_rules& rules, std::uint64_t seed);

}  // namespace shortlist::conformance
