// Row-wise top k of long rows for a k that no block's list has room for: a block streams a row past two numbers
// between which its border lies, marks what is above, lists the few between, and writes what is marked.
//
// Why it is fast: a column costs two compares and two bits, whatever k is; a list holds what the border of the row
// before leaves in doubt, and not the k best. The copy engine brings the next row's first pieces while this one's
// border is searched and its entries are written, whose values are read again, eight of a lane at a time. Steps of a
// block, a row at a time: a bracket around the border of the row before, or by a sample -> a bit for each column that
// is above it, and one for each within, whose numbers are listed -> if k columns end within, the exact border, by
// counting the list; else the row is streamed again past a bracket that this one tells -> bits of the k best
// -> their places, and entries by column.
// Limit: bytes(in), again those of the lines that have one of the k best, and bytes(out), over read bandwidth. Measured
// share: docs/kernels.md. History, 1024 x 50,000, k 11,741 (radix_rows: 0.425 ms): the row streamed twice, each of the
// k best written by its lane 0.270 -> marks in the first look, values fetched one by one 0.228 -> eight at a time 0.157
// -> places of marks without branches 0.154.
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/plan.hpp"
#include "cuda/device/chain.cuh"
#include "cuda/device/cluster.cuh"
#include "cuda/runtime/launch.cuh"
#include "cuda/top_k/bracket_rows.hpp"
#include "cuda/top_k/filter_list.cuh"
#include "cuda/top_k/filter_parts.cuh"
#include "cuda/top_k/filter_pieces.cuh"
#include "cuda/top_k/filter_sample.cuh"
#include "cuda/top_k/filter_write.cuh"
#include "cuda/top_k/stop_range.cuh"

namespace shortlist::cuda {
namespace {

using namespace filtering;

constexpr std::uint32_t kListed = 3072;             // columns within a bracket whose numbers a block has room for
constexpr std::uint32_t kGroup = kWarp * kValues;   // columns whose marks a warp's lanes hold, a word each
constexpr std::uint32_t kStagedBytes = 2 * kGroup;  // of a warp: the places of a group's entries; in the list's room
static_assert(kWarps * kStagedBytes <= 8 * kListed);
constexpr int kListedAtOnce = 4;
constexpr int kMostLooks = 4;

// Words of marks are in the order of columns, 32 each. Word 0 has those before a row's first vector, in its last bits,
// so that all places are `head` - 32 columns apart from the columns that they stand for.
SHORTLIST_HOST_DEVICE constexpr std::int64_t most_words(std::int64_t cols) {
  return 1 + (cols + kValues - 1) / kValues + kWarp;  // a piece's words are written whole
}

/// Where a block's parts lie in shared memory, in bytes.
struct bracket_layout {
  std::int64_t listed;
  std::int64_t totals;  // of groups: columns above, and within
  std::int64_t above;   // marks, as
  std::int64_t within;
  std::int64_t list;
  std::int64_t rings;
  std::int64_t bytes;
};
SHORTLIST_HOST_DEVICE constexpr bracket_layout layout_of(std::int64_t cols) {
  const std::int64_t words = most_words(cols);
  bracket_layout at{};
  at.listed = sizeof(filter_scratch);
  at.totals = at.listed + 16;
  at.above = at.totals + (words / kWarp + 1) * static_cast<std::int64_t>(sizeof(uint2));
  at.within = at.above + words * 4;
  at.list = (at.within + words * 4 + 15) / 16 * 16;
  at.rings = (at.list + std::int64_t{8} * kListed + 127) / 128 * 128;
  at.bytes = at.rings + std::int64_t{kWarps} * kRingBytes;
  return at;
}

static_assert(layout_of(core::kBracketRowsMaxCols).bytes <= std::int64_t{227} * 1024);  // what a block may have

/// Numbers between which a row's border lies: from `low` on, below `high`.
struct bracket {
  std::uint32_t low;
  std::uint32_t high;

  __device__ __forceinline__ bool contains(std::uint32_t number) const { return number >= low && number < high; }
  __device__ __forceinline__ bool is_one_number() const { return high - low == 1; }
};
template <class Stored>
__device__ __forceinline__ bracket all_values() {
  return {kMinusInfinityKey >> kSharedBits<Stored>, kInfinityNumber<Stored> + 1};
}

/// Shared addresses of a block.
struct bracket_memory {
  std::uint32_t totals;
  std::uint32_t above;
  std::uint32_t within;
  std::uint32_t list;
  std::uint32_t listed;  // columns within; more than the list has room for where not all are in it
};

/// How far the count of a set may be off by which a share of it, `expected` of `all`, is told, in most cases.
__device__ __forceinline__ float rank_deviation(float expected, float all) {
  constexpr float kDeviations = 3.5f;
  constexpr float kLeast = 4.0f;
  return kDeviations * sqrtf(expected * fmaxf(1.0f - __fdividef(expected, all), 0.0f)) + kLeast;
}

/// A part of `outer` that the border lies in, almost surely, by `all` numbers of which `expected` are as good as it.
/// @param visit calls its argument with each of this thread's. All threads come, after a barrier; they leave through
/// one.
template <class Stored, class Visit>
__device__ __forceinline__ bracket part_by_sample(Visit visit, float expected, std::uint32_t all, bracket outer,
                                                  block_sums& sums, filter_scratch& scratch) {
  const float deviation = rank_deviation(expected, static_cast<float>(all));
  const auto number_at = [&](float rank) {
    row_border border{};
    border_by_bins(visit, __float2uint_rn(rank), all_numbers<Stored>(), all_numbers<Stored>(), border, sums, scratch);
    __syncthreads();
    return border.number;
  };
  const float most = expected + deviation;
  const float least = expected - deviation;
  bracket part = outer;
  if (most < static_cast<float>(all)) part.low = min(max(number_at(most), outer.low), outer.high - 1);
  if (least >= 1.0f) part.high = max(min(number_at(least) + 1, outer.high), part.low + 1);
  return part;
}

/// A bracket for a row like one that has been searched, by how far values, or where an end is infinite, numbers lie
/// apart in the bracket `of` that the border was found in, with so many columns within.
template <class Stored>
__device__ __forceinline__ bracket around(std::uint32_t border, const bracket& of, std::uint32_t within,
                                          std::uint32_t k, std::uint32_t columns) {
  constexpr float kDeviations = 5.0f;  // of one row's count: two rows differ by 1.4 times as much
  const float share = __fdividef(static_cast<float>(k), static_cast<float>(columns));
  const float deviation = sqrtf(static_cast<float>(k) * fmaxf(1.0f - share, 0.0f));
  const float ranks = fminf(kDeviations * deviation + 8.0f, static_cast<float>(kListed / 3));
  const float width = value_of_number<Stored>(of.high) - value_of_number<Stored>(of.low);
  const float half = ranks * __fdividef(width, static_cast<float>(within));
  const bracket all = all_values<Stored>();
  if (!(half < INFINITY)) {  // or NaN
    const float numbers = ranks * __fdividef(static_cast<float>(of.high - of.low), static_cast<float>(within));
    const std::uint32_t by = __float2uint_rd(fminf(numbers, 0x1p30f));
    return {max(border - min(by, border), all.low), min(border + by + 1, all.high)};
  }
  const auto number = [](float value) { return core::ascending_key(value) >> kSharedBits<Stored>; };
  const float value = value_of_number<Stored>(border);
  return {min(max(number(value - half), all.low), border), min(max(number(value + half), border) + 1, all.high)};
}

/// Streams a row: marks its columns above the bracket and within, and lists the latter's numbers and places. @returns
/// how many are above. All threads come, after a barrier; they leave through one, but for the columns behind the
/// vectors, whose marks another must follow.
template <class Stored, bool Negated>
__device__ __forceinline__ std::uint32_t mark_row(const whole_row<Stored>& row, const bracket& between,
                                                  piece_ring<Stored>& ring, const bracket_memory& own,
                                                  block_sums& sums) {
  constexpr std::uint32_t kPitch = row_share<Stored>::kPitch;
  const std::uint32_t lane = sums.lane();
  const auto low = least_value<Stored>(max(between.low << kSharedBits<Stored>, kMinusInfinityKey));
  const auto high = least_value<Stored>(between.high << kSharedBits<Stored>);
  const bool lists = !between.is_one_number();
  const piece_marker<Stored, Negated> marker(lane);
  std::uint32_t above = 0;
  const auto append = [&](std::uint32_t marked, std::uint32_t first_place, auto number_at) {
    const std::uint32_t mine = __popc(marked);
    const std::uint32_t up_to = lanes_up_to(mine);
    std::uint32_t to = 0;
    if (lane == kWarp - 1 && up_to > 0) to = fetch_add_shared(own.listed, up_to);
    if (!lists) return;
    to = __shfl_sync(kFullWarp, to, kWarp - 1) + up_to - mine;
    for (; marked != 0; marked &= marked - 1, to++) {
      const std::uint32_t bit = __ffs(static_cast<int>(marked)) - 1;
      if (to < kListed) store_shared(own.list + to * 8, make_uint2(number_at(bit), first_place + bit));
    }
  };
  std::uint32_t above_behind = 0;
  std::uint32_t within_behind = 0;
  const std::uint32_t in_vectors = row.vectors * kPerVector<Stored>;
  if (sums.warp() == 0) {
    const auto beside = [&](std::uint32_t first, std::uint32_t columns, std::uint32_t first_place,
                            std::uint32_t& aboves, std::uint32_t& withins) {
      const std::uint32_t number = lane < columns ? number_of(row.values[first + lane], Negated) : 0;
      aboves = __ballot_sync(kFullWarp, number >= between.high);
      withins = __ballot_sync(kFullWarp, between.contains(number));
      above += number >= between.high ? 1 : 0;
      append(between.contains(number) ? 1 : 0, first_place + lane, [&](std::uint32_t) { return number; });
    };
    std::uint32_t above_before = 0;
    std::uint32_t within_before = 0;
    if (row.head > 0) beside(0, row.head, kValues - row.head, above_before, within_before);
    if (row.tail() > 0) beside(row.columns - row.tail(), row.tail(), kValues + in_vectors, above_behind, within_behind);
    if (lane == 0) {
      store_shared(own.above, __funnelshift_lc(0, above_before, kValues - row.head));
      store_shared(own.within, __funnelshift_lc(0, within_before, kValues - row.head));
    }
  }
#pragma unroll 1
  for (std::uint32_t first = sums.warp() * kPiece<Stored>; first < row.vectors; first += kPitch) {
    const std::uint32_t piece = ring.wait();
    const auto marks_from = [&](auto least) {
      sees_nothing seen;
      if constexpr (sizeof(Stored) == 4)
        return marker.fine(
            piece, 0, [&](std::uint32_t) { return least; }, seen);
      else
        return marker.coarse(piece, least, seen);
    };
    std::uint32_t reached = marks_from(low);
    std::uint32_t aboves = marks_from(high);
    const std::uint32_t columns = (row.vectors - first) * kPerVector<Stored>;  // from there on
    if (columns < kGroup) {
      const std::uint32_t are_there = bits_there(columns, lane);
      reached &= are_there;
      aboves &= are_there;
    }
    const std::uint32_t withins = reached & ~aboves;
    const std::uint32_t word = 1 + first * kPerVector<Stored> / kValues + lane;
    store_shared(own.above + word * 4, aboves);
    store_shared(own.within + word * 4, withins);
    above += __popc(aboves);
    const std::uint32_t values = piece + lane * static_cast<std::uint32_t>(kValues * sizeof(Stored));
    append(withins, word * kValues, [&](std::uint32_t bit) {
      return number_of(of_bits<Stored>(load_bits<Stored>(values + bit * static_cast<std::uint32_t>(sizeof(Stored)))),
                       Negated);
    });
    __syncwarp();
    ring.leave();
  }
  above = sums.of_threads(above);
  if (threadIdx.x == 0 && row.tail() > 0) {
    const std::uint32_t word = 4 * (1 + in_vectors / kValues);
    const std::uint32_t by = in_vectors % kValues;
    if (in_vectors % kGroup == 0) {  // no piece has it
      store_shared(own.above + word, above_behind);
      store_shared(own.within + word, within_behind);
    } else {
      set_shared_bits(own.above + word, above_behind << by);
      set_shared_bits(own.within + word, within_behind << by);
    }
  }
  return above;
}

/// Moves the listed columns that are above the border from the marks within to those above, and takes the marks of
/// those below it away. All threads come; barriers must come before and follow.
__device__ __forceinline__ void mark_listed(const row_border& border, std::uint32_t within, const bracket_memory& own) {
#pragma unroll 2
  for (std::uint32_t i = threadIdx.x; i < within; i += kThreads) {
    const auto listed = load_shared<uint2>(own.list + i * 8);
    if (border.is_tie(listed.x)) continue;
    const std::uint32_t word = listed.y / kValues * 4;
    const std::uint32_t bit = 1u << listed.y % kValues;
    clear_shared_bits(own.within + word, bit);
    if (border.is_above(listed.x)) set_shared_bits(own.above + word, bit);
  }
}

/// The first `count` of the bits that are set.
__device__ __forceinline__ std::uint32_t first_bits(std::uint32_t bits, std::uint32_t count) {
  for (std::uint32_t left = __popc(bits); left > count; left--) bits &= ~(0x80000000u >> __clz(static_cast<int>(bits)));
  return bits;
}

/// Writes the columns that are marked as above, and the first `ties` of those that are marked as within: k in all. All
/// threads come, after a barrier; one must follow before marks and list are written.
template <class Stored>
__device__ __forceinline__ void write_marked(const core::top_k_request& request, const whole_row<Stored>& row,
                                             std::int64_t to, std::uint32_t ties, const bracket_memory& own,
                                             const block_sums& sums) {
  const std::uint32_t lane = sums.lane();
  const std::uint32_t words = 1 + (row.columns - row.head + kValues - 1) / kValues;
  const std::uint32_t groups = (words + kWarp - 1) / kWarp;
  const auto marks_of = [&](std::uint32_t group) {
    const std::uint32_t word = group * kWarp + lane;
    if (word >= words) return make_uint2(0, 0);
    return make_uint2(load_shared<std::uint32_t>(own.above + word * 4),
                      load_shared<std::uint32_t>(own.within + word * 4));
  };
#pragma unroll 1
  for (std::uint32_t group = sums.warp(); group < groups; group += kWarps) {
    const uint2 marks = marks_of(group);
    const std::uint32_t above = __reduce_add_sync(kFullWarp, __popc(marks.x));
    const std::uint32_t within = __reduce_add_sync(kFullWarp, __popc(marks.y));
    if (lane == 0) store_shared(own.totals + group * 8, make_uint2(above, within));
  }
  __syncthreads();
  std::uint32_t above = 0;  // before the group
  std::uint32_t within = 0;
  std::uint32_t summed = 0;  // groups
  const top_k_output& out = request.out;
  const std::uint32_t staged = own.list + sums.warp() * kStagedBytes;
#pragma unroll 1
  for (std::uint32_t group = sums.warp(); group < groups; group += kWarps) {
    uint2 before = make_uint2(0, 0);
    for (std::uint32_t g = summed + lane; g < group; g += kWarp) {
      const auto total = load_shared<uint2>(own.totals + g * 8);
      before.x += total.x;
      before.y += total.y;
    }
    above += __reduce_add_sync(kFullWarp, before.x);
    within += __reduce_add_sync(kFullWarp, before.y);
    summed = group;
    const uint2 marks = marks_of(group);
    constexpr std::uint32_t kWithin = 1u << 16;
    const std::uint32_t mine = __popc(marks.x) + __popc(marks.y) * kWithin;
    const std::uint32_t up_to = lanes_up_to(mine);
    const std::uint32_t ties_before = within + (up_to - mine) / kWithin;
    std::uint32_t chosen = marks.x | first_bits(marks.y, ties - min(ties_before, ties));
    // Entries of the lanes before, and of all.
    const std::uint32_t group_ties = min(within, ties);
    const std::uint32_t place = (up_to - mine) % kWithin + min(ties_before, ties) - group_ties;
    const std::uint32_t entries = __shfl_sync(kFullWarp, place + __popc(chosen), kWarp - 1);
    std::uint32_t at = staged + place * 2;
    while (__any_sync(kFullWarp, chosen != 0)) {
#pragma unroll
      for (int i = 0; i < kListedAtOnce; i++) {  // without a branch, for lanes would wait for each other behind it
        const std::uint32_t others = chosen & (chosen - 1);
        store_shared_if(chosen, at, static_cast<std::uint16_t>(lane * kValues + only_mark(chosen ^ others)));
        chosen = others;
        at += 2;
      }
    }
    __syncwarp();
    const std::int64_t first = to + above + group_ties;
    const std::uint32_t first_column = group * kGroup + row.head - kValues;  // of the row; wraps for those before it
#pragma unroll 1
    for (std::uint32_t start = lane; start < entries; start += kWrittenAtOnce * kWarp) {
      std::uint32_t columns[kWrittenAtOnce];
#pragma unroll
      for (std::uint32_t i = 0; i < kWrittenAtOnce; i++)
        columns[i] = first_column + load_shared<std::uint16_t>(staged + min(start + i * kWarp, entries - 1) * 2);
      const auto store = [&](auto* results, auto result_of) {
        auto* mine = results + first + start;
#pragma unroll
        for (std::uint32_t i = 0; i < kWrittenAtOnce; i++)
          if (start + i * kWarp < entries) mine[i * kWarp] = result_of(i);
      };
      if (out.values) {
        Stored values[kWrittenAtOnce];
#pragma unroll
        for (std::uint32_t i = 0; i < kWrittenAtOnce; i++) values[i] = row.values[columns[i]];
        store(static_cast<Stored*>(out.values), [&](std::uint32_t i) { return values[i]; });
      }
      if (!out.indices) continue;
      if (out.indices_as == index_type::i32)
        store(static_cast<std::uint32_t*>(out.indices), [&](std::uint32_t i) { return row.first_column + columns[i]; });
      else
        store(static_cast<std::uint64_t*>(out.indices),
              [&](std::uint32_t i) { return std::uint64_t{row.first_column + columns[i]}; });
    }
    __syncwarp();
  }
}

/// What is known of the row at hand, and of those before.
struct bracket_search {
  bracket between;    // of the row at hand
  int looks = 0;      // at it, so far
  bracket like = {};  // the row before
  bool is_known = false;
  bool is_alike = true;  // a row to the one before

  __device__ __forceinline__ bool goes_by_row_before() const { return is_known && is_alike; }
};

/// A part of `outer` by a sample of the row. All threads come; they leave through a barrier.
template <class Stored>
__device__ __forceinline__ bracket part_by_row(const core::top_k_request& request, const whole_row<Stored>& row,
                                               const bracket& outer, block_sums& sums, filter_scratch& scratch) {
  constexpr std::uint32_t kAll = core::kFilterRowsSample;
  row_sample<Stored> sample;
  sample.load(row);
  const std::uint32_t flip = sign_flip<Stored>(request);
  const auto visit = [&](auto f) {
    sample.for_each(row, flip, [&](float value, std::uint32_t) { f(sampled_number<Stored>(value)); });
  };
  const auto k = static_cast<float>(request.options.k);
  return part_by_sample<Stored>(visit, __fdividef(k * kAll, static_cast<float>(row.columns)), kAll, outer, sums,
                                scratch);
}

/// Finds the border of a row that has been marked, and marks by it what is listed. @returns false if the border is not
/// within, or more than the list has room for; search.between is then what to look for next, if anything. @param above
/// columns, and @param within. All threads come; a barrier must follow.
template <class Stored>
__device__ __forceinline__ bool find_border(const core::top_k_request& request, const whole_row<Stored>& row,
                                            std::uint32_t above, std::uint32_t within, const bracket_memory& own,
                                            bracket_search& search, row_border& border, block_sums& sums,
                                            filter_scratch& scratch) {
  const auto k = static_cast<std::uint32_t>(request.options.k);
  const bracket between = search.between;
  const std::uint32_t wanted = k - min(above, k);
  if (wanted == 0 || wanted > within) {
    const bracket all = all_values<Stored>();
    const bracket outer = wanted == 0 ? bracket{between.high, all.high} : bracket{all.low, between.low};
    if (outer.low < outer.high)
      search.between = part_by_row(request, row, outer, sums, scratch);
    else
      search.looks = kMostLooks;  // fewer than k columns are numbers
    return false;
  }
  border = {between.low, wanted};
  if (between.is_one_number()) return true;
  const std::uint32_t listed = min(within, kListed);
  const auto visit = [&](auto f) {
#pragma unroll 4
    for (std::uint32_t i = threadIdx.x; i < listed; i += kThreads) f(load_shared<std::uint32_t>(own.list + i * 8));
  };
  if (listed < within) {
    const float expected = __fdividef(static_cast<float>(wanted) * kListed, static_cast<float>(within));
    search.between = part_by_sample<Stored>(visit, expected, kListed, between, sums, scratch);
    return false;
  }
  const number_bins bins{between.low, shift_for(between.high - between.low)};
  border_by_bins(visit, wanted, bins, all_numbers<Stored>(), border, sums, scratch);
  mark_listed(border, within, own);
  return true;
}

/// Streams and writes the block's rows from `index` on. @param pieces that the warp's stages have held; becomes how
/// many have. @returns the row that must be looked at again, or be searched by its numbers; those behind it are
/// untouched. All threads come, after a barrier; they leave through one.
template <class Stored>
__device__ __forceinline__ std::int64_t stream_rows(const filter_block& block, uint4* rings, const bracket_memory& own,
                                                    std::int64_t index, bracket_search& search, std::uint32_t& pieces,
                                                    block_sums& sums) {
  const core::top_k_request& request = block.request;
  const auto k = static_cast<std::uint32_t>(request.options.k);
  const bool negated = request.options.order == order::smallest;
  const auto is_streamed = [&](const whole_row<Stored>& row) {
    return row.columns > core::kFilterRowsSample && row.columns > k;
  };
  whole_row<Stored> row = open_row<Stored>(request, index);
  if (!is_streamed(row) || search.looks > kMostLooks) return index;
  if (sums.lane() == 0) async_fence();  // the stages have been read
  piece_ring<Stored> ring(rings + sums.warp() * (kRingBytes / 16), block.scratch.full[sums.warp()], sums.lane() == 0,
                          pieces);
  ring.append(row_share<Stored>(row, sums.warp()));
  ring.fill();
#pragma unroll 1
  for (;;) {
    const std::int64_t after = index + gridDim.x;
    const whole_row<Stored> next = after < request.matrix.rows ? open_row<Stored>(request, after) : whole_row<Stored>{};
    if (is_streamed(next)) {
      ring.append(row_share<Stored>(next, sums.warp()));
      ring.fill();
    }
    if (search.looks == 0)
      search.between = search.goes_by_row_before()
                           ? search.like
                           : part_by_row(request, row, all_values<Stored>(), sums, block.scratch);
    const bracket between = search.between;
    const std::uint32_t above = negated ? mark_row<Stored, true>(row, between, ring, own, sums)
                                        : mark_row<Stored, false>(row, between, ring, own, sums);
    const std::uint32_t within = load_shared<std::uint32_t>(own.listed);
    row_border border{};
    const bool is_found = find_border(request, row, above, within, own, search, border, sums, block.scratch);
    __syncthreads();  // marks are complete, and the list has been read
    if (threadIdx.x == 0) store_shared(own.listed, 0u);
    if (!is_found) {
      if (search.looks++ == 0 && search.goes_by_row_before()) search.is_alike = false;
      break;
    }
    write_marked(request, row, index * request.options.k, border.ties, own, sums);
    if (!search.goes_by_row_before()) search.is_alike = !search.is_known || search.like.contains(border.number);
    search.like = around<Stored>(border.number, between, within, k, row.columns);
    search.is_known = true;
    search.looks = 0;
    __syncthreads();  // marks and list have been read
    index = after;
    row = next;
    if (!is_streamed(row)) break;
  }
  pieces = ring.drain();
  __syncthreads();
  return index;
}

struct bracket_args {
  core::top_k_request request;
};

template <class Stored>
__global__ void __launch_bounds__(kThreads, 2) bracket_rows_kernel(const __grid_constant__ bracket_args args) {
  const core::top_k_request& request = args.request;
  const bracket_layout at = layout_of(request.matrix.cols);
  auto& scratch = *reinterpret_cast<filter_scratch*>(dynamic_shared());
  auto* rings = reinterpret_cast<uint4*>(dynamic_shared() + at.rings);
  const bracket_memory own{.totals = held(shared_address(dynamic_shared() + at.totals)),
                           .above = held(shared_address(dynamic_shared() + at.above)),
                           .within = held(shared_address(dynamic_shared() + at.within)),
                           .list = held(shared_address(dynamic_shared() + at.list)),
                           .listed = held(shared_address(dynamic_shared() + at.listed))};
  const filter_block block{.request = request, .scratch = scratch, .list = {}, .places = 0, .entries = {}, .order = {}};
  block_sums sums(scratch);
  clear_scratch(scratch);
  if (threadIdx.x == 0) store_shared(own.listed, 0u);
  if (sums.lane() == 0) {
    for (int s = 0; s < kStages<Stored>; s++) barrier_init(&scratch.full[sums.warp()][s], 1);
    barrier_init_fence();
  }
  std::uint32_t pieces = 0;
  bracket_search search{};
  __syncthreads();
  join_chain();
#pragma unroll 1
  for (std::int64_t index = blockIdx.x; index < request.matrix.rows;) {
    index = stream_rows<Stored>(block, rings, own, index, search, pieces, sums);
    if (index >= request.matrix.rows) break;
    if (search.looks > 0 && search.looks <= kMostLooks) continue;
    search_row<Stored, false>(block, index, sums);
    search.looks = 0;
    index += gridDim.x;
  }
}

}  // namespace

void launch_bracket_rows(cudaStream_t stream, const core::top_k_request& request, int multiprocessors) {
  by_stored_type(request.matrix.type, [&](auto stored) {
    launch_over(request.matrix.rows, multiprocessors, bracket_rows_kernel<decltype(stored)>,
                {.threads = kThreads, .shared_bytes = layout_of(request.matrix.cols).bytes, .overlaps = true}, stream,
                bracket_args{request}, "launching the row-wise top k of rows by a bracket of their borders");
  });
}

}  // namespace shortlist::cuda
