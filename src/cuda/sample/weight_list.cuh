// Weighing a row: every logit's weight, and the tokens listed that may be kept. See weight_sample.cu.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/device/value_pair.cuh"
#include "cuda/sample/weight_guess.cuh"
#include "cuda/sample/weight_parts.cuh"

namespace shortlist::cuda::sampling::weighing {

/// The tokens that a lane lists, in the first slots of its warp; then those of the warp together, in the others.
class token_list {
 public:
  __device__ __forceinline__ token_list(const lane_slots& slots, std::uint32_t slot_count)
      : first_joined_(slot_count * 3 / 5),
        room_((slot_count - first_joined_) * lane_slots::kTokensEach * kWarp),
        first_vector_(shared_address(slots.first)),
        begin_(slots.tokens()),
        end_(begin_),
        joined_(reinterpret_cast<listed_token*>(slots.first - threadIdx.x % kWarp + first_joined_ * kWarp)) {}
  /// Slots from this one on are about to be overwritten.
  __device__ __forceinline__ void vacate(std::uint32_t slot) { settle(address_before(slot)); }
  /// The end of the room for tokens while the lane's vectors from this one on are needed. @param vector its shared
  /// address
  __device__ __forceinline__ std::uint32_t room_before(std::uint32_t vector) const {
    return min(vector - (first_vector_ - begin_), address_before(first_joined_));
  }
  /// A token that finds no room is lost, which `settle` notes, after the last of a few with the same room.
  __device__ __forceinline__ void add(float x, std::uint32_t token, std::uint32_t room) {
    if (end_ < room) store_shared(end_, make_uint2(core::float_bits(x), token));
    end_ += kTokenPitch;
  }
  __device__ __forceinline__ void settle(std::uint32_t room) { crowded_ |= end_ > room ? 1 : 0; }
  /// All lanes of the warp come, when all is listed.
  __device__ __forceinline__ void join() {
    if (crowded()) end_ = begin_;
    const std::uint32_t mine = (end_ - begin_) / kTokenPitch;
    const std::uint32_t up_to = running_sum(mine);
    const std::uint32_t all = __shfl_sync(kFullWarp, up_to, kWarp - 1);
    if (all > room_) crowded_ = 1;
    __syncwarp();  // none reads vectors any more
    if (all <= room_) {
      listed_token* to = joined_ + up_to - mine;
      for (std::uint32_t from = begin_; from != end_; from += kTokenPitch) {
        const auto token = load_shared<uint2>(from);
        *to++ = {core::float_from_bits(token.x), token.y};
      }
    }
    count_ = all <= room_ ? all : 0;
    __syncwarp();
  }
  __device__ __forceinline__ bool crowded() const { return crowded_ != 0; }
  __device__ __forceinline__ std::uint32_t room() const { return room_; }
  /// Calls look(token) for the lane's share of the joined ones.
  template <class Look>
  __device__ __forceinline__ void for_each(Look look) const {
#pragma unroll 4
    for (std::uint32_t i = threadIdx.x % kWarp; i < count_; i += kWarp) look(joined_[i]);
  }

 private:
  __device__ __forceinline__ std::uint32_t address_before(std::uint32_t slot) const {
    return begin_ + slot * (lane_slots::kTokensEach * kTokenPitch);
  }

  std::uint32_t first_joined_;  // slot
  std::uint32_t room_;          // for joined tokens
  std::uint32_t first_vector_;  // shared address of the lane's
  std::uint32_t begin_;         // and of its tokens
  std::uint32_t end_;
  listed_token* joined_;
  std::uint32_t count_ = 0;    // of the joined ones
  std::uint32_t crowded_ = 0;  // 1 if a token was lost
};

/// Which of a lane's batch of vectors may be kept, as bits of a word.
template <class Stored>
struct batch_marks {
  static constexpr std::uint32_t kPerVector = 16 / sizeof(Stored);
  static constexpr std::uint32_t kBatch = batch_rounds<Stored>;
  static constexpr std::uint32_t kBoth = 0x00010001;  // of a word of two 16-bit values

  /// The bit of an element. Of fp32, a vector's begin at every eighth bit; of the others, words' at every second one,
  /// and a word's second element is in the upper half.
  static __device__ __forceinline__ constexpr std::uint32_t bit_of(std::uint32_t v, std::uint32_t e) {
    return sizeof(Stored) == 4 ? 8 * v + e : 8 * v + e / 2 * 2 + e % 2 * 16;
  }
  /// How many elements behind the batch's first one lies the one of a bit.
  static __device__ __forceinline__ std::uint32_t offset_of(std::uint32_t bit) {
    constexpr std::uint32_t kPitch = kWarp * kPerVector;  // from a vector to the next
    if constexpr (sizeof(Stored) == 4) return bit + bit / 8 * (kPitch - 8);
    return bit % 8 + bit / 8 % 2 * kPitch + bit / 16;
  }
  /// Marks of what reaches `least`, in both halves the upper half of a value: fp32 values are compared by theirs.
  static __device__ __forceinline__ std::uint32_t reaching(const uint4 (&raw)[kBatch], std::uint32_t least) {
    std::uint32_t marks = 0;
    if constexpr (sizeof(Stored) == 4) {
      constexpr std::uint32_t kHalf = kBatch / 2;
      const auto mark = [&](std::uint32_t a, std::uint32_t b, std::uint32_t bit) {
        marks |= pair_mask<bfloat16>(upper_halves(a, b), least) & (kBoth << bit);
      };
#pragma unroll
      for (std::uint32_t v = 0; v < kHalf; v++) {
        mark(raw[v].x, raw[v + kHalf].x, bit_of(v, 0));
        mark(raw[v].y, raw[v + kHalf].y, bit_of(v, 1));
        mark(raw[v].z, raw[v + kHalf].z, bit_of(v, 2));
        mark(raw[v].w, raw[v + kHalf].w, bit_of(v, 3));
      }
    } else {
      const auto mark = [&](std::uint32_t word, std::uint32_t bit) {
        marks |= pair_mask<Stored>(word, least) & (kBoth << bit);
      };
#pragma unroll
      for (std::uint32_t v = 0; v < kBatch; v++) {
        mark(raw[v].x, bit_of(v, 0));
        mark(raw[v].y, bit_of(v, 2));
        mark(raw[v].z, bit_of(v, 4));
        mark(raw[v].w, bit_of(v, 6));
      }
    }
    return marks;
  }
};

/// An exponent as the least logit that reaches it, by its upper half. Rounded, it is a little less.
template <class Stored>
struct logit_bound {
  static constexpr float kLeast = element_type_of<Stored>() == element_type::f16 ? -65504.0f : guessed_border::kEvery;
  std::uint32_t least;  // as `batch_marks` has it
  float value;          // the same
  float error;          // so much less, as an exponent

  __device__ __forceinline__ logit_bound(const whole_row_filter& filter, float bound) {
    const float x = bound == guessed_border::kEvery
                        ? kLeast
                        : core::add_once(filter.largest, core::divide_once(bound, filter.steepness));
    if constexpr (element_type_of<Stored>() == element_type::f16) {
      const __half half = __float2half_rd(x);
      least = __half_as_ushort(half);
      value = __half2float(half);
    } else {
      // Of a value, all bits below the upper half are 0, or all are 1 where it is negative.
      const std::uint32_t key = core::ascending_key(x) >> 16;
      value = core::from_ascending_key(key << 16);
      least = core::float_bits(value) >> 16;
    }
    least |= least << 16;
    error = bound - filter.exponent(value);
  }
  /// Whether a logit's upper half, too, reaches it only if the logit does, and it is less than wanted by no more.
  __device__ __forceinline__ bool is_within(float most_error) const {
    return sizeof(Stored) == 2 || (error <= most_error && value != 0.0f);  // some upper halves below 0 are -0
  }
};

/// Which tokens are listed, and which are kept without: by their logits, or, where bounds of these would be too far
/// off, by exponents. All warps of a row go by the same, so that no token that is left out is better than one that is
/// not.
template <class Stored>
struct listing {
  guessed_border border;
  logit_bound<Stored> floor;
  logit_bound<Stored> ceiling;
  bool by_logit;

  /// @param exact no bound may be less than the border's
  __device__ __forceinline__ listing(const whole_row_filter& filter, const guessed_border& guessed, bool exact)
      : border(guessed),
        floor(filter, guessed.floor),
        ceiling(guessed.flat() ? logit_bound<Stored>(filter, guessed.ceiling) : floor) {
    constexpr float kNear = 0.125f;  // of an exponent: hardly more is listed
    constexpr float kPart = 0.25f;   // of what lies between the bounds
    by_logit = guessed.everything() ? true
               : guessed.tied       ? false
               : guessed.flat()     ? !exact && ceiling.is_within(kPart * (guessed.ceiling - guessed.floor)) &&
                                      floor.is_within(kPart * (guessed.ceiling - guessed.floor))
                                : floor.is_within(kNear);
  }
  __device__ __forceinline__ bool is_above(float x, float exponent) const {
    if (border.tied) return x > border.logit;
    return border.flat() && (by_logit ? x >= ceiling.value : exponent >= border.ceiling);
  }
  /// The exponents that, exactly, what is above the ceiling reaches, and what is listed.
  __device__ __forceinline__ float least_above() const { return border.ceiling - (by_logit ? ceiling.error : 0.0f); }
  __device__ __forceinline__ float least_listed() const { return border.floor - (by_logit ? floor.error : 0.0f); }
  __device__ __forceinline__ bool reaches_floor(float x, float exponent) const {
    if (border.tied) return x >= border.logit;
    return by_logit ? x >= floor.value : exponent >= border.floor;
  }
};

/// What a lane has weighed.
struct weighed_sums {
  std::uint64_t all;
  std::uint64_t above;  // the ceiling
  std::uint32_t count_above;
};

/// The sum over a warp's lanes of no more than 16 weights each.
__device__ __forceinline__ std::uint64_t sum_of_few(std::uint64_t weight) {
  constexpr int kLowBits = 24;  // of 32 lanes, within a word; and so are the other bits
  static_assert(core::kWeightBits + 4 + 5 - kLowBits < 32);
  const std::uint32_t low = static_cast<std::uint32_t>(weight) & ((1u << kLowBits) - 1);
  const std::uint32_t low_sum = __reduce_add_sync(kFullWarp, low);
  const std::uint32_t high_sum = __reduce_add_sync(kFullWarp, static_cast<std::uint32_t>(weight >> kLowBits));
  return low_sum + (static_cast<std::uint64_t>(high_sum) << kLowBits);
}

enum class weighing_kind : std::uint8_t {
  near,     // by logits, and no exponent is below kLeastExponent
  far,      // by logits
  by_bound  // by exponents, or the logit of a tie
};

/// Weighs all that the warp has, and lists what reaches the floor but not the ceiling; what is above that is added up
/// by ranges of columns. @tparam Flat there is a ceiling.
template <weighing_kind Kind, bool Flat, class Stored, class Form>
__device__ __forceinline__ void weigh_batches(const row_part_of_warp<Stored, Form>& part,
                                              const whole_row_filter& filter, const listing<Stored>& listed,
                                              const column_ranges& ranges, const weight_place<Form>& place,
                                              token_list& list, weighed_sums& sums) {
  constexpr std::uint32_t kPerVector = part.kPerVector;
  constexpr std::uint32_t kBatch = part.kBatch;
  using marks_of = batch_marks<Stored>;
  constexpr bool kByLogit = Kind != weighing_kind::by_bound;
  const auto vacate = [&](std::uint32_t slot) { list.vacate(slot); };
  part.for_each_batch(vacate, [&](const uint4(&raw)[kBatch], std::uint32_t address, std::uint32_t column) {
    std::uint32_t marks = kByLogit ? marks_of::reaching(raw, listed.floor.least) : 0;
    std::uint32_t above = Flat && kByLogit ? marks_of::reaching(raw, listed.ceiling.least) : 0;
    std::uint64_t of_batch = 0;  // of those above
#pragma unroll
    for (std::uint32_t v = 0; v < kBatch; v++) {
      float x[kPerVector];
      widen_values<Stored>(raw[v], x);
#pragma unroll
      for (std::uint32_t e = 0; e < kPerVector; e++) {
        const std::uint32_t bit = 1u << marks_of::bit_of(v, e);
        const float exponent = filter.exponent(x[e]);
        const std::uint64_t weight = Kind == weighing_kind::near ? weight_of_near(exponent) : weight_of(exponent);
        sums.all += weight;
        if (!kByLogit) {
          marks |= listed.reaches_floor(x[e], exponent) ? bit : 0u;
          if (Flat) above |= listed.is_above(x[e], exponent) ? bit : 0u;
        }
        if (Flat) of_batch += (above & bit) != 0 ? weight : 0;
      }
    }
    if (Flat) {
      sums.count_above += __popc(above);
      sums.above += of_batch;
      const std::uint64_t of_warp = sum_of_few(of_batch);
      if (threadIdx.x % kWarp == 0) place.scratch.ranges.add(ranges.of(column), of_warp);
      marks &= ~above;
    }
    if (marks == 0) return;
    const std::uint32_t room = list.room_before(address);
    do {
      std::uint32_t bit;
      asm("bfind.u32 %0, %1;" : "=r"(bit) : "r"(marks));
      marks ^= 1u << bit;
      const std::uint32_t offset = marks_of::offset_of(bit);
      list.add(core::widen(logit_at<Stored>(address + offset * sizeof(Stored))), column + offset, room);
    } while (marks != 0);
    list.settle(room);
  });
}

/// Weighs all that the warp has, and lists what may be kept but is not above the ceiling. @param least logit of the
/// lane's. All lanes of the warp come.
template <class Stored, class Form>
__device__ __forceinline__ weighed_sums weigh_and_list(const row_part_of_warp<Stored, Form>& part,
                                                       const whole_row_filter& filter, const listing<Stored>& listed,
                                                       const column_ranges& ranges, const weight_place<Form>& place,
                                                       float least, token_list& list) {
  weighed_sums sums{};
  if (part.has_edge) {
    const float exponent = filter.exponent(part.edge);
    sums.all = weight_of(exponent);
    const std::uint32_t room = list.room_before(shared_address(&part.slots.vector(kSpareSlots)));
    if (listed.is_above(part.edge, exponent)) {
      sums.above = sums.all;
      sums.count_above = 1;
      place.scratch.ranges.add(ranges.of(part.edge_column), sums.all);
    } else if (listed.reaches_floor(part.edge, exponent)) {
      list.add(part.edge, part.edge_column, room);
    }
  }
  const bool near = __all_sync(kFullWarp, filter.exponent(least) >= core::kLeastExponent) != 0;
  const auto weigh = [&](auto flat) {
    constexpr bool kFlat = decltype(flat)::value;
    if (!listed.by_logit)
      weigh_batches<weighing_kind::by_bound, kFlat>(part, filter, listed, ranges, place, list, sums);
    else if (near)
      weigh_batches<weighing_kind::near, kFlat>(part, filter, listed, ranges, place, list, sums);
    else
      weigh_batches<weighing_kind::far, kFlat>(part, filter, listed, ranges, place, list, sums);
  };
  if (listed.border.flat())
    weigh(std::true_type{});
  else
    weigh(std::false_type{});
  list.join();
  return sums;
}

}  // namespace shortlist::cuda::sampling::weighing
