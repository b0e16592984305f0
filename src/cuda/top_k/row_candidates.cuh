// The few columns of a row that may be among its k best: those above a threshold that k or more are above, listed by
// all threads of a group, and searched by one of its warps.
//
// One pass over the row tells them. Rows alike have thresholds alike, so that the row before tells the next one's. A
// threshold that k or more columns reach, and no more than the list holds, proves that the k best are in the list,
// whatever it came from.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "cuda/top_k/row_search.cuh"
#include "cuda/top_k/row_sort.cuh"

namespace shortlist::cuda {

constexpr float kAimDeviations = 4.5f;   // of a count of columns, beyond k
constexpr float kRoomDeviations = 6.0f;  // beyond the aim
constexpr int kMostListed = 512;         // more than a warp searches while others mark the next row

/// How long lists are; the same for all rows.
struct candidate_plan {
  float aim = 0.0f;  // columns above the threshold: so many that for nearly every row k or more are
  int room = 0;      // the most that a list holds; 0: rows are not searched by lists
  int words = 0;     // of shared memory
  int entries = 0;   // of a lane, at least

  std::int64_t bytes() const { return std::int64_t{4} * words; }
};

/// Entries of a lane for so many candidates: a power of two. Each number is code of its own.
__host__ __device__ constexpr int lane_entries(int candidates) {
  if (candidates <= 2 * kWarp) return 2;
  if (candidates <= 4 * kWarp) return 4;
  return candidates <= 8 * kWarp ? 8 : kMostListed / kWarp;
}

/// For exact rows. @param share of a row's columns: a list of more than one in so many is no shorter way.
inline candidate_plan candidate_plan_of(const core::top_k_request& request, int share) {
  if (request.out.mask) return {};
  const auto k = static_cast<float>(request.options.k);
  const auto cols = static_cast<float>(request.matrix.cols);
  const auto deviation = [&](float count) { return std::sqrt(count * std::max(1.0f - count / cols, 0.0f)); };
  const float aim = k + kAimDeviations * deviation(k) + 8.0f;
  if (aim > static_cast<float>(kMostListed)) return {};
  const int room = (static_cast<int>(aim + kRoomDeviations * deviation(aim)) + kWarp - 1) / kWarp * kWarp;
  if (room > kMostListed || std::int64_t{share} * room > request.matrix.cols) return {};
  // Warps that go now the way of 8 entries, now that of 16, drive each other's code from the cache: 43,690 x 3072 of
  // bf16, k 192, 0.246 ms, sorted 0.366; all by 16 entries 0.186, 0.274. Of fewer entries both have room.
  return {.aim = aim,
          .room = room,
          .words = request.options.sorted ? 2 * kWarp * lane_entries(room) : room,  // sorted: values, too
          .entries = aim + deviation(aim) > 8 * kWarp ? lane_entries(kMostListed) : 0};
}

constexpr float kFollow = 0.25f;  // how much of what one row tells is believed
constexpr int kMostMisses = 5;    // after so many in a row, one row in 16 is tried

/// Where the next row's candidates begin; the same in all threads of a group.
struct candidate_threshold {
  float above = INFINITY;
  float each = 0.0f;  // from one value to the next there, about
  int wait = 0;       // the next row that is tried
  int misses = 0;     // in a row

  __device__ __forceinline__ bool tries() { return fabsf(above) < INFINITY && (wait == 0 || --wait == 0); }

  /// What the candidates of a row are better than; of 16-bit values, what they reach.
  template <class Stored>
  __device__ __forceinline__ float of() const {
    return std::is_same_v<Stored, float> ? above : thread_numbers<Stored, 8>::rounded(above);
  }
  __device__ __forceinline__ void hit(int found, float aim) {
    above = __fmaf_rn(kFollow * each, static_cast<float>(found) - aim, above) + 0.0f;  // never -0
    misses = 0;
  }
  /// Another search found the border, at `border` or near it, where a unit has `scale` values. @param found candidates,
  /// if the threshold was tried.
  __device__ __forceinline__ void miss(float border, float scale, bool tried, int found, int k, float aim) {
    const auto surplus = static_cast<float>(found - k);
    const float apart = (border - above) * near_reciprocal(surplus);
    const float wanted = aim - static_cast<float>(k);
    if (each == 0.0f) each = near_reciprocal(scale);
    if (tried && fabsf(surplus) > wanted && apart > 0.0f && apart < INFINITY) each = apart;
    above = __fmaf_rn(-wanted, each, border) + 0.0f;
    if (!tried) return;
    misses = min(misses + 1, kMostMisses);
    wait = 1 << misses >> 1;
  }
};

/// Marks of a thread's columns that are candidates. @param threshold candidate_threshold::of()
template <class Share>
__device__ __forceinline__ typename Share::bits candidates_of(const Share& share, float threshold) {
  using kind = thread_numbers<typename Share::stored, Share::kValues>;
  if constexpr (kind::kMapped) {
    return share.above(threshold);
  } else {
    kind numbers;
    share.read(numbers, 1.0f, 0.0f);
    return share.marks_from(numbers, threshold);
  }
}

/// The border of the k best: those >= from, or, where values tie there, those > from and the first that equal it.
struct candidate_border {
  float from;
  bool tied;
};

constexpr std::uint32_t kLeastFinite = 0xFF7FFFFFu;
constexpr int kPlainCounts = 6;   // by interpolation, and one more
constexpr float kFewHeld = 3.0f;  // of a bracket: then the next value below its end is counted

/// Finds the border of the k best of candidates in a warp's registers: by interpolation, then by counting in turns the
/// next value below the bracket's end and the middle of its keys.
/// @param values -inf where there is none. @param count of the candidates, k or more. @param at the border is near.
/// @param least all of them reach it. @param each from one value to the next.
template <int Each>
__device__ __forceinline__ candidate_border border_of(const float (&values)[Each], int count, int k, float at,
                                                      float least, float each) {
  const lane_group<kWarp> warp;
  const auto wanted = static_cast<float>(k);
  number_bracket bracket{.low = least, .over = static_cast<float>(count) - wanted};
  float beyond = 0.0f;
  const auto count_from_at = [&] {
    float mine = 0.0f;
#pragma unroll
    for (int e = 0; e < Each; e++) mine += values[e] >= at ? 1.0f : 0.0f;
    beyond = warp.sum_count(mine) - wanted;
    bracket.narrow(at, beyond);
  };
  if (count == k) at = core::float_from_bits(kLeastFinite);  // all
#pragma unroll 1
  for (int pass = kPlainCounts;; pass--) {
    count_from_at();
    if (beyond == 0.0f || (bracket.has_ends() && bracket.held() <= kFewHeld) || pass == 0) break;
    at = bracket.has_ends() ? bracket.inside() : __fmaf_rn(beyond + 0.5f, each, at);
  }
  bool tied = false;
#pragma unroll 1
  for (int pass = 0; beyond != 0.0f && !tied; pass++) {
    const bool walks = pass % 2 == 0 || bracket.held() <= kFewHeld;
    if (walks) {
      const bool has_top = bracket.under < INFINITY;
      float next = -INFINITY;
#pragma unroll
      for (int e = 0; e < Each; e++) next = fmaxf(next, values[e] < bracket.high || !has_top ? values[e] : -INFINITY);
      at = warp.largest(next);
    } else {
      const std::uint32_t low = core::ascending_key(bracket.low);
      at = core::from_ascending_key(low + (core::ascending_key(bracket.high) - low) / 2);
    }
    count_from_at();
    tied = walks && beyond > 0.0f;
  }
  return {at, tied};
}

/// Writes those of a warp's candidates of which chosen(e) is true, in the order of columns: entry e of a lane is
/// candidate lane + e x kWarp. @param to the place of the row's first entry.
template <class Stored, int Each, class Chosen>
__device__ __forceinline__ void write_where(const float (&values)[Each], const std::int32_t (&columns)[Each],
                                            bool negated, const top_k_output& out, std::int64_t to, Chosen chosen) {
  const unsigned before_me = (1u << lane_group<kWarp>().rank()) - 1u;
  const bool usual = out.values && out.indices && out.indices_as == index_type::i32;
  int place = 0;
#pragma unroll
  for (int e = 0; e < Each; e++) {
    const bool mine_is = chosen(e);
    const unsigned all = __ballot_sync(kFullWarp, mine_is);
    const int mine = place + __popc(all & before_me);
    const auto value = narrowed<Stored>(negated ? -values[e] : values[e]);
    if (usual) {
      if (mine_is) {
        (static_cast<Stored*>(out.values) + to)[mine] = value;
        (static_cast<std::int32_t*>(out.indices) + to)[mine] = columns[e];
      }
    } else if (mine_is) {
      write_entry(out, to + mine, value, columns[e]);
    }
    place += __popc(all);
  }
}

/// The same of all for which sure(value) is true, and the first of those for which fills(value) is, k in all.
/// @pre no more than k are sure: what is more would be written behind the row's entries.
template <class Stored, int Each, class Sure, class Fills>
__device__ __forceinline__ void write_first(const float (&values)[Each], const std::int32_t (&columns)[Each], int k,
                                            bool negated, const top_k_output& out, std::int64_t to, Sure sure,
                                            Fills fills) {
  const lane_group<kWarp> warp;
  const unsigned before_me = (1u << warp.rank()) - 1u;
  float count = 0.0f;
#pragma unroll
  for (int e = 0; e < Each; e++) count += sure(values[e]) ? 1.0f : 0.0f;
  int missing = k - static_cast<int>(warp.sum_count(count));
  write_where<Stored>(values, columns, negated, out, to, [&](int e) {
    const unsigned filling = __ballot_sync(kFullWarp, fills(values[e]));
    const bool first = __popc(filling & before_me) < missing;
    missing -= __popc(filling);
    return sure(values[e]) || (fills(values[e]) && first);
  });
}

/// Writes those that a border chooses.
template <class Stored, int Each>
__device__ __forceinline__ void write_chosen(const float (&values)[Each], const std::int32_t (&columns)[Each],
                                             candidate_border border, int k, bool negated, const top_k_output& out,
                                             std::int64_t to) {
  if (!border.tied) {
    write_where<Stored>(values, columns, negated, out, to, [&](int e) { return values[e] >= border.from; });
  } else {
    write_first<Stored>(
        values, columns, k, negated, out, to, [&](float value) { return value > border.from; },
        [&](float value) { return value == border.from; });
  }
}

/// What the search of a list needs to know.
struct candidate_search {
  int count;          // candidates in the list
  int k;              // no more
  float least;        // they reach it
  int least_entries;  // of a lane: the plan's

  __device__ __forceinline__ int entries() const { return max(lane_entries(count), least_entries); }

  __device__ __forceinline__ float beyond() const { return static_cast<float>(count - k) + 0.5f; }
  /// Corrects how far it is from one value to the next, by where the border was found.
  __device__ __forceinline__ void learn(float border, float& each) const {
    const float learned = __fmaf_rn(kFollow, (border - least) * near_reciprocal(beyond()) - each, each);
    if (count > k && fabsf(learned) < INFINITY) each = learned;
  }
};

/// The values of the columns in a list: entry e of a lane is candidate lane + e x kWarp; -inf where there is none.
template <int Each, class Stored>
__device__ __forceinline__ void read_listed(const staged_row<Stored>& row, const std::int32_t* list, int count,
                                            std::int32_t (&columns)[Each], float (&values)[Each]) {
  const int lane = lane_group<kWarp>().rank();
#pragma unroll
  for (int e = 0; e < Each; e++) columns[e] = lane + e * kWarp < count ? list[lane + e * kWarp] : 0;
#pragma unroll
  for (int e = 0; e < Each; e++) values[e] = row.value(columns[e]);
#pragma unroll
  for (int e = 0; e < Each; e++)
    if (lane + e * kWarp >= count) values[e] = -INFINITY;
}

/// The border of the k best of them; what it tells is learned.
template <int Each>
__device__ __forceinline__ candidate_border search_list(const float (&values)[Each], const candidate_search& search,
                                                        float& each) {
  const float near = __fmaf_rn(search.beyond(), each, search.least);
  const candidate_border border = border_of(values, search.count, search.k, near, search.least, each);
  search.learn(border.from, each);
  return border;
}

template <int Each, class Stored, class Taken>
__device__ __forceinline__ void write_listed_by(const staged_row<Stored>& row, const std::int32_t* list,
                                                const candidate_search& search, float& each, const top_k_output& out,
                                                std::int64_t to, Taken taken) {
  float values[Each];
  std::int32_t columns[Each];
  read_listed(row, list, search.count, columns, values);
  taken();
  const candidate_border border = search_list(values, search, each);
  write_chosen<Stored>(values, columns, border, search.k, row.negated, out, to);
}

/// The same, best first; values are kept behind the columns.
template <int Each, class Stored, class Taken>
__device__ __forceinline__ void write_listed_sorted(const staged_row<Stored>& row, const std::int32_t* list,
                                                    const candidate_search& search, float& each,
                                                    const top_k_output& out, std::int64_t to, Taken taken) {
  const std::uint32_t columns = shared_address(list);
  const listed_entries<Stored> entries{columns, columns + Each * kWarp * 4, row.negated};
  const row_entries<Stored> of_row{columns, shared_address(row.bytes), row.negated};
  const auto lane = static_cast<std::uint32_t>(lane_group<kWarp>().rank());
  const auto count = static_cast<std::uint32_t>(search.count);
#pragma unroll
  for (int e = 0; e < Each; e++) {
    const std::uint32_t i = lane + e * kWarp;
    store_shared(entries.bits + i * 4, of_row.value_bits(i < count ? of_row.column(i) : 0));
  }
  taken();
  __syncwarp();
  sort_whole<kWarp, Each>(entries, search.count);
  const auto stored_at = [&](std::uint32_t i) {
    const std::uint32_t bits = entries.value_bits(i);
    Stored value;
    memcpy(&value, &bits, sizeof value);
    return value;
  };
  const float border = core::widen(stored_at(static_cast<std::uint32_t>(search.k - 1)));
  search.learn(row.negated ? -border : border, each);
#pragma unroll 1
  for (auto i = lane; i < static_cast<std::uint32_t>(search.k); i += kWarp)
    write_entry(out, to + i, stored_at(i), entries.column(i));
}

/// The k-th and the (k+1)-th best of a row.
struct border_values {
  float last;
  float next;
};

/// Both, of candidates in a warp's registers, of which more than k are there.
template <int Each>
__device__ __forceinline__ border_values values_at(const float (&values)[Each], candidate_border border) {
  if (border.tied) return {border.from, border.from};
  const lane_group<kWarp> warp;
  float last = INFINITY;
  float next = -INFINITY;
#pragma unroll
  for (int e = 0; e < Each; e++) {
    last = fminf(last, values[e] >= border.from ? values[e] : INFINITY);
    next = fmaxf(next, values[e] >= border.from ? -INFINITY : values[e]);
  }
  return {-warp.largest(-last), warp.largest(next)};
}

/// Calls f(columns, values, border_values) with the list of a row in registers. A warp calls it. @param each as below.
template <class Stored, class F>
__device__ __forceinline__ void with_list(const staged_row<Stored>& row, const std::int32_t* list,
                                          const candidate_search& search, float& each, F f) {
  const auto with = [&](auto entries) {
    float values[decltype(entries)::value];
    std::int32_t columns[decltype(entries)::value];
    read_listed(row, list, search.count, columns, values);
    f(columns, values, values_at(values, search_list(values, search, each)));
  };
  const int most = search.entries();
  if (most <= 4) return with(std::integral_constant<int, 4>());
  if (most <= 8) return with(std::integral_constant<int, 8>());
  with(std::integral_constant<int, kMostListed / kWarp>());
}

/// Writes the k best of the columns in a list, ascending or best first. A warp calls it.
/// @param each from one value to the next, between the threshold and the border; learned from row to row.
/// @param to the place of the row's first entry. @param taken is called when the row is no longer read.
template <bool Sorted, class Stored, class Taken>
__device__ __forceinline__ void write_listed(const staged_row<Stored>& row, const std::int32_t* list,
                                             const candidate_search& search, float& each, const top_k_output& out,
                                             std::int64_t to, Taken taken) {
  const int most = search.entries();
  if constexpr (Sorted) {
    if (most == 2) return write_listed_sorted<2>(row, list, search, each, out, to, taken);
    if (most == 4) return write_listed_sorted<4>(row, list, search, each, out, to, taken);
    if (most == 8) return write_listed_sorted<8>(row, list, search, each, out, to, taken);
    write_listed_sorted<kMostListed / kWarp>(row, list, search, each, out, to, taken);
  } else {
    if (most <= 4) return write_listed_by<4>(row, list, search, each, out, to, taken);
    if (most <= 8) return write_listed_by<8>(row, list, search, each, out, to, taken);
    write_listed_by<kMostListed / kWarp>(row, list, search, each, out, to, taken);
  }
}

}  // namespace shortlist::cuda
