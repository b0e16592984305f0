// Row-wise top k kernels in vector instructions: one source for AVX-512, AVX2 and NEON, compiled once for each.
//
// A count is one comparison and one subtraction a vector, so that a threshold search over keys in the first cache costs
// less than reading the row did. Columns are written by compressing a vector of column numbers.
#include "cpu/targets.hpp"
// Highway compiles this file once for each target, each time in a namespace of its own.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/top_k/simd_kernels.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// Highway's headers come first: foreach_target includes this file again from here.
#include <algorithm>
#include <cstring>

#include "cpu/top_k/kernels.hpp"

HWY_BEFORE_NAMESPACE();
namespace shortlist::cpu::HWY_NAMESPACE {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_NEON

namespace hn = hwy::HWY_NAMESPACE;

using float_tag = hn::ScalableTag<float>;
using int_tag = hn::RebindToSigned<float_tag>;
using floats = hn::Vec<float_tag>;
using ints = hn::Vec<int_tag>;
constexpr float_tag kFloats;
constexpr int_tag kInts;
constexpr std::int64_t kLanes = HWY_LANES(float);
static_assert(kLanes <= kKeySlack);

HWY_INLINE floats load_wide(const float* from) { return hn::LoadU(kFloats, from); }
HWY_INLINE floats load_wide(const float16* from) {
  const hn::Rebind<hwy::float16_t, float_tag> narrow;
  return hn::PromoteTo(kFloats, hn::LoadU(narrow, reinterpret_cast<const hwy::float16_t*>(from)));
}
HWY_INLINE floats load_wide(const bfloat16* from) {
  const hn::Rebind<hwy::bfloat16_t, float_tag> narrow;
  return hn::PromoteTo(kFloats, hn::LoadU(narrow, reinterpret_cast<const hwy::bfloat16_t*>(from)));
}

HWY_INLINE ints keys_of(floats value) {
  const ints bits = hn::BitCast(kInts, hn::Add(value, hn::Zero(kFloats)));  // -0 + 0 == +0
  const ints key = hn::Xor(bits, hn::And(hn::ShiftRight<31>(bits), hn::Set(kInts, 0x7FFFFFFF)));
  return hn::IfThenElse(hn::RebindMask(kInts, hn::IsNaN(value)), hn::Set(kInts, kNanOrPadding), key);
}

template <class Stored>
row_summary make_keys(const void* values, std::int64_t count, order best, row_order_key* keys) {
  const auto* from = static_cast<const Stored*>(values);
  const floats sign = hn::Set(kFloats, best == order::smallest ? -0.0f : 0.0f);
  ints least = hn::Set(kInts, std::numeric_limits<row_order_key>::max());
  ints most = hn::Set(kInts, kNanOrPadding);
  floats sum = hn::Zero(kFloats);
  floats squares = hn::Zero(kFloats);
  const auto step = [&](const Stored* at, row_order_key* to) HWY_ATTR __attribute__((always_inline)) {
    const floats value = hn::Xor(load_wide(at), sign);
    const ints key = keys_of(value);
    hn::StoreU(key, kInts, to);
    least = hn::Min(least, key);
    most = hn::Max(most, key);
    sum = hn::Add(sum, value);
    squares = hn::MulAdd(value, value, squares);
  };
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) step(from + i, keys + i);
  if (i < count) {  // the rest, filled up with its first value, which changes neither least nor most
    Stored rest[kLanes];
    std::fill_n(rest, kLanes, from[i]);
    std::memcpy(rest, from + i, static_cast<std::size_t>(count - i) * sizeof(Stored));
    step(rest, keys + i);
  }
  const ints padding = hn::Set(kInts, kNanOrPadding);
  for (std::int64_t j = 0; j < kKeySlack; j += kLanes) hn::StoreU(padding, kInts, keys + count + j);
  return {{hn::GetLane(hn::MinOfLanes(kInts, least)), hn::GetLane(hn::MaxOfLanes(kInts, most))},
          hn::GetLane(hn::SumOfLanes(kFloats, sum)),
          hn::GetLane(hn::SumOfLanes(kFloats, squares))};
}

#if HWY_TARGET == HWY_AVX2
/// For each mask of eight lanes, the numbers of its lanes, four bits each. (Highway has such a table within Compress,
/// but GCC 12 copies it to the stack at every call.)
struct lane_table {
  constexpr lane_table() {
    for (std::uint32_t mask = 0; mask < 256; ++mask) {
      std::uint32_t at = 0;
      for (std::uint32_t lane = 0; lane < 8; ++lane) {
        if ((mask >> lane & 1u) != 0) lanes[mask] |= lane << (4 * at++);
      }
    }
  }
  std::uint32_t lanes[256] = {};
};
constexpr lane_table kLaneTable;
#endif

/// Stores the lanes of `mask` side by side and, behind them, what may be overwritten; returns how many. Not
/// CompressStore: compressing into memory is slow microcode on some processors, compressing a register is not.
HWY_INLINE std::int64_t store_where(ints value, hn::Mask<int_tag> mask, std::int32_t* out) {
#if HWY_TARGET == HWY_AVX2
  std::uint8_t bits[8] = {};
  hn::StoreMaskBits(kInts, mask, bits);
  const hn::RebindToUnsigned<int_tag> unsigned_tag;
  const auto shifts = hn::Mul(hn::Iota(unsigned_tag, 0), hn::Set(unsigned_tag, 4));
  const auto lanes =
      hn::And(hn::Shr(hn::Set(unsigned_tag, kLaneTable.lanes[bits[0]]), shifts), hn::Set(unsigned_tag, 7));
  hn::StoreU(hn::TableLookupLanes(value, hn::IndicesFromVec(kInts, lanes)), kInts, out);
#else
  hn::StoreU(hn::Compress(value, mask), kInts, out);
#endif
  return static_cast<std::int64_t>(hn::CountTrue(kInts, mask));
}

HWY_INLINE ints ones_where(hn::Mask<int_tag> mask) { return hn::VecFromMask(kInts, mask); }

std::int64_t count_from(const row_order_key* keys, std::int64_t count, row_order_key from) {
  const ints below = hn::Set(kInts, from - 1);
  constexpr std::int64_t kBlock = std::int64_t{1} << 24;  // counts of a lane stay within 32 bits
  std::int64_t all = 0;
  for (std::int64_t first = 0; first < count; first += kBlock) {
    const std::int64_t end = std::min(count, first + kBlock);
    ints a = hn::Zero(kInts);
    ints b = hn::Zero(kInts);
    std::int64_t i = first;
    for (; i + 2 * kLanes <= end; i += 2 * kLanes) {
      a = hn::Sub(a, ones_where(hn::Gt(hn::LoadU(kInts, keys + i), below)));
      b = hn::Sub(b, ones_where(hn::Gt(hn::LoadU(kInts, keys + i + kLanes), below)));
    }
    for (; i < end; i += kLanes) a = hn::Sub(a, ones_where(hn::Gt(hn::LoadU(kInts, keys + i), below)));
    all += hn::GetLane(hn::SumOfLanes(kInts, hn::Add(a, b)));
  }
  return all;
}

row_order_key least_from(const row_order_key* keys, std::int64_t count, row_order_key from) {
  const ints below = hn::Set(kInts, from - 1);
  const ints none = hn::Set(kInts, std::numeric_limits<row_order_key>::max());
  ints least = none;
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const ints key = hn::LoadU(kInts, keys + i);
    least = hn::Min(least, hn::IfThenElse(hn::Gt(key, below), key, none));
  }
  return hn::GetLane(hn::MinOfLanes(kInts, least));
}

std::int64_t keep_between(const row_order_key* keys, std::int64_t count, row_order_key from, row_order_key to,
                          row_order_key* out) {
  const ints below = hn::Set(kInts, from - 1);
  const ints limit = hn::Set(kInts, to);
  std::int64_t kept = 0;
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const ints key = hn::LoadU(kInts, keys + i);
    const auto inside = hn::And(hn::Gt(key, below), hn::Lt(key, limit));
    if (hn::AllFalse(kInts, inside)) continue;
    kept += store_where(key, inside, out + kept);
  }
  const ints padding = hn::Set(kInts, kNanOrPadding);
  for (std::int64_t j = 0; j < kKeySlack; j += kLanes) hn::StoreU(padding, kInts, out + kept + j);
  return kept;
}

/// Calls each(first column, mask of the best among kLanes columns) over a row. Padding is never among the best: it
/// comes behind all ties that `border` counts.
template <class Each>
HWY_INLINE void for_each_best(const row_order_key* keys, std::int64_t count, row_border border, const Each& each) {
  const ints limit = hn::Set(kInts, border.key);
  std::int64_t ties = border.ties;
  std::int64_t i = 0;
  for (; i < count && ties > 0; i += kLanes) {
    const ints key = hn::LoadU(kInts, keys + i);
    auto equal = hn::Eq(key, limit);
    auto here = static_cast<std::int64_t>(hn::CountTrue(kInts, equal));
    if (here > ties) {  // the last ones: the first `ties` of them, by a running count
      HWY_ALIGN row_order_key flags[kLanes];
      hn::Store(hn::VecFromMask(kInts, equal), kInts, flags);
      std::int64_t left = ties;
      for (row_order_key& flag : flags) {
        if (flag != 0 && left-- <= 0) flag = 0;
      }
      equal = hn::MaskFromVec(hn::Load(kInts, flags));
      here = ties;
    }
    ties -= here;
    each(i, hn::Or(hn::Gt(key, limit), equal));
  }
  for (; i < count; i += kLanes) each(i, hn::Gt(hn::LoadU(kInts, keys + i), limit));
}

std::int64_t best_columns(const row_order_key* keys, std::int64_t count, row_border border, std::uint32_t* columns) {
  std::int64_t found = 0;
  const ints lanes = hn::Iota(kInts, 0);
  auto* out = reinterpret_cast<std::int32_t*>(columns);
  for_each_best(
      keys, count, border, [&](std::int64_t i, hn::Mask<int_tag> best) HWY_ATTR __attribute__((always_inline)) {
        if (hn::AllFalse(kInts, best)) return;
        const ints column = hn::Add(hn::Set(kInts, static_cast<std::int32_t>(i)), lanes);
        found += store_where(column, best, out + found);
      });
  return found;
}

void best_mask(const row_order_key* keys, std::int64_t count, row_border border, std::uint8_t* mask) {
  const hn::Rebind<std::uint8_t, int_tag> bytes;
  for_each_best(
      keys, count, border, [&](std::int64_t i, hn::Mask<int_tag> best) HWY_ATTR __attribute__((always_inline)) {
        const auto flags = hn::DemoteTo(bytes, hn::IfThenElseZero(best, hn::Set(kInts, 1)));
        if (i + kLanes <= count) {
          hn::StoreU(flags, bytes, mask + i);
        } else {
          std::uint8_t rest[kLanes];
          hn::StoreU(flags, bytes, rest);
          std::memcpy(mask + i, rest, static_cast<std::size_t>(count - i));
        }
      });
}

void rank(const row_order_key* keys, std::int64_t count, std::uint32_t* ranks) {
  for (std::int64_t i = 0; i < count; ++i) {
    const ints mine = hn::Set(kInts, keys[i]);
    const ints place = hn::Set(kInts, static_cast<std::int32_t>(i));
    ints other = hn::Iota(kInts, 0);
    ints before = hn::Zero(kInts);
    for (std::int64_t j = 0; j < count; j += kLanes) {
      const ints key = hn::LoadU(kInts, keys + j);
      const auto first = hn::And(hn::Eq(key, mine), hn::Lt(other, place));
      before = hn::Sub(before, ones_where(hn::Or(hn::Gt(key, mine), first)));
      other = hn::Add(other, hn::Set(kInts, static_cast<std::int32_t>(kLanes)));
    }
    ranks[i] = static_cast<std::uint32_t>(hn::GetLane(hn::SumOfLanes(kInts, before)));
  }
}

std::int64_t collect(const row_order_key* keys, std::int64_t count, row_order_key from, std::uint32_t first_column,
                     std::uint64_t* out) {
  std::int64_t found = 0;
  const auto take = [&](std::int64_t i) HWY_ATTR __attribute__((always_inline)) {
    out[found++] = order_and_column(keys[i], first_column + static_cast<std::uint32_t>(i));
  };
  std::int64_t i = 0;
  if (from == kNanOrPadding) {
    for (; i < count; ++i) take(i);
    return found;
  }
  const ints below = hn::Set(kInts, from - 1);
  for (; i + kLanes <= count; i += kLanes) {
    const auto reached = hn::Gt(hn::LoadU(kInts, keys + i), below);
    if (hn::AllFalse(kInts, reached)) continue;
    std::uint8_t bits[8] = {};
    hn::StoreMaskBits(kInts, reached, bits);
    std::uint32_t set = 0;
    std::memcpy(&set, bits, sizeof(set));
    for (; set != 0; set &= set - 1) take(i + __builtin_ctz(set));
  }
  for (; i < count; ++i) {
    if (keys[i] >= from) take(i);
  }
  return found;
}

constexpr top_k_kernels kKernels = {{make_keys<float>, make_keys<float16>, make_keys<bfloat16>},
                                    count_from,
                                    least_from,
                                    keep_between,
                                    best_columns,
                                    best_mask,
                                    rank,
                                    collect};

#endif
}  // namespace shortlist::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shortlist::cpu {

const top_k_kernels& simd_top_k_kernels(isa which) {
#if HWY_TARGETS & HWY_AVX3
  if (has_avx512(which)) return N_AVX3::kKernels;
#endif
#if HWY_TARGETS & HWY_AVX2
  if (which == isa::avx2) return N_AVX2::kKernels;
#endif
#if HWY_TARGETS & HWY_NEON
  if (has_neon(which)) return N_NEON::kKernels;
#endif
  return scalar_top_k_kernels();
}

}  // namespace shortlist::cpu
#endif
