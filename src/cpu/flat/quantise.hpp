// A vector as int8 or int16 codes, with the sums that core/certified.hpp makes terms of.
#pragma once

#include <cstdint>

#include "core/certified.hpp"

namespace shortlist::cpu {

/// Sums over the elements, in double: their errors are far below what core::padded_up adds.
struct quantised {
  float scale = 0.0f;
  double squares = 0.0;           ///< of the elements; not finite if one of them is not
  double residual_squares = 0.0;  ///< of element - scale * code
  std::int64_t code_squares = 0;
};

/// Codes of up to max_code for a vector that has been widened; all 0 if it cannot be certified.
quantised quantise(const float* elements, std::int64_t dim, int max_code, std::int16_t* codes);

}  // namespace shortlist::cpu
