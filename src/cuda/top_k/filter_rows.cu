// Row-wise top k of many long rows: a block a row, which is streamed once past a filter that a sample of it suggests.
//
// Why it is fast: the copy engine streams rows through a ring in shared memory, the next row's while this one is
// chosen from; a column that does not reach the filter costs one or two instructions.
// Steps of a block, a row at a time: a sample spread over the row -> a cut that somewhat more than k columns reach,
// almost surely -> piece by piece, columns that reach it go to a list, in their order -> if their count is at least k
// and within the list's capacity, the k best are in it: that proves the sample right; else the row is searched in
// global memory -> the exact border, by counting the list -> entries by column, or sorted.
// Of many equal columns, the sample's cut takes the first ones, and so does the border.
// Limit: bytes(in) + bytes(out) over read bandwidth. Measured share: docs/kernels.md.
// History, 1024 x 50,000, k 2048: chunks shared by a block's warps 0.117 ms -> entries as found, no calls 0.106 -> bins
// without branches 0.099 -> pieces of each warp's own 0.097 -> marks exchanged so that the list is in order, the cut
// and the border by counts in registers 0.076.
#include <algorithm>
#include <cstdint>

#include "core/plan.hpp"
#include "cuda/device/block_select.cuh"
#include "cuda/device/cluster.cuh"
#include "cuda/runtime/launch.cuh"
#include "cuda/top_k/filter_list.cuh"
#include "cuda/top_k/filter_parts.cuh"
#include "cuda/top_k/filter_pieces.cuh"
#include "cuda/top_k/filter_rows.hpp"

namespace shortlist::cuda {
namespace {

using namespace filtering;

constexpr int kBlocks = 2;  // a multiprocessor holds

constexpr std::int64_t kRingsBegin = (sizeof(filter_scratch) + 127) / 128 * 128;

struct filter_args {
  core::top_k_request request;
  std::uint32_t capacity;  // entries of a block's list
};

/// Vectors spread over a row: a few neighbours from each of as many equal parts, at a place of their own in it, so that
/// no period of the data is the sample's, too.
template <class Stored>
class row_sample {
 public:
  __device__ __forceinline__ void load(const whole_row<Stored>& row) {
    const auto* vectors = reinterpret_cast<const uint4*>(row.values + row.head);
#pragma unroll
    for (int v = 0; v < kTaken; v++) raw_[v] = __ldg(vectors + vector(v, row.vectors));
  }
  /// Calls f(value, column) for the thread's values, larger ones being better.
  template <class F>
  __device__ __forceinline__ void for_each(const whole_row<Stored>& row, std::uint32_t flip, F f) const {
#pragma unroll
    for (int v = 0; v < kTaken; v++) {
      float values[kPerVector<Stored>];
      widen_vector<Stored>(make_uint4(raw_[v].x ^ flip, raw_[v].y ^ flip, raw_[v].z ^ flip, raw_[v].w ^ flip), values);
      const std::uint32_t column = row.first_column + row.head + vector(v, row.vectors) * kPerVector<Stored>;
#pragma unroll
      for (int e = 0; e < kPerVector<Stored>; e++) f(values[e], column + e);
    }
  }

 private:
  static constexpr std::uint32_t kNeighbours = 4;  // each place alone would cost the memory pipe a cycle or two
  static constexpr int kTaken = core::kFilterRowsSample / kThreads / kPerVector<Stored>;  // vectors of a thread
  static_assert(kTaken * kThreads * kPerVector<Stored> == core::kFilterRowsSample);

  static __device__ __forceinline__ std::uint32_t vector(int v, std::uint32_t vectors) {
    constexpr std::uint32_t kParts = kTaken * kThreads / kNeighbours;
    constexpr std::uint32_t kGoldenRatio = 2654435769;  // 0.618 of 2^32
    const std::uint32_t part = (v * kThreads + threadIdx.x) / kNeighbours;
    const std::uint32_t place = part * (~0u / kParts + 1) + part * kGoldenRatio / kParts;
    return __umulhi(place, vectors - (kNeighbours - 1)) + threadIdx.x % kNeighbours;
  }

  uint4 raw_[kTaken];
};

/// How many of the sample must reach a cut for k of the row's columns to reach it, but for one row in 10,000: the
/// count of those that k columns would give spreads by its root.
__device__ __forceinline__ std::uint32_t sampled_rank(std::uint32_t k, std::uint32_t columns) {
  constexpr std::uint32_t kAll = core::kFilterRowsSample;
  const float expected = __fdividef(static_cast<float>(k) * core::kFilterRowsSample, static_cast<float>(columns));
  const float root = expected * rsqrtf(expected);
  return min(__float2uint_rd(expected + core::kFilterRowsDeviations * root + core::kFilterRowsLeast), kAll);
}
/// So many more may reach it: a count less, mostly.
__device__ __forceinline__ std::uint32_t rank_slack(std::uint32_t rank) {
  return rank / core::kFilterRowsSlackShare + 1;
}

/// What is learned from a row for the next: rows of a matrix are mostly alike.
struct learned {
  std::uint32_t cut = 0;    // the number that the sample suggested; 0: none
  bool by_columns = false;  // the sample's ties were cut by their columns
  float spread = 0;         // what lies between the numbers of two columns near the border
};

/// fp32 values are told apart by their upper halves, where that is enough.
template <class Stored>
constexpr std::uint32_t kCoarseShift = sizeof(Stored) == 4 ? 16 : 0;

/// A number that about `wanted` of the sample reach, guessed by the threads' best: of those as large a share is below
/// it as its share of all to the power of what a thread has. All threads come.
template <class Stored>
__device__ __forceinline__ std::uint32_t guess_cut(const row_sample<Stored>& sample, const whole_row<Stored>& row,
                                                   std::uint32_t flip, std::uint32_t wanted, block_sums& sums) {
  constexpr int kEach = core::kFilterRowsSample / kThreads;
  float best = core::float_from_bits(0xFF800000u);
  sample.for_each(row, flip, [&](float value, std::uint32_t) { best = fmaxf(best, value); });
  const std::uint32_t mine = core::ascending_key(best) >> kSharedBits<Stored>;
  std::uint32_t rank = 0;  // among the lanes
#pragma unroll 8
  for (int other = 0; other < kWarp; other++) {
    const std::uint32_t theirs = __shfl_sync(kFullWarp, mine, other);
    rank += theirs > mine || (theirs == mine && other < static_cast<int>(sums.lane())) ? 1 : 0;
  }
  const float below = 1.0f - static_cast<float>(wanted) * (1.0f / core::kFilterRowsSample);
  const float share_below = __powf(below, kEach);
  const auto picked = static_cast<std::uint32_t>((1.0f - share_below) * (kWarp - 1));
  const unsigned has_it = __ballot_sync(kFullWarp, rank == picked);
  const std::uint32_t of_warp = __shfl_sync(kFullWarp, mine, __ffs(static_cast<int>(has_it)) - 1);
  const std::uint32_t mean = sums.of_threads(of_warp / kThreads);
  return min(max(mean >> kCoarseShift<Stored>, 1u), kInfinityNumber<Stored> >> kCoarseShift<Stored>)
         << kCoarseShift<Stored>;
}

/// The same as below by counting in bins, for samples that nothing is known of, and for ties. All threads leave through
/// a barrier.
template <class Stored>
__device__ __forceinline__ std::uint64_t sample_cut_by_bins(const row_sample<Stored>& sample,
                                                            const whole_row<Stored>& row, std::uint32_t flip,
                                                            std::uint32_t wanted, block_sums& sums,
                                                            filter_scratch& scratch) {
  const std::uint32_t slack = rank_slack(wanted);
  const auto as_cut = [](std::uint32_t number, std::uint32_t columns) {
    return static_cast<std::uint64_t>(number << kSharedBits<Stored>) << 32 | columns;
  };
  const auto number = [](float value) {  // NaN is as bad as -infinity
    return core::ascending_key(fmaxf(value, core::float_from_bits(0xFF800000u))) >> kSharedBits<Stored>;
  };
  number_bins bins = all_numbers<Stored>();
  found_bin found{};
#pragma unroll 1
  for (;;) {
    const bin_counter counter(bins, scratch);
    sample.for_each(row, flip, [&](float value, std::uint32_t) { counter.count(number(value)); });
    find_bin(wanted, found, sums, scratch);
    if (found.inside <= slack) return as_cut(bins.begin(found.bin), 0);
    wanted -= found.before;
    if (bins.shift == 0) break;
    bins = bins.within(found.bin, bins.shift > kCoarseShift<Stored> ? kCoarseShift<Stored> : 0);
  }
  // One number fills the bin: it is cut by columns.
  const std::uint32_t single = bins.begin(found.bin);
  const number_bins places{~(row.first_column + row.columns - 1), shift_for(row.columns)};
  const bin_counter of_places(places, scratch);
  sample.for_each(row, flip, [&](float value, std::uint32_t column) {
    if (number(value) == single) of_places.count(~column);
  });
  find_bin(wanted, found, sums, scratch);
  return as_cut(single, places.begin(found.bin));
}

/// A cut that about `wanted` of the sample reach: a key, and in the lower half the column that ties must reach. All
/// threads come.
template <class Stored>
__device__ __forceinline__ std::uint64_t sample_cut(const row_sample<Stored>& sample, const whole_row<Stored>& row,
                                                    std::uint32_t flip, std::uint32_t wanted,
                                                    const learned& from_before, block_sums& sums,
                                                    filter_scratch& scratch) {
  if (!from_before.by_columns) {
    const std::uint32_t slack = rank_slack(wanted);
    const std::uint32_t guess = from_before.cut != 0 ? from_before.cut : guess_cut(sample, row, flip, wanted, sums);
    const float columns_each = static_cast<float>(row.columns) * (1.0f / core::kFilterRowsSample);
    constexpr std::uint32_t kShift = kCoarseShift<Stored>;
    constexpr std::uint32_t kBest = kInfinityNumber<Stored>;
    number_search search{.low = {0, core::kFilterRowsSample},
                         .high = {((kBest >> kShift) + 1) << kShift, 0},
                         .spread = from_before.spread * columns_each,
                         .low_is_near = false,
                         .high_is_near = false};
    const reached_number found = search.run(guess, wanted, slack, kShift, [&](std::uint32_t number) {
      const float least = core::from_ascending_key(number << kSharedBits<Stored>);
      std::uint32_t count = 0;
      sample.for_each(row, flip, [&](float value, std::uint32_t) { count += value >= least ? 1 : 0; });
      return sums.of_threads(count);
    });
    if (found.count - wanted <= slack) return static_cast<std::uint64_t>(found.number << kSharedBits<Stored>) << 32;
  }
  return sample_cut_by_bins(sample, row, flip, wanted, sums, scratch);
}

/// A lane's marked columns of a piece: the first few of them taken at once, so that all loads overlap.
template <class Stored>
class marked_columns {
 public:
  /// @param marks of 32 columns. @param values the shared address of the first. All lanes come.
  __device__ __forceinline__ void take(std::uint32_t marks, std::uint32_t values) {
    rest_ = marks;
    values_ = values;
    count_ = __popc(marks);
    bits_ = 0;
#pragma unroll
    for (int i = 0; i < kTaken; i++) {
      const entry e = next();
      bits_ |= (e.x << (kBitWidth * i)) & ((kValues - 1u) << (kBitWidth * i));
      taken_[i] = e.y;
    }
    has_more_ = __any_sync(kFullWarp, rest_ != 0);
  }
  __device__ __forceinline__ void take_none() { rest_ = count_ = 0; }
  /// Whether a lane of the warp has more than were taken, and the piece must stay.
  __device__ __forceinline__ bool has_more() const { return has_more_; }
  /// Writes them as entries. @param column the first one's number. @param to a shared address.
  __device__ __forceinline__ void store(std::uint32_t column, std::uint32_t to) {
#pragma unroll
    for (int i = 0; i < kTaken; i++) {
      if (static_cast<std::uint32_t>(i) < count_)
        store_shared(to + i * 8, make_uint2(column + (bits_ >> (kBitWidth * i)) % kValues, taken_[i]));
    }
    for (to += kTaken * 8; rest_ != 0; to += 8) {
      const entry e = next();
      store_shared(to, make_uint2(column + e.x, e.y));
    }
  }

 private:
  static constexpr int kTaken = 6;
  static constexpr int kBitWidth = 5;
  static_assert(kValues == 1 << kBitWidth && kTaken * kBitWidth <= 32);

  /// The first column that is left, if one is.
  __device__ __forceinline__ entry next() {
    const std::uint32_t others = rest_ & (rest_ - 1);
    std::uint32_t bit;  // of the only one that is set: found in one instruction
    asm("bfind.u32 %0, %1;" : "=r"(bit) : "r"(rest_ ^ others));
    const std::uint32_t value = load_shared_if<Stored>(rest_, values_ + bit * sizeof(Stored));
    rest_ = others;
    return make_uint2(bit, value);
  }

  std::uint32_t taken_[kTaken];
  std::uint32_t bits_;  // of them, one behind the other
  std::uint32_t rest_ = 0;
  std::uint32_t values_;
  std::uint32_t count_;
  bool has_more_;
};

/// Lists the columns beside a row's vectors that reach the filter: fewer than a vector has. @param n entries of the
/// list, which may have room for more. All lanes of all warps come; the first warp writes.
template <class Stored>
__device__ __forceinline__ void list_beside(const whole_row<Stored>& row, std::uint32_t first, std::uint32_t columns,
                                            std::uint32_t vector, const row_filter<Stored>& filter, bool negated,
                                            const row_list& list, std::uint32_t& n, const block_sums& sums) {
  const std::uint32_t at = first + sums.lane();
  const bool reaches = sums.lane() < columns && filter.reached_by(row.values[at], vector, negated);
  const unsigned marks = __ballot_sync(kFullWarp, reaches);
  const std::uint32_t place = n + __popc(marks & ((1u << sums.lane()) - 1));
  if (reaches && sums.warp() == 0 && place < list.capacity)
    store_shared(list.entries + place * 8, entry_of(row.values[at], row.first_column + at));
  n += __popc(marks);
}

/// Streams a row and lists what reaches the cut, by column: the warps tell each other at every step how many entries
/// they add, and go on to the next piece before they ask. @returns how many: more than the list has room for where not
/// all are in it. All threads come; a barrier must follow.
template <class Stored, bool Negated>
__device__ __forceinline__ std::uint32_t list_row(const whole_row<Stored>& row, std::uint64_t cut,
                                                  piece_ring<Stored>& ring, const row_list& list, block_sums& sums) {
  constexpr std::uint32_t kPitch = row_share<Stored>::kPitch;
  const std::uint32_t lane = sums.lane();
  const std::uint32_t mine = first_vector_of<Stored>(lane) * 16;
  const mark_exchange<Stored> exchange(lane);
  const row_filter<Stored> filter(cut, row);
  std::uint32_t n = 0;
  if (row.head > 0) list_beside(row, 0, row.head, 0, filter, Negated, list, n, sums);

  std::uint32_t first = sums.warp() * kPiece<Stored>;
  std::uint32_t column = row.first_column + row.head + first * kPerVector<Stored> + lane * kValues;
  marked_columns<Stored> marked;
  std::uint32_t before = 0;  // entries of the lanes before, and
  std::uint32_t from = 0;    // the first column of the lane, of the step that was posted
  const auto store = [&] {
    std::uint32_t begin = 0;
    const std::uint32_t all = sums.of_posted(begin);
    begin += n + before;
    n += all;
    if (n <= list.capacity) marked.store(from, list.entries + begin * 8);
  };
  bool is_posted = false;
#pragma unroll 1
  for (std::uint32_t start = 0; start < row.vectors; start += kPitch) {
    if (first < row.vectors) {
      const std::uint32_t piece = ring.wait();
      std::uint32_t marks = exchange.by_column(marks_of_piece<Stored, Negated>(piece + mine, first, lane, filter));
      const std::uint32_t columns = (row.vectors - first) * kPerVector<Stored>;  // from there on
      if (columns < kPiece<Stored> * kPerVector<Stored>) {
        const std::uint32_t there = columns > lane * kValues ? columns - lane * kValues : 0;
        marks &= there < kValues ? (1u << there) - 1 : ~0u;
      }
      const std::uint32_t count = __popc(marks);
      const std::uint32_t up_to = lanes_up_to(count);
      if (is_posted) store();
      sums.post(up_to);
      is_posted = true;
      before = up_to - count;
      from = column;
      marked.take(marks, piece + lane * (kValues * sizeof(Stored)));
      if (marked.has_more()) {
        store();
        is_posted = false;
      }
      __syncwarp();
      ring.leave();
    } else {  // the others have a last one
      if (is_posted) store();
      sums.post(0);
      is_posted = true;
      marked.take_none();
    }
    first += kPitch;
    column += kPitch * kPerVector<Stored>;
  }
  if (is_posted) store();
  if (row.tail() > 0)
    list_beside(row, row.columns - row.tail(), row.tail(), row.vectors, filter, Negated, list, n, sums);
  return n;
}

/// The border of the k best of a list, by counting what each thread holds of it: in bins around where it was expected,
/// mostly of less than a number each. @param n entries of the list, no more than a round. @param least no number of the
/// list is below it. All threads come.
__device__ __forceinline__ row_border held_border(const std::uint32_t (&numbers)[kHeld], const round_share& share,
                                                  std::uint32_t n, std::uint32_t k, std::uint32_t least,
                                                  std::uint32_t best, learned& from_before, block_sums& sums,
                                                  filter_scratch& scratch) {
  if (n == k) return {0, 0};
  const std::uint32_t dropped = n - k;
  const float spread = from_before.spread;
  // The last of the dropped is looked for from the worst on.
  const std::uint32_t shift = min(31 - __clz(static_cast<int>(max(__float2uint_rd(0.4f * spread), 1u))), 16);
  const std::uint32_t half = kBins / 2 << shift;
  const std::uint32_t expected = least + min(__float2uint_rn(static_cast<float>(dropped) * spread), best - least);
  const std::uint32_t low = max(expected - least > half ? expected - half : least, 1u);
  const std::uint32_t bins = held(shared_address(scratch.bins));
  std::uint32_t below = 0;
#pragma unroll
  for (int i = 0; i < kHeld; i++) {
    if (i >= share.steps) break;
    const std::uint32_t bin = (numbers[i] - low) >> shift;
    if (numbers[i] < low)
      below += share.has(i) ? 1 : 0;
    else if (bin < kBins)
      asm volatile("red.shared.add.u32 [%0], 1;" ::"r"(bins + bin * 4) : "memory");
  }
  below = __reduce_add_sync(kFullWarp, below);
  if (sums.lane() == 0 && below > 0) atomicAdd(&scratch.bins[0], below);
  found_bin found{};
  reached_number at_least{least, n};
  reached_number above{best + 1, 0};
  if (find_bin(dropped, found, sums, scratch)) {
    const std::uint32_t bin = kBins - 1 - found.bin;  // from the worst on
    if (bin > 0) at_least = {low + (bin << shift), n - found.before};
    above = {low + ((bin + 1) << shift), n - found.before - found.inside};
  }
  row_border border{above.number - 1, 0};
  std::uint32_t end = above.number;
  if (above.count != k) {
    if (above.number - at_least.number == 1) {
      border = {at_least.number, k - above.count};
    } else {
      const auto count = [&](std::uint32_t number) {
        std::uint32_t reaching = 0;
#pragma unroll
        for (int i = 0; i < kHeld; i++) {
          if (i >= share.steps) break;
          reaching += numbers[i] >= number ? 1 : 0;
        }
        return sums.of_threads(reaching);
      };
      const bool is_known = above.count != 0 || at_least.count != n;
      number_search search{
          .low = at_least, .high = above, .spread = spread, .low_is_near = true, .high_is_near = is_known};
      const std::uint32_t width = above.number - at_least.number;
      const std::uint32_t farther = is_known ? width / 2 : expected - at_least.number;
      const reached_number last = search.run(at_least.number + min(max(farther, 1u), width - 1), k, 0, 0, count);
      border = last.count == k ? row_border{last.number - 1, 0} : row_border{last.number, k - search.high.count};
      end = last.number;
    }
  }
  if (end > least) from_before.spread = __fdividef(static_cast<float>(end - least), static_cast<float>(dropped));
  return border;
}

/// What a block has in shared memory, and where its parts lie.
struct filter_block {
  const filter_args& args;
  filter_scratch& scratch;
  uint4* rings;
  row_list list;

  __device__ __forceinline__ std::uint64_t* entries() const {
    return reinterpret_cast<std::uint64_t*>(rings + kWarps * kRingBytes / 16);
  }
  /// Where entries are sorted.
  __device__ __forceinline__ order_scratch& order() const {
    return *reinterpret_cast<order_scratch*>(entries() + args.capacity);
  }
};

/// Orders and writes the k best of a list of no more entries than there are threads. @returns whether k of it are
/// numbers; if not, nothing was written. All threads come, after a barrier; they leave through one.
template <class Stored>
__device__ __forceinline__ bool write_few_sorted(const filter_block& block, const row_writer<Stored>& write,
                                                 std::uint32_t n, block_sums& sums) {
  const top_k_options& options = block.args.request.options;
  const auto k = static_cast<std::uint32_t>(options.k);
  bool is_number = false;
  if (threadIdx.x < n) {
    const entry e = block.list(threadIdx.x);
    const std::uint32_t key = key_of_value(stored_in<Stored>(e), options.order == order::smallest);
    is_number = key != core::kNanKey;
    block.entries()[threadIdx.x] = core::row_key(key, e.x);
  }
  if (sums.of_threads(is_number ? 1 : 0) < k) return false;
  rank_by_counting<kThreads>(block.entries(), n, [&](std::uint32_t rank, std::uint64_t key) {
    if (rank < k) write(rank, key);
  });
  __syncthreads();
  return true;
}

/// Finds and writes the k best of what the threads hold of the list. @param n entries of it, k or more. @param least no
/// number of it is below it. @param meanwhile is called between the two. @returns whether they are in it; if not,
/// nothing of use was written. All threads come.
template <class Stored, bool Sorted, class Meanwhile>
__device__ __forceinline__ bool write_held(const filter_block& block, const row_writer<Stored>& write, std::uint32_t n,
                                           std::uint32_t least, learned& from_before, block_sums& sums,
                                           Meanwhile meanwhile) {
  const core::top_k_request& request = block.args.request;
  const auto k = static_cast<std::uint32_t>(request.options.k);
  const bool negated = request.options.order == order::smallest;
  if constexpr (Sorted) {
    if (n <= kThreads) return write_few_sorted(block, write, n, sums);
  }
  const round_share share(0, n, sums);
  std::uint32_t numbers[kHeld];
  load_numbers<Stored>(block.list, share, negated, numbers);
  const row_border border =
      held_border(numbers, share, n, k, least, kInfinityNumber<Stored>, from_before, sums, block.scratch);
  if constexpr (Sorted) {
    const bool written = for_each_held_in_order<Stored>(block.entries(), block.list, share, negated, border, k,
                                                        block.order(), sums, write);
    meanwhile();
    return written;
  } else {
    meanwhile();
    uint2 before = make_uint2(0, 0);
    const auto keep = [&](std::uint32_t place, int i) {
      const entry e = block.list(share.at(i));
      write.stored(place, e.x, stored_in<Stored>(e));
    };
    if (border.ties == 0)
      place_round<false>(numbers, share, border, before, sums, keep);
    else
      place_round<true>(numbers, share, border, before, sums, keep);
    return before.x + min(before.y, border.ties) == k;
  }
}

/// Writes those of n entries that are within a border. @returns how many. All threads come, after a barrier; they leave
/// through one.
template <class Stored, bool Sorted, class Entries>
__device__ __forceinline__ std::uint32_t write_within(const filter_block& block, const row_writer<Stored>& write,
                                                      const Entries& entries, std::uint32_t n, const row_border& border,
                                                      block_sums& sums) {
  const bool negated = block.args.request.options.order == order::smallest;
  std::uint32_t written = 0;
  if constexpr (Sorted) {
    written = gather_keys<Stored>(entries, n, negated, border, block.list, sums);
    for_each_in_order(block.entries(), written, block.order(), write);
  } else {
    written = for_each_within<Stored>(entries, n, negated, border, sums, [&](std::uint32_t place, const entry& e) {
      write.stored(place, e.x, stored_in<Stored>(e));
    });
  }
  __syncthreads();
  return written;
}

/// The same as write_held of a list that is longer than the threads may hold. All threads come, after a barrier.
template <class Stored, bool Sorted>
__device__ __forceinline__ bool write_long(const filter_block& block, const row_writer<Stored>& write, std::uint32_t n,
                                           std::uint32_t least, block_sums& sums) {
  constexpr std::uint32_t kUsualShift = sizeof(Stored) == 4 ? 14 : 0;
  const core::top_k_request& request = block.args.request;
  const auto k = static_cast<std::uint32_t>(request.options.k);
  const bool negated = request.options.order == order::smallest;
  const auto visit = [&](auto f) {
#pragma unroll 4
    for (std::uint32_t i = threadIdx.x; i < n; i += kThreads) f(number_of(stored_in<Stored>(block.list(i)), negated));
  };
  const number_bins bins{least, kUsualShift, kBins, true};
  row_border border{};
  if (!border_by_bins(visit, k, bins, all_numbers<Stored>(), border, sums, block.scratch)) return false;
  return write_within<Stored, Sorted>(block, write, block.list, n, border, sums) == k;
}

/// Finds and writes the best of a row by its numbers in global memory: of one whose sample was wrong, or a short one.
/// All threads come, after a barrier; they leave through one.
template <class Stored, bool Sorted>
__device__ __forceinline__ void search_row(const filter_block& block, std::int64_t index, block_sums& sums) {
  const core::top_k_request& request = block.args.request;
  const auto k = static_cast<std::uint32_t>(request.options.k);
  const bool negated = request.options.order == order::smallest;
  const whole_row<Stored> row = open_row<Stored>(request, index);
  const row_writer<Stored> write(request, index, row);
  row_border border{0, row.columns};
  if (row.columns > k) {
    const auto visit = [&](auto f) {
#pragma unroll 4
      for (std::uint32_t i = threadIdx.x; i < row.columns; i += kThreads) f(number_of(row.values[i], negated));
    };
    border_by_bins(visit, k, all_numbers<Stored>(), all_numbers<Stored>(), border, sums, block.scratch);
  }
  write_within<Stored, Sorted>(block, write, columns_of_row<Stored>{row}, row.columns, border, sums);
  for (std::uint32_t place = row.columns + threadIdx.x; place < k; place += kThreads) write.pad(place);
}

/// Streams and writes the block's rows from `index` on. @param pieces that the warp's stages have held; becomes how
/// many have. @returns the row that must be searched by its numbers; those behind it are untouched. All threads come,
/// after a barrier; they leave through one.
template <class Stored, bool Sorted>
__device__ __forceinline__ std::int64_t stream_rows(const filter_block& block, std::int64_t index,
                                                    std::uint32_t& pieces, block_sums& sums) {
  const core::top_k_request& request = block.args.request;
  const row_list& list = block.list;
  const std::uint32_t flip = sign_flip<Stored>(request);
  const auto is_streamed = [&](const whole_row<Stored>& row) { return row.columns > block.args.capacity; };
  whole_row<Stored> row = open_row<Stored>(request, index);
  if (!is_streamed(row)) return index;
  if (sums.lane() == 0) async_fence();  // the stages have been read
  row_sample<Stored> sample;
  sample.load(row);  // before the pieces, which it would wait for
  piece_ring<Stored> ring(block.rings + sums.warp() * (kRingBytes / 16), block.scratch.full[sums.warp()],
                          sums.lane() == 0, pieces);
  ring.append(row_share<Stored>(row, sums.warp()));
  ring.fill();
  learned from_before{.spread = static_cast<float>(0x10000u >> kSharedBits<Stored>) / 32.0f};
#pragma unroll 1
  for (;;) {
    const auto k = static_cast<std::uint32_t>(request.options.k);
    const std::int64_t after = index + gridDim.x;
    const auto open_next = [&] {
      return after < request.matrix.rows ? open_row<Stored>(request, after) : whole_row<Stored>{};
    };
    if (const whole_row<Stored> next = open_next(); is_streamed(next)) {
      ring.append(row_share<Stored>(next, sums.warp()));
      ring.fill();
    }
    const std::uint64_t cut =
        sample_cut(sample, row, flip, sampled_rank(k, row.columns), from_before, sums, block.scratch);
    const std::uint32_t n = request.options.order == order::smallest
                                ? list_row<Stored, true>(row, cut, ring, list, sums)
                                : list_row<Stored, false>(row, cut, ring, list, sums);
    const std::uint32_t least = core::key_of(cut) >> kSharedBits<Stored>;
    from_before.cut = least;
    from_before.by_columns = static_cast<std::uint32_t>(cut) != 0;
    const whole_row<Stored> next = open_next();
    __syncthreads();                // the list is complete
    const auto load_sample = [&] {  // sorting leaves no registers for it
      if (!Sorted && is_streamed(next)) sample.load(next);
    };
    const row_writer<Stored> write(request, index, row);
    bool written = false;
    if (n >= k && n <= kRound && n <= list.capacity) {
      written = write_held<Stored, Sorted>(block, write, n, least, from_before, sums, load_sample);
    } else if (n >= k && n <= list.capacity) {
      written = write_long<Stored, Sorted>(block, write, n, least, sums);
      load_sample();
    }
    if (!written) break;
    index = after;
    if (!is_streamed(next)) break;
    row = next;
    if (Sorted) sample.load(row);
  }
  pieces = ring.drain();
  __syncthreads();
  return index;
}

template <class Stored, bool Sorted>
__global__ void __launch_bounds__(kThreads, kBlocks) filter_rows_kernel(const __grid_constant__ filter_args args) {
  const core::top_k_request& request = args.request;
  auto* rings = reinterpret_cast<uint4*>(dynamic_shared() + kRingsBegin);
  const filter_block block{args,
                           *reinterpret_cast<filter_scratch*>(dynamic_shared()),
                           rings,
                           {held(shared_address(rings + kWarps * kRingBytes / 16)), args.capacity}};
  block_sums sums(block.scratch);
  clear_scratch(block.scratch);
  if (sums.lane() == 0) {
    for (int s = 0; s < kStages<Stored>; s++) barrier_init(&block.scratch.full[sums.warp()][s], 1);
    if (sums.warp() == 0) barrier_init(&block.scratch.posted, kThreads);
    barrier_init_fence();
  }
  std::uint32_t pieces = 0;
  __syncthreads();
#pragma unroll 1
  for (std::int64_t index = blockIdx.x; index < request.matrix.rows; index += gridDim.x) {
    index = stream_rows<Stored, Sorted>(block, index, pieces, sums);
    if (index < request.matrix.rows) search_row<Stored, Sorted>(block, index, sums);
  }
}

template <class Stored, bool Sorted>
void launch_as(cudaStream_t stream, const core::top_k_request& request, int multiprocessors) {
  constexpr const char* kWhat = "launching the row-wise top k of many long rows";
  constexpr std::int64_t kMultiple = alignof(order_scratch) / sizeof(entry);
  const std::int64_t capacity =
      (core::filter_rows_capacity(request.matrix.cols, request.options.k, Sorted) + kMultiple - 1) / kMultiple *
      kMultiple;
  const filter_args args{request, static_cast<std::uint32_t>(capacity)};
  launch_shape shape;
  shape.threads = kThreads;
  shape.shared_bytes = kRingsBegin + kWarps * kRingBytes + capacity * static_cast<std::int64_t>(sizeof(entry));
  if (Sorted) shape.shared_bytes += sizeof(order_scratch);
  const std::int64_t fitting =
      blocks_per_multiprocessor(filter_rows_kernel<Stored, Sorted>, kThreads, shape.shared_bytes, kWhat);
  shape.grid =
      dim3(static_cast<unsigned>(std::min(request.matrix.rows, std::max<std::int64_t>(fitting, 1) * multiprocessors)));
  launch(filter_rows_kernel<Stored, Sorted>, shape, stream, args, kWhat);
}

}  // namespace

void launch_filter_rows(cudaStream_t stream, const core::top_k_request& request, int multiprocessors) {
  by_stored_type(request.matrix.type, [&](auto stored) {
    using value = decltype(stored);
    if (request.options.sorted)
      launch_as<value, true>(stream, request, multiprocessors);
    else
      launch_as<value, false>(stream, request, multiprocessors);
  });
}

}  // namespace shortlist::cuda
