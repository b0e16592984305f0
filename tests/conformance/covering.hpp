// Chooses few cases out of the full product of shapes, types, metrics and distributions, so that every pair of values
// of any two dimensions of the product is in at least one of them.
#pragma once

#include <cstdint>
#include <vector>

#include "conformance/harness.hpp"

namespace shortlist::conformance {

/// What a case may cost: the reference computes every score.
struct case_limits {
  std::int64_t max_elements = 0;  ///< rows x dim
  std::int64_t max_steps = 0;     ///< rows x dim x queries
  std::int64_t max_scores = 0;    ///< rows x queries, and k x queries
};

struct pinned {
  bool is_pinned = false;
  element_type type = element_type::f32;
  metric by = metric::inner_product;
};

/// Cases that cover every pair of values that the limits allow; with `only`, of one type and metric.
std::vector<test_case> covering_cases(const case_limits& limits, std::uint64_t seed, const pinned& only = {});

}  // namespace shortlist::conformance
