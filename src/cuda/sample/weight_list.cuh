// Weighing a row: every logit's weight, and the tokens listed that may be kept. See weight_sample.cu.
#pragma once

#include <cstdint>

#include "cuda/device/value_pair.cuh"
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
  static constexpr std::uint32_t kPerVector = row_stretch<Stored>::kPerVector;
  static constexpr std::uint32_t kBatch = row_stretch<Stored>::kBatch;
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

/// A floor of exponents as a least logit, by its upper half. What reaches it may be listed in the floor's place: what
/// is not listed then is worse than all that is, too.
template <class Stored>
struct logit_floor {
  std::uint32_t least = 0;  // as `batch_marks` has it
  bool is_near = false;     // hardly more is listed by it than by the floor

  __device__ __forceinline__ logit_floor(const whole_row_filter& filter, float floor) {
    constexpr float kNear = 0.125f;  // of an exponent
    const float x = core::add_once(filter.largest, core::divide_once(floor, filter.steepness));
    float rounded;
    if constexpr (element_type_of<Stored>() == element_type::f16) {
      const __half half = __float2half_rd(x);
      least = __half_as_ushort(half);
      rounded = __half2float(half);
    } else {
      // Of a value, all bits below the upper half are 0, or all are 1 where it is negative.
      const std::uint32_t key = core::ascending_key(x) >> 16;
      rounded = core::from_ascending_key(key << 16);
      least = core::float_bits(rounded) >> 16;
    }
    least |= least << 16;
    is_near = filter.exponent(rounded) >= floor - kNear || sizeof(Stored) == 2;
  }
};

/// Weighs all that the warp has, and lists what reaches the floor. @tparam Plain no exponent is below kLeastExponent,
/// and the floor is near a logit's. @returns the lane's weight.
template <bool Plain, class Stored>
__device__ __forceinline__ std::uint64_t weigh_batches(const row_stretch<Stored>& stretch,
                                                       const whole_row_filter& filter, float floor,
                                                       const logit_floor<Stored>& least, token_list& list) {
  constexpr std::uint32_t kPerVector = row_stretch<Stored>::kPerVector;
  constexpr std::uint32_t kBatch = row_stretch<Stored>::kBatch;
  using marks_of = batch_marks<Stored>;
  std::uint64_t sum = 0;
  const auto vacate = [&](std::uint32_t slot) { list.vacate(slot); };
  stretch.for_each_batch(vacate, [&](const uint4(&raw)[kBatch], std::uint32_t address, std::uint32_t column) {
    std::uint32_t marks = Plain ? marks_of::reaching(raw, least.least) : 0;
#pragma unroll
    for (std::uint32_t v = 0; v < kBatch; v++) {
      float x[kPerVector];
      widen_values<Stored>(raw[v], x);
#pragma unroll
      for (std::uint32_t e = 0; e < kPerVector; e++) {
        const float exponent = filter.exponent(x[e]);
        sum += Plain ? weight_of_near(exponent) : weight_of(exponent);
        if (!Plain) marks |= exponent >= floor ? 1u << marks_of::bit_of(v, e) : 0u;
      }
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
  return sum;
}

/// Weighs all that the warp has, and lists what reaches the floor. @param least logit of the lane's. @returns the
/// lane's weight. All lanes of the warp come.
template <class Stored>
__device__ __forceinline__ std::uint64_t weigh_and_list(const row_stretch<Stored>& stretch,
                                                        const whole_row_filter& filter, float floor, float least,
                                                        token_list& list) {
  std::uint64_t sum = 0;
  if (stretch.has_edge) {
    const float exponent = filter.exponent(stretch.edge);
    sum = weight_of(exponent);
    const std::uint32_t room = list.room_before(shared_address(&stretch.slots.vector(kSpareSlots)));
    if (exponent >= floor) list.add(stretch.edge, stretch.edge_column, room);
  }
  const logit_floor<Stored> as_logit(filter, floor);
  if (__all_sync(kFullWarp, filter.exponent(least) >= core::kLeastExponent && as_logit.is_near))
    sum += weigh_batches<true>(stretch, filter, floor, as_logit, list);
  else
    sum += weigh_batches<false>(stretch, filter, floor, as_logit, list);
  list.join();
  return sum;
}

}  // namespace shortlist::cuda::sampling::weighing
