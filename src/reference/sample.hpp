// The oracle of sampling: a full sort and plain loops in exact integers, written from docs/sampling.md.
//
// It shares nothing with core or the backends, so that a mistake made there is not made here as well.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "shortlist/sample.hpp"

namespace shortlist::reference {

// --- Sections 2 to 4: the arithmetic -------------------------------------------------------------------------------

float exp2(float t);  ///< t in [-64, 0]
std::uint64_t weight(float t);
float log2(float x);  ///< x > 0, and finite
/// Natural, of a token with logarithm `t` where all candidates' weights sum up to `sum`.
float log_probability(float t, std::uint64_t sum);
/// floor(P * sum / 2^32), P of a top_p below 1.
std::uint64_t top_p_share(float top_p, std::uint64_t sum);
/// floor(u * sum / 2^24), u of 24 bits.
std::uint64_t drawn_share(std::uint32_t u, std::uint64_t sum);
std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key);

// --- Section 1: the steps ------------------------------------------------------------------------------------------

struct candidate {
  std::int64_t token;
  float x;               ///< the logit after penalties, bias and mask
  float t;               ///< log2 of the weight
  std::uint64_t weight;  ///< in units of 2^-40
};

/// A row before its draw.
struct filtered_row {
  sample_status status = sample_status::ok;
  std::vector<candidate> candidates;  ///< best first; none if the status is not ok
  std::vector<candidate> kept;        ///< what the filters left of them, by ascending id
};

/// Steps 1 to 11.
filtered_row filter(const value_matrix& logits, std::int64_t row, const sample_params& params);

/// Step 12, for a row whose status is ok: one of its kept candidates.
candidate draw(const filtered_row& row, std::uint64_t seed, std::uint64_t offset);

/// Every byte that shortlist::sample writes, for host memory. Arguments are trusted; parameters in arrays are not.
void sample(const value_matrix& logits, const sample_params& params, const sample_output& out);

}  // namespace shortlist::reference
