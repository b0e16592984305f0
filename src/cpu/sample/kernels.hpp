// What an instruction set provides for sampling: passes over a row's logits, each to the bit what core/sampling.hpp
// says.
//
// A row is f32, f16 or bf16, its logits side by side. A filter is a threshold on the logit, since the logarithm t of a
// weight never rises where the logit falls. Thresholds are above -inf, so that a token at -inf is never found.
#pragma once

#include <cstdint>
#include <limits>

#include "core/order.hpp"
#include "cpu/isa.hpp"

namespace shortlist::cpu {

inline constexpr float kLeastLogit = std::numeric_limits<float>::lowest();  ///< what every candidate reaches
inline constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

/// Below this t every weight rounds to 0: 2^-42 is a quarter of a unit.
inline constexpr float kWeightlessExponent = -42.0f;

/// Bins of the logarithms t in [kWeightlessExponent, 0], the best first.
inline constexpr int kBins = 2048;
inline constexpr float kBinsPerExponent = 48.0f;
static_assert(-kWeightlessExponent * kBinsPerExponent < kBins);
inline int bin_of(float t) { return static_cast<int>(t * -kBinsPerExponent); }

/// What turns a row's logits into weights.
struct weight_scale {
  float largest;    ///< of the row's logits
  float steepness;  ///< t = (logit - largest) * steepness
  float lightest;   ///< the least logit whose t reaches kWeightlessExponent
};

struct sample_kernels {
  using widen_fn = void (*)(const void* values, std::int64_t count, float* out);
  widen_fn widen[3];  // [value_type] of f32, f16, bf16, here and below

  /// Steps 2 and 3 of docs/sampling.md. Bits are counted from the first word's least significant one.
  void (*add_bias)(float* logits, std::int64_t count, const float* bias);
  void (*mask_bytes)(float* logits, std::int64_t count, const std::uint8_t* allowed);
  void (*mask_bits)(float* logits, std::int64_t count, const std::uint32_t* allowed);

  /// The largest logit of each block of `block` logits, a multiple of kMinBlock; returns whether any is NaN, in which
  /// case the maxima mean nothing.
  using scan_fn = bool (*)(const void* values, std::int64_t count, std::int64_t block, float* maxima);
  scan_fn scan[3];

  /// How many logits are >= `from`.
  using count_from_fn = std::int64_t (*)(const void* values, std::int64_t count, float from);
  count_from_fn count_from[3];

  /// Appends logit_and_id of every logit in [from, below), ids from first_id on and ascending; returns how many. With
  /// `below` NaN, of every logit >= `from`.
  using collect_fn = std::int64_t (*)(const void* values, std::int64_t count, float from, float below,
                                      std::uint32_t first_id, std::uint64_t* out);
  collect_fn collect[3];

  /// The sum of the weights of all logits >= `from`.
  using weigh_fn = std::uint64_t (*)(const void* values, std::int64_t count, float from, const weight_scale& scale);
  weigh_fn weigh[3];

  /// Adds the weight of every logit >= `from` to the sum of its bin, and returns the sum of the weights of all others.
  /// `sums` are kBins.
  using fill_bins_fn = std::uint64_t (*)(const void* values, std::int64_t count, float from, const weight_scale& scale,
                                         std::uint64_t* sums);
  fill_bins_fn fill_bins[3];

  /// The weight of each logit.
  void (*weigh_each)(const float* logits, std::int64_t count, const weight_scale& scale, std::uint64_t* weights);
};

inline constexpr std::int64_t kMinBlock = 32;

/// A token as one number: larger is better in the one order.
inline std::uint64_t logit_and_id(float logit, std::uint32_t id) {
  return (static_cast<std::uint64_t>(core::ascending_key(logit)) << 32) | static_cast<std::uint32_t>(~id);
}
inline std::uint32_t token_key(std::uint64_t token) { return static_cast<std::uint32_t>(token >> 32); }
inline float token_logit(std::uint64_t token) { return core::from_ascending_key(token_key(token)); }
inline std::uint32_t token_id(std::uint64_t token) { return ~static_cast<std::uint32_t>(token); }

/// The table of the instruction set that is in use. @throws what current_isa does.
const sample_kernels& current_sample_kernels();

const sample_kernels& scalar_sample_kernels();
/// @pre `which` is available and not scalar.
const sample_kernels& simd_sample_kernels(isa which);

}  // namespace shortlist::cpu
