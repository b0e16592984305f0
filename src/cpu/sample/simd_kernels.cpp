// Sampling kernels in vector instructions: one source for AVX-512, AVX2 and NEON, compiled once for each.
//
// A weight is rounded to an integer by adding 2^52 to it as a double: the sum's low bits are the integer. Sums of
// weights are sums of those bits; what the 2^52 themselves add is taken off once, at the end.
#include "cpu/targets.hpp"
// Highway compiles this file once for each target, each time in a namespace of its own.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/sample/simd_kernels.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// Highway's headers come first: foreach_target includes this file again from here.
#include <algorithm>
#include <cstring>

#include "core/sampling.hpp"
#include "cpu/sample/kernels.hpp"

HWY_BEFORE_NAMESPACE();
namespace shortlist::cpu::HWY_NAMESPACE {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_NEON

namespace hn = hwy::HWY_NAMESPACE;

using float_tag = hn::ScalableTag<float>;
using int_tag = hn::RebindToSigned<float_tag>;
using double_tag = hn::ScalableTag<double>;
using long_tag = hn::ScalableTag<std::uint64_t>;
using half_tag = hn::Half<float_tag>;
using floats = hn::Vec<float_tag>;
using longs = hn::Vec<long_tag>;
using mask = hn::Mask<float_tag>;
constexpr float_tag kFloats;
constexpr int_tag kInts;
constexpr double_tag kDoubles;
constexpr long_tag kLongs;
constexpr half_tag kHalf;
constexpr std::int64_t kLanes = HWY_LANES(float);
static_assert(kMinBlock % kLanes == 0);

constexpr std::uint64_t kBitsOf2To52 = 0x4330000000000000u;

HWY_INLINE floats load_wide(const float* from) { return hn::LoadU(kFloats, from); }
HWY_INLINE floats load_wide(const float16* from) {
  const hn::Rebind<hwy::float16_t, float_tag> narrow;
  return hn::PromoteTo(kFloats, hn::LoadU(narrow, reinterpret_cast<const hwy::float16_t*>(from)));
}
HWY_INLINE floats load_wide(const bfloat16* from) {
  const hn::Rebind<hwy::bfloat16_t, float_tag> narrow;
  return hn::PromoteTo(kFloats, hn::LoadU(narrow, reinterpret_cast<const hwy::bfloat16_t*>(from)));
}

template <class Stored>
constexpr Stored minus_infinity();
template <>
constexpr float minus_infinity<float>() {
  return kMinusInfinity;
}
template <>
constexpr float16 minus_infinity<float16>() {
  return {0xFC00};
}
template <>
constexpr bfloat16 minus_infinity<bfloat16>() {
  return {0xFF80};
}

/// Calls each(logits, i) for the kLanes logits from i on; behind the row's last they are -inf, which nothing finds.
template <class Stored, class Each>
HWY_INLINE void for_each_vector(const Stored* from, std::int64_t count, const Each& each) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) each(load_wide(from + i), i);
  if (i == count) return;
  Stored rest[kLanes];
  std::fill_n(rest, kLanes, minus_infinity<Stored>());
  std::memcpy(rest, from + i, static_cast<std::size_t>(count - i) * sizeof(Stored));
  each(load_wide(rest), i);
}

// --- opening a row --------------------------------------------------------------------------------------------------

/// Stores what belongs to a row of `count`, of the lanes that start at i.
HWY_INLINE void store_within(floats value, float* to, std::int64_t i, std::int64_t count) {
  if (i + kLanes <= count) {
    hn::StoreU(value, kFloats, to + i);
    return;
  }
  float rest[kLanes];
  hn::StoreU(value, kFloats, rest);
  std::memcpy(to + i, rest, static_cast<std::size_t>(count - i) * sizeof(float));
}

template <class Stored>
void widen(const void* values, std::int64_t count, float* out) {
  for_each_vector(
      static_cast<const Stored*>(values),
      count, [&](floats logit, std::int64_t i) HWY_ATTR __attribute__((always_inline)) {
        store_within(logit, out, i, count);
      });
}

void add_bias(float* logits, std::int64_t count, const float* bias) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    hn::StoreU(hn::Add(hn::LoadU(kFloats, logits + i), hn::LoadU(kFloats, bias + i)), kFloats, logits + i);
  }
  for (; i < count; ++i) logits[i] = core::add_once(logits[i], bias[i]);
}

void mask_bytes(float* logits, std::int64_t count, const std::uint8_t* allowed) {
  const hn::Rebind<std::uint8_t, float_tag> bytes;
  const floats none = hn::Set(kFloats, kMinusInfinity);
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const auto is_zero = hn::Eq(hn::PromoteTo(kInts, hn::LoadU(bytes, allowed + i)), hn::Zero(kInts));
    const floats logit = hn::LoadU(kFloats, logits + i);
    hn::StoreU(hn::IfThenElse(hn::RebindMask(kFloats, is_zero), none, logit), kFloats, logits + i);
  }
  for (; i < count; ++i) {
    if (allowed[i] == 0) logits[i] = kMinusInfinity;
  }
}

void mask_bits(float* logits, std::int64_t count, const std::uint32_t* allowed) {
  constexpr std::int64_t kWordBits = 32;
  const floats none = hn::Set(kFloats, kMinusInfinity);
  const auto lane_bits = hn::Shl(hn::Set(kInts, 1), hn::Iota(kInts, 0));
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const auto word = static_cast<std::int32_t>(allowed[i / kWordBits] >> (i % kWordBits));
    const auto is_set = hn::TestBit(hn::Set(kInts, word), lane_bits);
    const floats logit = hn::LoadU(kFloats, logits + i);
    hn::StoreU(hn::IfThenElse(hn::RebindMask(kFloats, is_set), logit, none), kFloats, logits + i);
  }
  for (; i < count; ++i) {
    if ((allowed[i / kWordBits] >> (i % kWordBits) & 1u) == 0) logits[i] = kMinusInfinity;
  }
}

// --- passes over a row ----------------------------------------------------------------------------------------------

template <class Stored>
bool scan(const void* values, std::int64_t count, std::int64_t block, float* maxima) {
  const auto* from = static_cast<const Stored*>(values);
  const floats none = hn::Set(kFloats, kMinusInfinity);
  mask nan = hn::Lt(none, none);
  for (std::int64_t first = 0; first < count; first += block) {
    floats a = none;
    floats b = none;
    const std::int64_t here = std::min(block, count - first);
    std::int64_t i = first;
    for (; i + 2 * kLanes <= first + here; i += 2 * kLanes) {
      const floats left = load_wide(from + i);
      const floats right = load_wide(from + i + kLanes);
      nan = hn::Or(nan, hn::Or(hn::IsNaN(left), hn::IsNaN(right)));
      a = hn::Max(a, left);
      b = hn::Max(b, right);
    }
    for_each_vector(
        from + i, first + here - i, [&](floats logit, std::int64_t) HWY_ATTR __attribute__((always_inline)) {
          nan = hn::Or(nan, hn::IsNaN(logit));
          a = hn::Max(a, logit);
        });
    *maxima++ = hn::GetLane(hn::MaxOfLanes(kFloats, hn::Max(a, b)));
  }
  return !hn::AllFalse(kFloats, nan);
}

template <class Stored>
std::int64_t count_from(const void* values, std::int64_t count, float from) {
  const floats least = hn::Set(kFloats, from);
  std::int64_t found = 0;
  for_each_vector(
      static_cast<const Stored*>(values),
      count, [&](floats logit, std::int64_t) HWY_ATTR __attribute__((always_inline)) {
        found += static_cast<std::int64_t>(hn::CountTrue(kFloats, hn::Ge(logit, least)));
      });
  return found;
}

template <class Stored>
std::int64_t collect(const void* values, std::int64_t count, float from, float below, std::uint32_t first_id,
                     std::uint64_t* out) {
  const floats least = hn::Set(kFloats, from);
  const floats limit = hn::Set(kFloats, below);
  std::int64_t found = 0;
  for_each_vector(
      static_cast<const Stored*>(values),
      count, [&](floats logit, std::int64_t i) HWY_ATTR __attribute__((always_inline)) {
        const mask inside = hn::AndNot(hn::Ge(logit, limit), hn::Ge(logit, least));
        if (hn::AllFalse(kFloats, inside)) return;
        HWY_ALIGN float logits[kLanes];
        hn::Store(logit, kFloats, logits);
        std::uint8_t bits[8] = {};
        hn::StoreMaskBits(kFloats, inside, bits);
        std::uint32_t set = 0;
        std::memcpy(&set, bits, sizeof(set));
        for (; set != 0; set &= set - 1) {
          const int lane = __builtin_ctz(set);
          out[found++] = logit_and_id(logits[lane], first_id + static_cast<std::uint32_t>(i + lane));
        }
      });
  return found;
}

// --- weights --------------------------------------------------------------------------------------------------------

/// core::exponent_of.
HWY_INLINE floats exponents(floats logit, floats largest, floats steepness) {
  const floats t = hn::Mul(hn::Sub(logit, largest), steepness);
  return hn::IfThenZeroElse(hn::Eq(logit, largest), t);
}

/// The weights of the lanes of `where`, whose t reach core::kLeastExponent, as floats that are not rounded yet; 0
/// elsewhere.
HWY_INLINE floats unrounded(floats t, mask where) {
  const floats rounder = hn::Set(kFloats, core::kRounder);
  const floats shifted = hn::Add(t, rounder);  // its low bits are t's nearest integer
  const floats f = hn::Sub(t, hn::Sub(shifted, rounder));
  floats p = hn::Set(kFloats, core::kExp2[6]);
  for (int i = 5; i >= 0; --i) p = hn::MulAdd(p, f, hn::Set(kFloats, core::kExp2[i]));
  const auto exponent =
      hn::ShiftLeft<23>(hn::Add(hn::BitCast(kInts, shifted), hn::Set(kInts, std::int32_t{core::kWeightBits})));
  return hn::IfThenElseZero(where, hn::BitCast(kFloats, hn::Add(hn::BitCast(kInts, p), exponent)));
}

/// The rounded weights of one half of the lanes, each with kBitsOf2To52 added.
HWY_INLINE longs rounded_lower(floats weight) {
  const auto wide = hn::PromoteTo(kDoubles, hn::LowerHalf(kHalf, weight));
  return hn::BitCast(kLongs, hn::Add(wide, hn::Set(kDoubles, 0x1p+52)));
}
HWY_INLINE longs rounded_upper(floats weight) {
  const auto wide = hn::PromoteTo(kDoubles, hn::UpperHalf(kHalf, weight));
  return hn::BitCast(kLongs, hn::Add(wide, hn::Set(kDoubles, 0x1p+52)));
}

/// The sum of weights whose halves were summed up in these, over all vectors of `count` logits.
HWY_INLINE std::uint64_t sum_of(longs lower, longs upper, std::int64_t count) {
  const std::int64_t lanes = (count + kLanes - 1) / kLanes * kLanes;
  HWY_ALIGN std::uint64_t sums[hn::MaxLanes(kLongs)];
  hn::Store(hn::Add(lower, upper), kLongs, sums);
  std::uint64_t sum = 0;  // modulo 2^64, for which SumOfLanes would have signed numbers overflow on AVX-512
  for (const std::uint64_t of_lane : sums) sum += of_lane;
  return sum - static_cast<std::uint64_t>(lanes) * kBitsOf2To52;
}

template <class Stored>
std::uint64_t weigh(const void* values, std::int64_t count, float from, const weight_scale& scale) {
  const floats least = hn::Set(kFloats, std::max(from, scale.lightest));
  const floats largest = hn::Set(kFloats, scale.largest);
  const floats steepness = hn::Set(kFloats, scale.steepness);
  longs lower = hn::Zero(kLongs);
  longs upper = hn::Zero(kLongs);
  for_each_vector(
      static_cast<const Stored*>(values),
      count, [&](floats logit, std::int64_t) HWY_ATTR __attribute__((always_inline)) {
        const floats weight = unrounded(exponents(logit, largest, steepness), hn::Ge(logit, least));
        lower = hn::Add(lower, rounded_lower(weight));
        upper = hn::Add(upper, rounded_upper(weight));
      });
  return sum_of(lower, upper, count);
}

/// Stores the weights of kLanes logits.
HWY_INLINE void store_weights(floats weight, std::uint64_t* to) {
  const longs taken_off = hn::Set(kLongs, kBitsOf2To52);
  hn::StoreU(hn::Sub(rounded_lower(weight), taken_off), kLongs, to);
  hn::StoreU(hn::Sub(rounded_upper(weight), taken_off), kLongs, to + kLanes / 2);
}

template <class Stored>
std::uint64_t fill_bins(const void* values, std::int64_t count, float from, const weight_scale& scale,
                        std::uint64_t* sums) {
  const floats lightest = hn::Set(kFloats, scale.lightest);
  const floats least = hn::Set(kFloats, std::max(from, scale.lightest));
  const floats largest = hn::Set(kFloats, scale.largest);
  const floats steepness = hn::Set(kFloats, scale.steepness);
  longs lower = hn::Zero(kLongs);
  longs upper = hn::Zero(kLongs);
  for_each_vector(
      static_cast<const Stored*>(values),
      count, [&](floats logit, std::int64_t) HWY_ATTR __attribute__((always_inline)) {
        const floats t = exponents(logit, largest, steepness);
        const floats weight = unrounded(t, hn::Ge(logit, lightest));
        const mask binned = hn::Ge(logit, least);
        const floats other = hn::IfThenZeroElse(binned, weight);
        lower = hn::Add(lower, rounded_lower(other));
        upper = hn::Add(upper, rounded_upper(other));
        if (hn::AllFalse(kFloats, binned)) return;
        std::uint64_t weights[kLanes];
        store_weights(hn::IfThenElseZero(binned, weight), weights);
        const floats bin = hn::Mul(hn::IfThenElseZero(binned, t), hn::Set(kFloats, -kBinsPerExponent));
        std::int32_t bins[kLanes];
        hn::StoreU(hn::ConvertTo(kInts, bin), kInts, bins);
        for (std::int64_t lane = 0; lane < kLanes; ++lane) sums[bins[lane]] += weights[lane];
      });
  return sum_of(lower, upper, count);
}

void weigh_each(const float* logits, std::int64_t count, const weight_scale& scale, std::uint64_t* weights) {
  const floats least = hn::Set(kFloats, scale.lightest);
  const floats largest = hn::Set(kFloats, scale.largest);
  const floats steepness = hn::Set(kFloats, scale.steepness);
  for_each_vector(
      logits, count, [&](floats logit, std::int64_t i) HWY_ATTR __attribute__((always_inline)) {
        const floats weight = unrounded(exponents(logit, largest, steepness), hn::Ge(logit, least));
        if (i + kLanes <= count) {
          store_weights(weight, weights + i);
          return;
        }
        std::uint64_t rest[kLanes];
        store_weights(weight, rest);
        std::memcpy(weights + i, rest, static_cast<std::size_t>(count - i) * sizeof(std::uint64_t));
      });
}

constexpr sample_kernels kKernels = {
    {widen<float>, widen<float16>, widen<bfloat16>},
    add_bias,
    mask_bytes,
    mask_bits,
    {scan<float>, scan<float16>, scan<bfloat16>},
    {count_from<float>, count_from<float16>, count_from<bfloat16>},
    {collect<float>, collect<float16>, collect<bfloat16>},
    {weigh<float>, weigh<float16>, weigh<bfloat16>},
    {fill_bins<float>, fill_bins<float16>, fill_bins<bfloat16>},
    weigh_each,
};

#endif
}  // namespace shortlist::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shortlist::cpu {

const sample_kernels& simd_sample_kernels(isa which) {
#if HWY_TARGETS & HWY_AVX3
  if (has_avx512(which)) return N_AVX3::kKernels;
#endif
#if HWY_TARGETS & HWY_AVX2
  if (which == isa::avx2) return N_AVX2::kKernels;
#endif
#if HWY_TARGETS & HWY_NEON
  if (has_neon(which)) return N_NEON::kKernels;
#endif
  return scalar_sample_kernels();
}

}  // namespace shortlist::cpu
#endif
