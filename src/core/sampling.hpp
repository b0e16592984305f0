// The steps of sampling, to the last bit, as host and device both compile them. The definition and its reasons:
// docs/sampling.md.
#pragma once

#include <cmath>
#include <cstdint>
#include <iterator>

#include "core/host_device.hpp"
#include "core/order.hpp"
#include "core/score.hpp"
#include "shortlist/sample.hpp"

namespace shortlist::core {

// --- fp32 operations, rounded once each -----------------------------------------------------------------------------

#ifdef __CUDA_ARCH__
SHORTLIST_HOST_DEVICE float add_once(float a, float b) { return __fadd_rn(a, b); }
SHORTLIST_HOST_DEVICE float multiply_once(float a, float b) { return __fmul_rn(a, b); }
SHORTLIST_HOST_DEVICE float divide_once(float a, float b) { return __fdiv_rn(a, b); }
#else
SHORTLIST_HOST_DEVICE float add_once(float a, float b) { return a + b; }
SHORTLIST_HOST_DEVICE float multiply_once(float a, float b) { return a * b; }
SHORTLIST_HOST_DEVICE float divide_once(float a, float b) { return a / b; }
#endif

// --- powers and logarithms of two -----------------------------------------------------------------------------------

/// 2^f for f in [-1/2, 1/2] is the polynomial of these, the first at f^0: minimax, relative error below 6e-9 before
/// rounding.
inline constexpr float kExp2[] = {1.0f,           0x1.62e430p-1f,  0x1.ebfbe0p-3f, 0x1.c6af6cp-5f,
                                  0x1.3b29e4p-7f, 0x1.5f0896p-10f, 0x1.446c82p-13f};
/// log2(1 + g) / g for g in [sqrt(1/2) - 1, sqrt(2) - 1]: minimax, error below 6e-9 before rounding.
inline constexpr float kLog2[] = {0x1.715476p+0f,  -0x1.715470p-1f, 0x1.ec7080p-2f,  -0x1.715a68p-2f, 0x1.2782e6p-2f,
                                  -0x1.eac696p-3f, 0x1.a265f4p-3f,  -0x1.865fecp-3f, 0x1.80ab48p-3f,  -0x1.cebec2p-4f};
inline constexpr float kLog2OfE = 0x1.715476p+0f;
inline constexpr float kLnOf2 = 0x1.62e430p-1f;

inline constexpr int kWeightBits = 40;              ///< a weight of 1 is 2^40
inline constexpr float kLeastExponent = -64.0f;     ///< weights of less than 2^-41 are 0, and so are all below this
inline constexpr float kRounder = 0x1.8p+23f;       ///< x + it - it is the integer next to x, ties to even
inline constexpr float kMostSteepness = 0x1p+100f;  ///< of an extremely low temperature
inline constexpr float kSmallestNormal = 0x1p-126f;

/// c[0] + c[1] x + .., from the last term on, one fma each. Unrolled by templates: a GPU has no arrays of the host.
template <const auto& Terms, int At = 0>
SHORTLIST_HOST_DEVICE float polynomial(float x) {
  constexpr float kTerm = Terms[At];
  if constexpr (At + 1 == static_cast<int>(std::size(Terms)))
    return kTerm;
  else
    return step_dot(polynomial<Terms, At + 1>(x), x, kTerm);
}

/// 2^(t + Scale) for t in [kLeastExponent, 0].
template <int Scale = 0>
SHORTLIST_HOST_DEVICE float power_of_two(float t) {
  static_assert(Scale % 2 == 0, "so that ties go to the same integer with it");
  constexpr float kScaled = kRounder + static_cast<float>(Scale);
  const float rounded = add_once(t, kScaled);  // its lowest bits are those of the nearest integer + Scale
  const float f = add_once(t, -add_once(rounded, -kScaled));  // exact
  return float_from_bits(float_bits(polynomial<kExp2>(f)) + (float_bits(rounded) << 23));
}
/// The weight 2^t in units of 2^-40, for t <= 0; t may be -inf.
SHORTLIST_HOST_DEVICE std::uint64_t weight_of(float t) {
  if (!(t >= kLeastExponent)) return 0;
  const float scaled = power_of_two<kWeightBits>(t);
#ifdef __CUDA_ARCH__
  return __float2ull_rn(scaled);
#else
  return static_cast<std::uint64_t>(std::nearbyint(scaled));
#endif
}

/// log2(x) for a positive finite x.
SHORTLIST_HOST_DEVICE float log_of_two(float x) {
  float exponent = 0.0f;
  if (x < kSmallestNormal) {
    x = multiply_once(x, 0x1p+24f);
    exponent = -24.0f;
  }
  constexpr std::uint32_t kRootOfHalf = 0x3F3504F3u;  // the least mantissa that is taken as it is
  const std::uint32_t above = float_bits(x) - kRootOfHalf;
  const std::int32_t n = static_cast<std::int32_t>(above) >> 23;
  const float g = add_once(float_from_bits((above & 0x007FFFFFu) + kRootOfHalf), -1.0f);
  const float q = polynomial<kLog2>(g);
  return step_dot(q, g, add_once(exponent, static_cast<float>(n)));
}

// --- a token's logit ------------------------------------------------------------------------------------------------

/// What penalties a row has.
struct penalties {
  float repetition = 1.0f;
  float presence = 0.0f;
  float frequency = 0.0f;
};

/// The logit of a token that is in the row's history: `generated` times in what was generated, or in the prompt alone.
SHORTLIST_HOST_DEVICE float penalized(float logit, std::int32_t generated, penalties by) {
  float x = logit > 0.0f ? divide_once(logit, by.repetition) : multiply_once(logit, by.repetition);
  if (generated > 0) {
    x = add_once(x, -multiply_once(by.frequency, static_cast<float>(generated)));
    x = add_once(x, -by.presence);
  }
  return x;
}

// --- a row's parameters ---------------------------------------------------------------------------------------------

/// The parameters of one row, made ready.
struct row_params {
  bool valid;           ///< all are within what sample_params allows
  bool greedy;          ///< temperature 0
  std::int32_t top_k;   ///< 0 if off
  std::uint32_t top_p;  ///< in units of 2^-32
  bool top_p_off;
  bool min_p_off;
  float steepness;       ///< t = (logit - the largest) * steepness is a weight's logarithm to base two
  float least_exponent;  ///< of min_p: log2(min_p), which t must reach
  std::uint64_t seed;
  std::uint64_t offset;
  penalties by;
};

template <class T>
SHORTLIST_HOST_DEVICE T value_for(const per_row<T>& parameter, std::int64_t row) {
  return parameter.rows ? parameter.rows[row] : parameter.common;
}

SHORTLIST_HOST_DEVICE penalties penalties_of(const sample_params& params, std::int64_t row) {
  return {value_for(params.repetition_penalty, row), value_for(params.presence_penalty, row),
          value_for(params.frequency_penalty, row)};
}

SHORTLIST_HOST_DEVICE bool is_finite(float x) { return add_once(x, -x) == 0.0f; }

SHORTLIST_HOST_DEVICE row_params params_of(const sample_params& params, std::int64_t row, std::int64_t vocab) {
  const float temperature = value_for(params.temperature, row);
  const float top_p = value_for(params.top_p, row);
  const float min_p = value_for(params.min_p, row);
  const std::int32_t top_k = value_for(params.top_k, row);
  row_params made{};
  made.by = penalties_of(params, row);
  made.valid = temperature >= 0.0f && is_finite(temperature) && top_p == top_p && min_p >= 0.0f && min_p <= 1.0f &&
               made.by.repetition > 0.0f && is_finite(made.by.repetition) && is_finite(made.by.presence) &&
               is_finite(made.by.frequency);
  if (!made.valid) return made;
  made.greedy = temperature == 0.0f;
  made.top_k = top_k >= 1 && top_k < vocab ? top_k : 0;
  made.top_p_off = top_p >= 1.0f;
  made.min_p_off = min_p == 0.0f;
  const float share = made.top_p_off || top_p <= 0.0f ? 0.0f : multiply_once(top_p, 0x1p+32f);
#ifdef __CUDA_ARCH__
  made.top_p = __float2uint_rn(share);
#else
  made.top_p = static_cast<std::uint32_t>(std::nearbyint(share));
#endif
  const float steep = made.greedy ? kLog2OfE : divide_once(kLog2OfE, temperature);
  made.steepness = steep < kMostSteepness ? steep : kMostSteepness;
  made.least_exponent = made.min_p_off ? 0.0f : log_of_two(min_p);
  made.seed = value_for(params.seed, row);
  made.offset = value_for(params.offset, row);
  return made;
}

/// The logarithm to base two of a token's weight: 0 for the largest logit, infinite or not.
SHORTLIST_HOST_DEVICE float exponent_of(float logit, float largest, float steepness) {
  return logit == largest ? 0.0f : multiply_once(add_once(logit, -largest), steepness);
}

// --- sums of weights ------------------------------------------------------------------------------------------------

SHORTLIST_HOST_DEVICE std::uint64_t multiply_high(std::uint64_t a, std::uint64_t b) {
#ifdef __CUDA_ARCH__
  return __umul64hi(a, b);
#else
  __extension__ using wide = unsigned __int128;
  return static_cast<std::uint64_t>((static_cast<wide>(a) * b) >> 64);
#endif
}

/// top_p keeps the tokens before which, in the one order, less than this has been kept; and the first.
SHORTLIST_HOST_DEVICE std::uint64_t share_of(std::uint64_t total, std::uint32_t top_p) {
  return multiply_high(static_cast<std::uint64_t>(top_p) << 32, total);
}

/// The draw takes the first token, by id, with which the sum of the kept weights exceeds this.
SHORTLIST_HOST_DEVICE std::uint64_t drawn_of(std::uint64_t total, std::uint32_t random) {
  return multiply_high(static_cast<std::uint64_t>(random >> 8) << 40, total);
}

/// The natural logarithm of a probability: weight 2^t, of a total of weights.
SHORTLIST_HOST_DEVICE float log_probability(float t, std::uint64_t total) {
#ifdef __CUDA_ARCH__
  const float sum = __ull2float_rn(total);
#else
  const float sum = static_cast<float>(total);
#endif
  const float log_of_total = log_of_two(multiply_once(sum, 0x1p-40f));  // an exact product
  return multiply_once(add_once(t, -log_of_total), kLnOf2);
}

// --- the generator --------------------------------------------------------------------------------------------------

/// The first word of Philox4x32-10 with the seed as key and the counter (offset, 0). Source: Salmon et al., SC 2011.
SHORTLIST_HOST_DEVICE std::uint32_t philox(std::uint64_t seed, std::uint64_t offset) {
  constexpr std::uint64_t kMultiplierA = 0xD2511F53u;
  constexpr std::uint64_t kMultiplierB = 0xCD9E8D57u;
  constexpr std::uint32_t kWeylA = 0x9E3779B9u;
  constexpr std::uint32_t kWeylB = 0xBB67AE85u;
  constexpr int kRounds = 10;
  auto key_a = static_cast<std::uint32_t>(seed);
  auto key_b = static_cast<std::uint32_t>(seed >> 32);
  std::uint32_t c[4] = {static_cast<std::uint32_t>(offset), static_cast<std::uint32_t>(offset >> 32), 0, 0};
  for (int round = 0; round < kRounds; round++) {
    const std::uint64_t a = kMultiplierA * c[0];
    const std::uint64_t b = kMultiplierB * c[2];
    const std::uint32_t next[4] = {static_cast<std::uint32_t>(b >> 32) ^ c[1] ^ key_a, static_cast<std::uint32_t>(b),
                                   static_cast<std::uint32_t>(a >> 32) ^ c[3] ^ key_b, static_cast<std::uint32_t>(a)};
    for (int i = 0; i < 4; i++) c[i] = next[i];
    key_a += kWeylA;
    key_b += kWeylB;
  }
  return c[0];
}

}  // namespace shortlist::core
