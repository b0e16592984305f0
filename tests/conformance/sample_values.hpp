// The logits of sampling's tests: those of row-wise top k that mean something here, and some that only sampling has.
#pragma once

#include <string_view>
#include <vector>

#include "conformance/top_k_values.hpp"

namespace shortlist::conformance {

/// The names of the distributions; docs at their implementation.
const std::vector<std::string_view>& logit_distributions();

/// Fills the row's values. @throws std::invalid_argument if no distribution has the name.
void fill_logits(std::string_view distribution, row_numbers& row, random_numbers& random);

}  // namespace shortlist::conformance
