// The test of a tile's products, and what becomes of those that pass. See certified_filter.cu.
#pragma once

#include <cstdint>

#include "core/certified.hpp"
#include "core/order.hpp"
#include "cuda/device/score.cuh"
#include "cuda/device/warp_sum.cuh"
#include "cuda/flat/certified_filter.hpp"
#include "cuda/flat/certified_filter_parts.cuh"

namespace shortlist::cuda::certifying {

/// Appends a row to a query's candidates if its upper end reaches the target.
template <int N>
__device__ __forceinline__ void append_row(const filter_args& args, filter_shared<N>& shared, int first_query,
                                           int column, std::uint32_t position, const known_row& known,
                                           std::int32_t product) {
  const int query = first_query + column;
  if (query >= args.batch.count || position >= args.rows) return;
  const float high =
      core::interval_of(args.by, args.batch.terms[query], known.row(), known.inverse_norm(), product).high;
  if (high < args.batch.targets[query]) return;
  const std::uint32_t key = core::ascending_key(high == high ? high : __uint_as_float(0x7F800000u));
  const std::uint32_t place = atomicAdd(&shared.counts[column], 1u);
  const candidate_segments& to = args.candidates;
  const std::int64_t segment = static_cast<std::int64_t>(query) * to.segments + blockIdx.x / args.column_tiles;
  const auto capacity = static_cast<std::uint32_t>(to.capacity);
  if (place < capacity) {
    to.keys[segment * to.capacity + place] = core::row_key(key, position);
  } else if (place == capacity) {  // too many: the query will be searched in full
    shared.weights[column] = weights_of_none();
    atomicSub(&shared.open, 1);
  }
}

/// Holds the groups of a warp's list to their own rows' terms, and appends the hits among them; a lane each.
template <int N>
__device__ __forceinline__ void append_listed(const filter_args& args, filter_shared<N>& shared, int first_query,
                                              std::uint32_t block, int kept, int listed) {
  constexpr int kGroupsOfThread = N / 2 / kGroupSums;
  const int lane = threadIdx.x % kWarp;
  const hit_list& list = shared.hits[threadIdx.x / kWarp];
  const known_row* rows = shared.rows[kept][threadIdx.x / kWarp];
  __syncwarp();
#pragma unroll 1
  for (int entry = lane; entry < listed; entry += kWarp) {
    const int owner = list.groups[entry] / kGroupsOfThread;
    const int first_sum = list.groups[entry] % kGroupsOfThread * kGroupSums;
    const row_test tests[2] = {test_of(rows[owner / 4], args.by), test_of(rows[owner / 4 + 8], args.by)};
    const auto* sums = reinterpret_cast<const std::int32_t*>(list.sums[entry]);
    unsigned hits = 0;
#pragma unroll
    for (int i = 0; i < kGroupSums; i++) {
      const row_test& test = tests[row_of_sum(i)];
      const filter_weights weights = shared.weights[column_of_sum(first_sum + i, owner)];
      const float least = least_value(asked_of(weights, test.residual, test.norm), weights.square, test);
      if (!(__int_as_float(kOriginBits - sums[i]) < least)) hits |= 1u << i;
    }
#pragma unroll 1
    for (; hits != 0; hits &= hits - 1) {
      const int i = __ffs(static_cast<int>(hits)) - 1;
      const int at = owner / 4 + 8 * row_of_sum(i);
      append_row(args, shared, first_query, column_of_sum(first_sum + i, owner), block * core::kPlaneRows + at,
                 rows[at], -sums[i]);
    }
  }
  __syncwarp();
}

/// Which groups of a thread's sums have a hit, as bits. The short form takes no squares, and nothing out of range.
template <int N, bool Short>
__device__ __forceinline__ unsigned groups_with_hit(const asked_pair* asked, const row_test (&tests)[2],
                                                    const std::int32_t (&sums)[N / 2]) {
  unsigned found = 0;
#pragma unroll
  for (int group = 0; group < N / 2 / kGroupSums; group++) {
    const asked_pair pairs[2] = {asked[8 * group], asked[8 * group + 4]};
    std::int32_t least = INT32_MAX;
#pragma unroll
    for (int i = 0; i < kGroupSums; i++) {
      const asked_pair& pair = pairs[i / 4];
      const row_test& row = tests[row_of_sum(i)];
      float value = __fmaf_rn(pair.asked[i % 2], row.unit, kPaddedOrigin);
      if (!Short) value = fmaxf(least_value(pair.asked[i % 2], pair.square_weight[i % 2], row), 0.0f);  // NaN: 0
      least = __viaddmin_s32(__float_as_int(value), sums[group * kGroupSums + i], least);
    }
    found |= least <= kOriginBits ? 1u << group : 0u;
  }
  return found;
}

/// Stores a group of sums in a list.
template <int N>
__device__ __forceinline__ void list_group(hit_list& list, int place, int lane, int group,
                                           const std::int32_t (&sums)[N / 2]) {
  const std::int32_t* mine = sums + group * kGroupSums;
  list.sums[place][0] = make_int4(mine[0], mine[1], mine[2], mine[3]);
  list.sums[place][1] = make_int4(mine[4], mine[5], mine[6], mine[7]);
  list.groups[place] = static_cast<std::uint16_t>(lane * (N / 2 / kGroupSums) + group);
}

/// Tests a tile's sums: lists the groups with a hit. @returns how many; if they do not fit they are appended at once.
template <int N>
__device__ __forceinline__ int list_hits(const filter_args& args, filter_shared<N>& shared, const row_test (&tests)[2],
                                         const std::int32_t (&sums)[N / 2], bool is_tame, int first_query,
                                         std::uint32_t block, int kept) {
  constexpr int kGroupsOfThread = N / 2 / kGroupSums;
  const int lane = threadIdx.x % kWarp;
  hit_list& list = shared.hits[threadIdx.x / kWarp];
  const asked_pair* asked = shared.asked[threadIdx.x / kGroupThreads] + lane % 4;
  const unsigned found = is_tame && args.by != metric::l2 ? groups_with_hit<N, true>(asked, tests, sums)
                                                          : groups_with_hit<N, false>(asked, tests, sums);
  if (!__any_sync(kFullWarp, found != 0)) return 0;
  const int before = running_sum(__popc(found));
  const int all = __shfl_sync(kFullWarp, before, kWarp - 1);
  if (all <= kListGroups) {
    int place = before - __popc(found);
#pragma unroll
    for (int group = 0; group < kGroupsOfThread; group++)
      if (found >> group & 1u) list_group<N>(list, place++, lane, group, sums);
    return all;
  }
  constexpr int kLanesAtOnce = kListGroups / kGroupsOfThread;
#pragma unroll 1
  for (int first = 0; first < kWarp; first += kLanesAtOnce) {
    const bool now = lane >= first && lane < first + kLanesAtOnce;
    const unsigned mine = now ? found : 0;
    const int listed_before = __shfl_sync(kFullWarp, before - __popc(found), first % kWarp);
    int place = before - __popc(found) - listed_before;
#pragma unroll
    for (int group = 0; group < kGroupsOfThread; group++)
      if (mine >> group & 1u) list_group<N>(list, place++, lane, group, sums);
    const int listed_after = __shfl_sync(kFullWarp, before, min(first + kLanesAtOnce, kWarp) - 1);
    append_listed(args, shared, first_query, block, kept, listed_after - listed_before);
  }
  return 0;
}

}  // namespace shortlist::cuda::certifying
