// The arrays of a case of sampling's tests: made row by row, so that a row can be put among others, then laid out.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "conformance/sample_cases.hpp"

namespace shortlist::conformance {

/// What a row's answer depends on, and nothing else.
struct sample_row {
  std::vector<std::uint64_t> logits;  ///< the bits of each
  float temperature = 1.0f;
  std::int32_t top_k = 0;
  float top_p = 1.0f;
  float min_p = 0.0f;
  std::uint64_t seed = 0;
  std::uint64_t offset = 0;
  float repetition = 1.0f;
  float presence = 0.0f;
  float frequency = 0.0f;
  std::vector<std::int32_t> prompt;
  std::vector<std::int32_t> generated;
  std::vector<float> bias;            ///< empty: none
  std::vector<std::uint8_t> allowed;  ///< the same; 0 or not, a token
};

/// The rows of a case; the same on every machine.
std::vector<sample_row> make_rows(const sample_case& what);

/// The arrays that a call reads.
namespace input {
enum array : std::size_t {
  logits,
  temperature,
  top_k,
  top_p,
  min_p,
  seed,
  offset,
  repetition,
  presence,
  frequency,
  prompt_begins,
  prompt_tokens,
  generated_begins,
  generated_tokens,
  bias,
  mask,
  kCount
};
inline constexpr std::string_view kNames[kCount] = {"logits",
                                                    "temperature",
                                                    "top_k",
                                                    "top_p",
                                                    "min_p",
                                                    "seed",
                                                    "offset",
                                                    "repetition",
                                                    "presence",
                                                    "frequency",
                                                    "prompt's begins",
                                                    "prompt's tokens",
                                                    "generated's begins",
                                                    "generated's tokens",
                                                    "bias",
                                                    "mask"};
}  // namespace input

template <std::size_t Count>
using byte_arrays = std::array<std::vector<std::byte>, Count>;  ///< an array that is not given is empty
template <std::size_t Count>
using addresses = std::array<void*, Count>;  ///< of those arrays, on some device; null where one is not given

/// A case's arrays. Each ends with its last element, and what lies beside the rows' own elements is poison.
struct sample_data {
  byte_arrays<input::kCount> arrays;
  std::int64_t first = 0;  ///< element at which logits, bias and mask start: their alignment is only that of their type
  sample_params common;  ///< parameters that are no arrays, strides and kinds; those that are arrays are poisoned here
  value_matrix logits;   ///< of null data

  /// The arguments of a call that finds the arrays at these addresses.
  sample_params params_at(const addresses<input::kCount>& at) const;
  value_matrix logits_at(const addresses<input::kCount>& at) const;
};

/// Lays rows out as the case says. Parameters that it has in common are those of the first row.
sample_data lay_out(const sample_case& what, const std::vector<sample_row>& rows);

inline sample_data make_data(const sample_case& what) { return lay_out(what, make_rows(what)); }

}  // namespace shortlist::conformance
