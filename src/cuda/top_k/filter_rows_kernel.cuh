// Row-wise top k of many long rows: a block a row, which is streamed once past a filter that a sample of it suggests.
//
// Why it is fast: the copy engine streams rows through a ring in shared memory, the next row's while this one is
// chosen from; a column that does not reach the filter costs one or two instructions.
// Steps of a block, a row at a time: a sample spread over the row -> a cut that somewhat more than k columns reach,
// almost surely -> piece by piece, columns that reach it go to a list, in their order -> if their count is at least k
// and within the list's capacity, the k best are in it: that proves the sample right; else the row is searched in
// global memory -> the exact border, by counting the list -> entries by column, or sorted.
// Of many equal columns, the sample's cut takes the first ones, and so does the border. Early stops: filter_stop.cuh.
// Limit: bytes(in) + bytes(out) over read bandwidth. Measured share: docs/kernels.md.
// History, 1024 x 50,000, k 2048: chunks shared by a block's warps 0.117 ms -> entries as found, no calls 0.106 -> bins
// without branches 0.099 -> pieces of each warp's own 0.097 -> marks exchanged so that the list is in order, the cut
// and the border by counts in registers 0.076 -> no exchange: lanes read their own columns in turns that meet no bank
// twice; neighbours held by a thread, entries written from shared memory 0.073 -> a sample of whole lines, the border's
// bins in fewer instructions: by a driver 0.078 -> 0.074 -> entries looked at four at a time, without a branch for each
// 0.069. Sorted, in a graph: 0.117 -> nothing spilled, bins of numbers and columns 0.099; 4096 x 32,000, k 50: 0.255 ->
// all lists in bins 0.153. k 4096: lists searched in shared memory 0.196 -> held by the threads of a block that is
// alone on its multiprocessor 0.103.
// Early stops of 10,000 x 50,000, k 64 (exact: 0.490), eight steps and an eps of 1e-4: by radix_rows behind the exact
// search 1.834 and 1.120 -> here 0.505 and 0.512.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/plan.hpp"
#include "cuda/device/block_select.cuh"
#include "cuda/device/chain.cuh"
#include "cuda/device/cluster.cuh"
#include "cuda/runtime/launch.cuh"
#include "cuda/top_k/filter_list.cuh"
#include "cuda/top_k/filter_parts.cuh"
#include "cuda/top_k/filter_pieces.cuh"
#include "cuda/top_k/filter_sample.cuh"
#include "cuda/top_k/filter_stop.cuh"
#include "cuda/top_k/filter_write.cuh"

namespace shortlist::cuda::filtering {

/// What is written of a row.
enum class row_result : std::uint8_t {
  by_column,
  many_by_column,  // of a list that only a block alone on its multiprocessor has room for
  sorted,
  stopped
};
constexpr int blocks_of(row_result result) { return result == row_result::many_by_column ? 1 : 2; }
/// Entries of a list that a thread holds, at most.
constexpr int most_held(row_result result) { return result == row_result::many_by_column ? 57 : kHeld; }

constexpr std::int64_t kPlacesBegin = sizeof(filter_scratch);
template <row_result Result>
constexpr std::int64_t kStopBegin = kPlacesBegin +
                                    (Result == row_result::sorted ? 0 : 2 * most_held(Result) * kThreads);
template <row_result Result>
constexpr std::int64_t kRingsBegin = (kStopBegin<Result> +
                                      (Result == row_result::stopped ? static_cast<int>(sizeof(stop_scratch)) : 0) +
                                      127) /
                                     128 * 128;

struct filter_args {
  core::top_k_request request;
  std::uint32_t capacity;  // entries of a block's list
  early_stop stop;
};

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
  __device__ __forceinline__ void take_none() { count_ = 0; }
  /// Whether a lane of the warp has more than were taken, and the piece must stay.
  __device__ __forceinline__ bool has_more() const { return has_more_; }
  /// Writes those that were taken as entries. @param column the first one's number. @param to a shared address.
  __device__ __forceinline__ void store(std::uint32_t column, std::uint32_t to) const {
#pragma unroll
    for (int i = 0; i < kTaken; i++) {
      if (static_cast<std::uint32_t>(i) < count_)
        store_shared(to + i * 8, make_uint2(column + (bits_ >> (kBitWidth * i)) % kValues, taken_[i]));
    }
  }
  /// The same of the others.
  __device__ __forceinline__ void store_more(std::uint32_t column, std::uint32_t to) {
    for (to += kTaken * 8; rest_ != 0; to += 8) {
      const entry e = next();
      store_shared(to, make_uint2(column + e.x, e.y));
    }
  }

 private:
  static constexpr int kTaken = 5;
  static constexpr int kBitWidth = 5;
  static_assert(kValues == 1 << kBitWidth && kTaken * kBitWidth <= 32);

  /// The first column that is left, if one is.
  __device__ __forceinline__ entry next() {
    const std::uint32_t others = rest_ & (rest_ - 1);
    const std::uint32_t bit = only_mark(rest_ ^ others);
    const std::uint32_t value = load_shared_if<Stored>(rest_, values_ + bit * sizeof(Stored));
    rest_ = others;
    return make_uint2(bit, value);
  }

  std::uint32_t taken_[kTaken];
  std::uint32_t bits_;  // of them, one behind the other
  std::uint32_t rest_;
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

/// Gives a piece that has fewer vectors than others its first one in the place of each that is not there. All lanes
/// come.
template <class Stored>
__device__ __forceinline__ void fill_piece(std::uint32_t piece, std::uint32_t vectors, std::uint32_t lane) {
  const auto first = load_shared<uint4>(piece);
  for (std::uint32_t v = vectors + lane; v < kPiece<Stored>; v += kWarp) store_shared(piece + v * 16, first);
  async_fence();  // the copy engine has the stage next
  __syncwarp();
}

/// Streams a row's vectors and lists what reaches the cut, and the columns before them, by column: the warps tell each
/// other at every step how many entries they add, and go on to the next piece before they ask. @returns how many: more
/// than the list has room for where not all are in it. @param seen looks at what the thread reads. All threads come; a
/// barrier must follow.
template <class Stored, bool Negated, class Seen>
__device__ __forceinline__ std::uint32_t list_row(const whole_row<Stored>& row, std::uint64_t cut,
                                                  piece_ring<Stored>& ring, const row_list& list, block_sums& sums,
                                                  Seen& seen) {
  constexpr std::uint32_t kPitch = row_share<Stored>::kPitch;
  const std::uint32_t lane = sums.lane();
  const piece_marker<Stored, Negated> marker(lane);
  const row_filter<Stored> filter(cut, row);
  std::uint32_t n = 0;
  if (row.head > 0) list_beside(row, 0, row.head, 0, filter, Negated, list, n, sums);

  const std::uint32_t vectors = row.vectors;
  std::uint32_t first = sums.warp() * kPiece<Stored>;
  const std::uint32_t lane_column = row.first_column + row.head + lane * kValues;
  marked_columns<Stored> marked;
  std::uint32_t before = 0;  // entries of the lanes before, and
  std::uint32_t from = 0;    // the first column of the lane, of the step that was posted
  const auto begin_of_posted = [&] {
    std::uint32_t begin = 0;
    const std::uint32_t all = sums.of_posted(begin);
    begin += n + before;
    n += all;
    return begin;
  };
  const auto store = [&] {
    const std::uint32_t begin = begin_of_posted();
    if (n <= list.capacity) marked.store(from, list.entries + begin * 8);
  };
  bool is_posted = false;
#pragma unroll 1
  for (std::uint32_t start = 0; start < vectors; start += kPitch) {
    if (first < vectors) {
      const std::uint32_t piece = ring.wait();
      if constexpr (Seen::kSees)
        if (vectors - first < kPiece<Stored>) fill_piece<Stored>(piece, vectors - first, lane);
      std::uint32_t marks = marks_of_piece(marker, piece, first, lane, filter, seen);
      const std::uint32_t columns = (vectors - first) * kPerVector<Stored>;  // from there on
      if (columns < kPiece<Stored> * kPerVector<Stored>) marks &= bits_there(columns, lane);
      const std::uint32_t count = __popc(marks);
      const std::uint32_t up_to = lanes_up_to(count);
      if (is_posted) store();
      sums.post(up_to);
      is_posted = true;
      before = up_to - count;
      from = lane_column + first * kPerVector<Stored>;
      marked.take(marks, piece + lane * (kValues * sizeof(Stored)));
      if (marked.has_more()) {
        const std::uint32_t to = list.entries + begin_of_posted() * 8;
        if (n <= list.capacity) {
          marked.store(from, to);
          marked.store_more(from, to);
        }
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
  }
  if (is_posted) store();
  return n;
}

/// Calls list_row for the request's order. @param worst becomes the key of the thread's worst value, where rows are
/// stopped.
template <class Stored, row_result Result>
__device__ __forceinline__ std::uint32_t list_in_order(const whole_row<Stored>& row, std::uint64_t cut, order by,
                                                       piece_ring<Stored>& ring, const row_list& list, block_sums& sums,
                                                       std::uint32_t& worst) {
  const auto run = [&](auto negated) {
    constexpr bool kNegated = negated.value;
    if constexpr (Result == row_result::stopped) {
      worst_seen<Stored, kNegated> seen;
      const std::uint32_t n = list_row<Stored, kNegated>(row, cut, ring, list, sums, seen);
      worst = seen.key();
      return n;
    } else {
      sees_nothing seen;
      return list_row<Stored, kNegated>(row, cut, ring, list, sums, seen);
    }
  };
  return by == order::smallest ? run(std::true_type()) : run(std::false_type());
}

/// Streams and writes the block's rows from `index` on. @param rings of the warps' pieces. @param pieces that the
/// warp's stages have held; becomes how many have. @param unlisted becomes what is known of the row that is returned.
/// @returns the row that must be searched by its numbers; those behind it are untouched. All threads come, after a
/// barrier; they leave through one.
template <class Stored, row_result Result>
__device__ __forceinline__ std::int64_t stream_rows(const filter_block& block, const stop_block& stops, uint4* rings,
                                                    std::int64_t index, std::uint32_t& pieces, block_sums& sums,
                                                    counted_range& unlisted) {
  constexpr bool kSorted = Result == row_result::sorted;
  constexpr bool kStops = Result == row_result::stopped;
  const core::top_k_request& request = block.request;
  const row_list& list = block.list;
  const std::uint32_t flip = sign_flip<Stored>(request);
  const auto is_streamed = [&](const whole_row<Stored>& row) { return row.columns > list.capacity; };
  whole_row<Stored> row = open_row<Stored>(request, index);
  if (!is_streamed(row)) return index;
  if (sums.lane() == 0) async_fence();  // the stages have been read
  row_sample<Stored> sample;
  sample.load(row);  // before the pieces, which it would wait for
  piece_ring<Stored> ring(rings + sums.warp() * (kRingBytes / 16), block.scratch.full[sums.warp()], sums.lane() == 0,
                          pieces);
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
    std::uint32_t worst = 0;
    std::uint32_t n = list_in_order<Stored, Result>(row, cut, request.options.order, ring, list, sums, worst);
    row = open_row<Stored>(request, index);  // again, which takes no registers in between
    if (row.tail() > 0) {
      list_beside(row, row.columns - row.tail(), row.tail(), row.vectors, row_filter<Stored>(cut, row),
                  request.options.order == order::smallest, list, n, sums);
    }
    if constexpr (kStops) tell_worst(row, request.options.order == order::smallest, worst, stops, sums);
    const std::uint32_t least = core::key_of(cut) >> kSharedBits<Stored>;
    from_before.cut = least;
    from_before.by_columns = static_cast<std::uint32_t>(cut) != 0;
    __syncthreads();                // the list is complete
    const auto load_sample = [&] {  // sorting leaves no registers for it
      if (kSorted) return;
      if (const whole_row<Stored> next = open_next(); is_streamed(next)) sample.load(next);
    };
    const row_writer<Stored> write(request, index, row);
    bool written = false;
    const bool listed = n >= k && n <= list.capacity;
    const bool held = n <= most_held(Result) * kThreads;
    if constexpr (kStops) {
      const std::uint32_t worst_number = told_worst(stops, sums) >> kSharedBits<Stored>;
      if (listed && held) {
        written =
            write_held_stopped(stops, write, row, n, least, worst_number, from_before, sums, load_sample, unlisted);
      } else if (listed) {
        written = write_long_stopped(stops, write, n, least, worst_number, from_before, sums, unlisted);
        load_sample();
      }
    } else if (listed && held) {
      written = write_held<Stored, kSorted, most_held(Result)>(block, write, n, least, from_before, sums, load_sample);
    } else if (listed) {
      written = write_long<Stored, kSorted>(block, write, n, least, sums);
      load_sample();
    }
    if (!written) break;
    row = open_next();
    index = after;
    if (!is_streamed(row)) break;
    if (kSorted) sample.load(row);
  }
  pieces = ring.drain();
  __syncthreads();
  return index;
}

template <class Stored, row_result Result>
__global__ void __launch_bounds__(kThreads, blocks_of(Result))
    filter_rows_kernel(const __grid_constant__ filter_args args) {
  constexpr bool kSorted = Result == row_result::sorted;
  const core::top_k_request& request = args.request;
  auto* rings = reinterpret_cast<uint4*>(dynamic_shared() + kRingsBegin<Result>);
  uint4* entries = rings + kWarps * kRingBytes / 16;
  const filter_block block{
      .request = request,
      .scratch = *reinterpret_cast<filter_scratch*>(dynamic_shared()),
      .list = {held(shared_address(entries)), args.capacity},
      .places = shared_address(dynamic_shared() + kPlacesBegin),
      .entries = reinterpret_cast<std::uint64_t*>(entries),
      .order = reinterpret_cast<order_scratch*>(reinterpret_cast<std::uint64_t*>(entries) + args.capacity)};
  const stop_block stops{.of_exact = block,
                         .stop = args.stop,
                         .scratch = *reinterpret_cast<stop_scratch*>(dynamic_shared() + kStopBegin<Result>)};
  block_sums sums(block.scratch);
  clear_scratch(block.scratch);
  if (sums.lane() == 0) {
    for (int s = 0; s < kStages<Stored>; s++) barrier_init(&block.scratch.full[sums.warp()][s], 1);
    if (sums.warp() == 0) barrier_init(&block.scratch.posted, kThreads);
    barrier_init_fence();
  }
  std::uint32_t pieces = 0;
  __syncthreads();
  join_chain();
#pragma unroll 1
  for (std::int64_t index = blockIdx.x; index < request.matrix.rows; index += gridDim.x) {
    counted_range unlisted;
    index = stream_rows<Stored, Result>(block, stops, rings, index, pieces, sums, unlisted);
    if (index >= request.matrix.rows) break;
    if constexpr (Result == row_result::stopped)
      search_stop<Stored>(stops, index, unlisted, sums,
                          [&](const row_writer<Stored>& write, const whole_row<Stored>& row, std::uint32_t low) {
                            write_first(stops, write, row, low);
                          });
    else
      search_row<Stored, kSorted>(block, index, sums);
  }
}

/// Entries of a block's list, so many that what sorts them may follow.
inline std::int64_t capacity_for(const core::top_k_request& request) {
  constexpr std::int64_t kMultiple = alignof(order_scratch) / sizeof(entry);
  const top_k_options& options = request.options;
  const std::int64_t capacity = core::filter_rows_capacity(request.matrix.cols, options.k, options.sorted);
  return (capacity + kMultiple - 1) / kMultiple * kMultiple;
}

template <row_result Result>
std::int64_t shared_bytes_of(std::int64_t capacity) {
  const std::int64_t ordering = Result == row_result::sorted ? sizeof(order_scratch) : 0;
  return kRingsBegin<Result> + kWarps * kRingBytes + capacity * static_cast<std::int64_t>(sizeof(entry)) + ordering;
}

template <class Stored, row_result Result>
void launch_filter_kernel(cudaStream_t stream, const core::top_k_request& request, int multiprocessors) {
  const std::int64_t capacity = capacity_for(request);
  const filter_args args{request, static_cast<std::uint32_t>(capacity), early_stop_of(request.options)};
  launch_over(request.matrix.rows, multiprocessors, filter_rows_kernel<Stored, Result>,
              {.threads = kThreads, .shared_bytes = shared_bytes_of<Result>(capacity), .overlaps = true}, stream, args,
              "launching the row-wise top k of many long rows");
}

}  // namespace shortlist::cuda::filtering
