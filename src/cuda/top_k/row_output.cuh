// Writing the chosen columns of rows that lie in shared memory.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cuda/top_k/row_search.cuh"
#include "cuda/top_k/row_sort.cuh"

namespace shortlist::cuda {

/// How the rows of a request are written; the same for all.
struct output_plan {
  top_k_output out;
  std::int64_t cols;
  int k;
  int sort_size;             // the power of two that holds k entries; 1: by ascending column
  bool whole_words;          // rows of k entries begin at multiples of 16 bytes, and no row has fewer
  bool usual;                // so do they, and both values and 32-bit columns are asked for
  bool aligned;              // what is asked for begins at multiples of 16 bytes, and no row has fewer entries
  std::uint32_t reciprocal;  // of k, for divided_by_k
};
/// For numbers less than 2^32 / k.
__device__ __forceinline__ std::uint32_t divided_by_k(const output_plan& plan, std::uint32_t number) {
  return plan.k == 1 ? number : __umulhi(number, plan.reciprocal);
}
inline output_plan output_plan_of(const core::top_k_request& request) {
  const auto aligned = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; };
  int sort_size = 1;
  while (sort_size < request.options.k) sort_size *= 2;
  const bool ragged = request.ragged.begins || request.ragged.ends;
  const bool all_aligned = !ragged && aligned(request.out.values) && aligned(request.out.indices);
  const bool whole_words = all_aligned && request.options.k % 8 == 0;
  return {request.out,
          request.matrix.cols,
          static_cast<int>(request.options.k),
          request.options.sorted && !request.out.mask ? sort_size : 1,
          whole_words,
          whole_words && request.out.values && request.out.indices && request.out.indices_as == index_type::i32,
          all_aligned,
          static_cast<std::uint32_t>((std::int64_t{1} << 32) / request.options.k + 1)};
}

/// Bytes of shared memory that the columns of one row need on their way out, and all that a group needs to write it;
/// multiples of 16. @tparam MostEach see row_sort.cuh; 0: the kernel never sorts.
template <class Group, int MostEach>
__host__ __device__ std::int64_t column_bytes(const output_plan& plan) {
  if (plan.out.mask) return 0;
  const std::int64_t words = plan.sort_size > 1 ? sorted_column_words<Group, MostEach>(plan.sort_size) : plan.k;
  return (4 * words + 15) / 16 * 16;
}
template <class Group, int MostEach>
std::int64_t staged_bytes(const output_plan& plan) {
  return column_bytes<Group, MostEach>(plan) +
         (plan.sort_size > 1 ? 4 * sort_words<Group, MostEach>(plan.sort_size) : 0);
}

constexpr int kManyMarks = 12;         // of a lane: equal values crowd where the row begins
constexpr int kManyLimitedMarks = 24;  // the same where a bracket's values are taken from the row's beginning
constexpr int kFewCrowded = 3;         // lanes of a warp, beyond one a row

/// Where there are more marks than entries, of which the first are written.
enum class mark_limit : std::uint8_t {
  none,  // there are not
  mark,  // no mark beyond is written
  word   // no word of marks beyond is: sooner, and up to kOverrun entries behind the last one are written, too
};
constexpr int kOverrun = 31;

/// Writes first_column + i for each marked bit i to columns[place] and behind it. Where a lane has many marks, the
/// others of its `Lanes` help it. All lanes of the warp call it, and take turns together.
/// @tparam Limit whether no column goes to columns[limit] or behind it.
template <int Lanes, mark_limit Limit>
__device__ __forceinline__ void write_word(std::uint32_t marks, int first_column, std::int32_t* columns, int place,
                                           int limit) {
  constexpr int kAtOnce = 4;
  constexpr int kEach = kWarp / Lanes;  // bits of a crowded word for each lane that helps
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int rank = lane % Lanes;
  constexpr bool kByMark = Limit == mark_limit::mark;
  if (Limit != mark_limit::none && place >= limit) marks = 0;
  const auto most_of = [](int count) {
    return static_cast<int>(__reduce_max_sync(kFullWarp, static_cast<std::uint32_t>(count)));
  };
  int count = __popc(marks);
  int most = most_of(count);
  constexpr int kMany = Limit == mark_limit::none ? kManyMarks : kManyLimitedMarks;
  while (most > kMany) {  // of each group, the first lane that has so many
    const unsigned all_crowded = __ballot_sync(kFullWarp, count > kMany);
    if (__popc(all_crowded) > kFewCrowded + kWarp / Lanes) break;  // these have as many as the rest
    const unsigned crowded = all_crowded >> (lane - rank) & (kFullWarp >> (kWarp - Lanes));
    const int leader = lane - rank + (crowded ? __ffs(static_cast<int>(crowded)) - 1 : 0);
    const std::uint32_t of_leader = __shfl_sync(kFullWarp, marks, leader);
    const std::uint32_t all = crowded ? of_leader : 0;
    const int column = __shfl_sync(kFullWarp, first_column, leader) + rank * kEach;
    int to = __shfl_sync(kFullWarp, place, leader) + __popc(all & ((1u << (rank * kEach)) - 1));
#pragma unroll
    for (int i = 0; i < kEach; i++)
      if (all >> (rank * kEach + i) & 1) {
        if (!kByMark || to < limit) columns[to] = column + i;
        to++;
      }
    if (crowded && lane == leader) marks = 0;
    count = __popc(marks);
    most = most_of(count);
  }
  int end = place + count;
#pragma unroll 1
  for (int i = 0; i < most; i += kAtOnce, end -= kAtOnce) {
#pragma unroll
    for (int u = 1; u <= kAtOnce; u++) {  // from the last: its number is one instruction
      const int last = 31 - __clz(static_cast<int>(marks));
      if (marks && (!kByMark || end - u < limit)) columns[end - u] = first_column + last;
      marks &= ~(1u << (last & 31));
    }
  }
}

template <int Lanes, mark_limit Limit = mark_limit::none, class Bits>
__device__ __forceinline__ void write_marked(Bits marks, int first_column, std::int32_t* columns, int place,
                                             int limit = 0) {
#pragma unroll
  for (unsigned w = 0; w < sizeof(Bits) / 4; w++) {
    const auto word = word_of(marks, static_cast<int>(w));
    write_word<Lanes, Limit>(word, first_column + 32 * w, columns, place, limit);
    place += __popc(word);
  }
}

__device__ __forceinline__ void write_columns(const top_k_output& out, std::int64_t to, const int (&columns)[4]) {
  if (!out.indices) return;
  if (out.indices_as == index_type::i32) {
    __stcs(reinterpret_cast<int4*>(static_cast<std::int32_t*>(out.indices) + to),
           make_int4(columns[0], columns[1], columns[2], columns[3]));
  } else {
    auto* at = reinterpret_cast<longlong2*>(static_cast<std::int64_t*>(out.indices) + to);
    __stcs(at, make_longlong2(columns[0], columns[1]));
    __stcs(at + 1, make_longlong2(columns[2], columns[3]));
  }
}

/// @pre `to` is a multiple of four values' bytes.
template <class Stored>
__device__ __forceinline__ void store_four(Stored* to, Stored a, Stored b, Stored c, Stored d) {
  const Stored four[4] = {a, b, c, d};
  using word = std::conditional_t<sizeof(Stored) == 4, uint4, uint2>;
  word packed;
  memcpy(&packed, four, sizeof packed);
  __stcs(reinterpret_cast<word*>(to), packed);
}

/// Where the rows lie that a warp writes together: their entries are one piece of the output.
struct warp_entries {
  std::int64_t first;  // row
  int rows;
  const unsigned char* columns;  // of the first row's group
  std::int32_t apart;            // bytes from group to group
};

/// Writes the entries of a warp's rows, four a lane, wherever one row ends and the next begins. All lanes call it.
/// @param value_at value_at(r, column) of row first + r. @pre plan.aligned; the first row's begin at a multiple of 4.
template <class Stored, class ValueAt>
__device__ __forceinline__ void write_together(const output_plan& plan, const warp_entries& entries, ValueAt value_at) {
  const int all = entries.rows * plan.k;
  const std::int64_t to = entries.first * plan.k;
  auto* values = static_cast<Stored*>(plan.out.values);
#pragma unroll 1
  for (int e = 4 * (static_cast<int>(threadIdx.x) % kWarp); e < all; e += 4 * kWarp) {
    int r = static_cast<int>(divided_by_k(plan, static_cast<std::uint32_t>(e)));
    int i = e - r * plan.k;
    int columns[4];
    Stored own[4];
#pragma unroll
    for (int u = 0; u < 4; u++) {
      const bool there = e + u < all;
      columns[u] = there ? reinterpret_cast<const std::int32_t*>(entries.columns + r * entries.apart)[i] : 0;
      own[u] = value_at(there ? r : 0, columns[u]);
      const bool ends = ++i == plan.k;
      i = ends ? 0 : i;
      r += ends ? 1 : 0;
    }
    if (e + 4 <= all) {
      write_columns(plan.out, to + e, columns);
      if (values) store_four(values + to + e, own[0], own[1], own[2], own[3]);
    } else {
#pragma unroll
      for (int u = 0; u < 4; u++)
        if (e + u < all) write_entry(plan.out, to + e + u, own[u], columns[u]);
    }
  }
}

/// Writes the columns that a group's threads chose of its row. All that run in step call it.
/// @param chosen bit i: column share.first_column() + i of the row. @param place of the thread's first.
/// @param index  of the row in the matrix, or < 0: none. @param begin the matrix's column of the row's first.
/// @param staged staged_bytes() of shared memory, the group's own.
/// @tparam Limit there may be more than k of them; not where they are sorted.
/// @param instead writes what the threads chose another way, or returns false. @tparam MostEach as above.
template <mark_limit Limit, int MostEach, class Group, class Share, class Instead>
__device__ __forceinline__ void write_row(Group& group, const output_plan& plan,
                                          const staged_row<typename Share::stored>& row, const Share& share,
                                          typename Share::bits chosen, int place, std::int64_t index,
                                          std::int64_t begin, unsigned char* staged, Instead instead) {
  using Stored = typename Share::stored;
  if (plan.out.mask) {
    if (index < 0) return;
    std::uint8_t* mask = plan.out.mask + index * plan.cols;
#pragma unroll 1
    for (std::int64_t c = group.rank(); c < plan.cols; c += group.threads())
      if (c < begin || c >= begin + row.count) mask[c] = 0;
    mask += begin + share.first_column();
    const int there = min(max(row.count - share.first_column(), 0), Share::kValues);
    int i = max(-share.first_column(), 0);
    if (i == 0 && reinterpret_cast<std::uintptr_t>(mask) % 4 == 0) {
      for (; i + 4 <= there; i += 4) {  // four bits become four bytes
        const auto four = static_cast<std::uint32_t>(chosen >> i & 15);
        *reinterpret_cast<std::uint32_t*>(mask + i) = four * 0x00204081u & 0x01010101u;
      }
    }
#pragma unroll 1
    for (; i < there; i++) mask[i] = static_cast<std::uint32_t>(chosen >> i) & 1;
    return;
  }
  const int best = min(plan.k, row.count);
  auto* columns = reinterpret_cast<std::int32_t*>(staged);
  write_marked<Group::kLanes, Limit>(chosen, share.first_column(), columns, place, best);
  const bool sorts = MostEach > 0 && plan.sort_size > 1;
  if (sorts && best == 0) columns[0] = 0;  // a sort reads it
  group.sync();
  if constexpr (MostEach > 0) {
    if (sorts) {
      const row_entries<Stored> entries{shared_address(columns), shared_address(row.bytes), row.negated};
      auto* keys = reinterpret_cast<std::uint32_t*>(staged + column_bytes<Group, MostEach>(plan));
      sort_columns<Share::kValues, MostEach>(group, entries, best, plan.sort_size, keys);
    }
  }
  const auto value_at = [&](int column) { return reinterpret_cast<const Stored*>(row.bytes)[column]; };
  const std::int64_t to = index * plan.k;
  auto* values = static_cast<Stored*>(plan.out.values);
  if (plan.usual) {
    if (index < 0) return;
#pragma unroll 1
    for (int i = 4 * group.rank(); i < plan.k; i += 4 * group.threads()) {
      const int4 four = *reinterpret_cast<const int4*>(columns + i);
      __stcs(reinterpret_cast<int4*>(static_cast<std::int32_t*>(plan.out.indices) + to + i), four);
      store_four(values + to + i, value_at(four.x), value_at(four.y), value_at(four.z), value_at(four.w));
    }
    return;
  }
  if (instead() || index < 0) return;
  if (plan.whole_words) {
#pragma unroll 1
    for (int i = 4 * group.rank(); i < plan.k; i += 4 * group.threads()) {
      const int four[4] = {columns[i], columns[i + 1], columns[i + 2], columns[i + 3]};
      write_columns(plan.out, to + i, four);
      if (values)
        store_four(values + to + i, value_at(four[0]), value_at(four[1]), value_at(four[2]), value_at(four[3]));
    }
    return;
  }
#pragma unroll 1
  for (int i = group.rank(); i < plan.k; i += group.threads()) {
    const int column = i < best ? columns[i] : 0;
    write_index(plan.out, to + i, i < best ? begin + column : kNoColumn);
    if (values) values[to + i] = i < best ? value_at(column) : worst_value<Stored>(row.negated);
  }
}

}  // namespace shortlist::cuda
