// Row-wise top k by radix selection: any type, strides, length of row and k.
//
// Why it is fast: a pass over a row settles 11 bits of the border's key, so that a row is read at most 3 times (fp32),
// 2 (fp16, bf16) or 6 (fp64) to find it and once more to write, whatever the data; mostly the border is known sooner.
// Loads are of 16 bytes, several in flight. A team of blocks shares a row where rows are too few to fill the GPU; the
// histograms tell each block how many of the best lie in its piece, so that none need be counted again.
// Steps: histogram of a digit in shared memory -> sum over the team -> the digit of the k-th best -> the next digit,
// until exactly k keys are left or no digit is -> how many the team's blocks before have -> tiles of columns in order:
// ballots, a scan over the warps, stores. Early stops (docs/ordering.md, section 9) follow the bisection from the row's
// extremes and its k-th best, which costs two more passes; where another kernel has written the exact result, the k-th
// best is the last of that, and no digit is looked for.
// Limit: bytes(in) x passes over read bandwidth; rows that fit in L2 come from there after the first pass. An early
// stop of 10,000 x 50,000 fp32, four steps, takes 2.47 ms on an H200, in which 4.6 TB/s read the matrix 5.7 times; the
// exact search, by filter_rows, 0.49. History: served all rows longer than a block holds, 1024 x 50,000, k 2048, in
// 0.35 ms, until filter_rows and resident_rows took exact ones (0.066 now).
#include <algorithm>
#include <cstdint>

#include "cuda/device/async_copy.cuh"
#include "cuda/device/cluster.cuh"
#include "cuda/device/grid.cuh"
#include "cuda/device/score.cuh"
#include "cuda/runtime/launch.cuh"
#include "cuda/runtime/stream_memory.cuh"
#include "cuda/top_k/radix_parts.cuh"
#include "cuda/top_k/radix_rows.hpp"
#include "cuda/top_k/row_parts.cuh"

namespace shortlist::cuda {
namespace {

using namespace radix;

constexpr int kShortDigitBits = 8;            // of short rows, for which a pass costs little more than its bins
constexpr int kBlocks = 3;                    // a multiprocessor: at four, with 64 registers a thread, the keys spill
constexpr int kShortThreads = 64;             // more rows at a time where a row has little for each thread
constexpr std::int64_t kShortColumns = 2048;  // up to here
constexpr std::int64_t kLeastPiece = 8192;    // of a block in a team: below this a meeting costs more than the reading
constexpr std::int64_t kMeetingColumns = 16384;  // a row's meetings, in columns that a block reads: estimated
constexpr std::int64_t kMostPiece = std::int64_t{1} << 31;  // a block counts in 32 bits
constexpr std::int64_t kPieceMultiple = 64;  // pieces of an aligned row begin at whole 16 bytes, and whole sectors

/// One block of a team, which works on its piece of a row at a time. All methods are for all threads of the block, and,
/// where the blocks of teams meet, for all blocks of the grid in step.
template <class Stored>
class radix_block {
 public:
  using key = key_for<Stored>;
  using cut = segment<Stored>;
  using selection = row_selection<key>;

  __device__ radix_block(const radix_args& args, radix_shared& shared)
      : args_(args),
        shared_(shared),
        team_(static_cast<int>(blockIdx.x) / args.team_blocks),
        rank_(static_cast<int>(blockIdx.x) % args.team_blocks) {
    clear_bins();
    if (shares_rows() && !args.exact_is_written) {
      clear_team_histogram(0);
      grid_sync();
    }
    __syncthreads();
  }

  /// @param row may be beyond the last: then the block only keeps in step.
  __device__ void select_row(std::int64_t row) {
    const core::top_k_request& request = args_.request;
    const std::int64_t k = request.options.k;
    const bool is_there = row < request.matrix.rows;
    const row_span span = is_there ? span_of(request, row) : row_span{0, 0};
    const std::int64_t best = min(k, span.count);
    open_piece(is_there ? row : 0, span);
    tally own{piece_.end - piece_.first, 0};
    selection chosen{0, 0, best, 0};
    const bool searches = span.count > best;
    if (searches || in_step()) {
      const selection exact = find_border(best, searches, own);
      if (searches) chosen = exact;
    }
    bool stopped = false;
    if constexpr (sizeof(key) == 4) {
      if (args_.stop.asked() && (searches || in_step())) {
        const key_extremes ends = find_extremes(chosen.fill_from);
        stopped = searches && stop_early(ends, chosen);
      }
      if (stopped) own = count_selected(chosen);
    }
    tally before{0, 0};
    tally all = own;
    if (shares_rows()) exchange(own, before, all);
    row_parity_ ^= 1;
    if (stopped) {
      chosen.sure = min(all.sure, k);
      chosen.fill = k - chosen.sure;
    }
    if (!is_there) return;
    write_piece(row, chosen, own, before);
    write_rest(row, span, best);
  }

  /// Replaces a row's exact result, which is written, by what the early stop selects, where that is another.
  __device__ void stop_row(std::int64_t row) {
    const core::top_k_request& request = args_.request;
    const std::int64_t k = request.options.k;
    const bool is_there = row < request.matrix.rows;
    const row_span span = is_there ? span_of(request, row) : row_span{0, 0};
    const bool searches = span.count > k;
    if (!searches && !in_step()) return;
    open_piece(is_there ? row : 0, span);
    const key border = searches ? written_border(row) : 0;
    const key_extremes ends = find_extremes(border);
    selection chosen{border, border, k, ends.reach == k ? 0 : 1};
    const bool stopped = searches && stop_early(ends, chosen);
    tally own{k, 0};
    tally before{0, 0};
    tally all = own;
    if (shares_rows()) {
      if (stopped) own = count_selected(chosen);
      exchange(own, before, all);
      row_parity_ ^= 1;
    } else if (stopped && !args_.stop.by_count) {
      own.sure = written_from(row, chosen.from);
      own.fill = k - own.sure;
      all = own;
    }
    if (!stopped) return;
    chosen.sure = min(all.sure, k);
    chosen.fill = k - chosen.sure;
    write_piece(row, chosen, own, before);
  }

 private:
  __device__ __forceinline__ bool shares_rows() const { return args_.team_blocks > 1; }
  /// Whether other teams wait at this team's meetings, so that it must come to all of them.
  __device__ __forceinline__ bool in_step() const { return shares_rows() && args_.teams > 1; }

  __device__ void open_piece(std::int64_t row, const row_span& span) {
    const value_matrix& matrix = args_.request.matrix;
    std::int64_t length = (span.count + args_.team_blocks - 1) / args_.team_blocks;
    length = (length + kPieceMultiple - 1) / kPieceMultiple * kPieceMultiple;
    piece_.values = static_cast<const Stored*>(matrix.data) + row * matrix.row_stride;
    piece_.stride = matrix.col_stride;
    piece_.first = span.begin + min(span.count, rank_ * length);
    piece_.end = span.begin + min(span.count, (rank_ + 1) * length);
    const auto address = reinterpret_cast<std::uintptr_t>(piece_.values + piece_.first);
    const auto past = static_cast<std::int64_t>(address % 16 / sizeof(Stored));
    piece_.origin = piece_.first - (piece_.contiguous() ? past : 0);
  }

  __device__ __forceinline__ std::uint32_t bin_count() const { return 1u << args_.digit_bits; }
  __device__ __forceinline__ bool negated() const { return args_.request.options.order == order::smallest; }
  __device__ __forceinline__ float sign() const { return negated() ? -1.0f : 1.0f; }
  __device__ __forceinline__ int warp() const { return static_cast<int>(threadIdx.x) / kWarp; }
  __device__ __forceinline__ int warps() const { return static_cast<int>(blockDim.x) / kWarp; }
  __device__ __forceinline__ std::int64_t tile_columns() const { return std::int64_t{warps()} * cut::kColumns; }

  /// Visits the whole piece, each warp its own segments.
  template <class Visit>
  __device__ __forceinline__ void visit_piece(Visit visit) const {
#pragma unroll 1
    for (std::int64_t start = piece_.origin + warp() * cut::kColumns; start < piece_.end; start += tile_columns())
      visit_segment(piece_, start, sign(), visit);
  }

  __device__ void clear_bins() {
    for (std::uint32_t bin = threadIdx.x; bin < bin_count(); bin += blockDim.x) shared_.histogram[bin] = 0;
  }

  __device__ unsigned long long* team_histogram(int turn) const {
    return args_.histograms + (static_cast<std::int64_t>(team_) * kHistograms + turn % kHistograms) * kBins;
  }
  __device__ void clear_team_histogram(int turn) {
    unsigned long long* bins = team_histogram(turn);
    for (std::uint32_t bin = rank_ * blockDim.x + threadIdx.x; bin < bin_count(); bin += args_.team_blocks * blockDim.x)
      bins[bin] = 0;
  }
  __device__ void add_to_team_histogram(int turn) {
    unsigned long long* bins = team_histogram(turn);
    for (std::uint32_t bin = threadIdx.x; bin < bin_count(); bin += blockDim.x) {
      const std::uint32_t count = shared_.histogram[bin];
      if (count != 0) atomicAdd(&bins[bin], static_cast<unsigned long long>(count));
    }
  }

  /// The sum over the block's threads, whose own sums fit in 32 bits, as a piece's columns do.
  __device__ tally sum_of(std::uint32_t sure, std::uint32_t fill) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    sure = __reduce_add_sync(kFullWarp, sure);
    fill = __reduce_add_sync(kFullWarp, fill);
    if (lane == 0) shared_.counts[warp()] = make_uint2(sure, fill);
    __syncthreads();
    const uint2 part = lane < warps() ? shared_.counts[lane] : make_uint2(0, 0);
    const tally sum{__reduce_add_sync(kFullWarp, part.x), __reduce_add_sync(kFullWarp, part.y)};
    __syncthreads();  // the next sum may overwrite
    return sum;
  }

  /// Of the block's own keys in its bins: those with larger digits, and those with this one.
  __device__ tally count_bins(std::uint32_t digit) {
    std::uint32_t above = 0;
    std::uint32_t here = 0;
    for (std::uint32_t bin = threadIdx.x; bin < bin_count(); bin += blockDim.x) {
      const std::uint32_t count = shared_.histogram[bin];
      above += bin > digit ? count : 0u;
      here += bin == digit ? count : 0u;
    }
    return sum_of(above, here);
  }

  /// The exact border of a row with more than `best` columns, and what of it is the block's own.
  /// @param searches whether there is such a row; else the block only keeps in step.
  __device__ selection find_border(std::int64_t best, bool searches, tally& own) {
    constexpr int kKeyBits = sizeof(key) * 8;
    // The low bits of a widened bf16 or fp16 follow from its others.
    constexpr int kConstantBits = std::is_same_v<Stored, bfloat16> ? 16 : std::is_same_v<Stored, float16> ? 13 : 0;
    key floor = 0;  // the least key that the digits so far leave
    int shift = 0;
    std::int64_t missing = best;  // of the keys that begin with these digits
    std::int64_t above = 0;       // the block's own keys with larger ones
    std::int64_t here = 0;        // and with the same
    bool exact = false;
#pragma unroll 1
    for (int left = kKeyBits; left > kConstantBits;) {  // of the key's bits
      const bool works = searches && !exact;
      if (!works && !in_step()) break;
      const int digit_bits = min(left, args_.digit_bits);  // the last digit may be a shorter one
      left -= digit_bits;
      if (works) {
        shift = left;
        visit_piece([&](const auto& values) { add_digits(shared_.histogram, values, floor, shift, 1u << digit_bits); });
        __syncthreads();
      }
      const unsigned long long* team_bins = nullptr;
      if (shares_rows()) {
        team_bins = team_histogram(turn_);
        if (works) add_to_team_histogram(turn_);
        turn_ = (turn_ + 1) % kHistograms;
        clear_team_histogram(turn_);
        grid_sync();
      }
      if (!works) continue;
      const found_digit found = find_digit(shared_, bin_count(), missing, [&](std::uint32_t bin) -> std::int64_t {
        if (team_bins) return static_cast<std::int64_t>(__ldcg(team_bins + bin));
        return shared_.histogram[bin];
      });
      if (shares_rows()) {
        const tally parts = count_bins(found.digit);
        above += parts.sure;
        here = parts.fill;
      }
      floor += static_cast<key>(found.digit) << shift;
      missing -= found.above;
      exact = found.here == missing;
      clear_bins();
      __syncthreads();
    }
    if (!shares_rows()) {
      above = best - missing;
      here = missing;
    }
    own = exact ? tally{above + here, 0} : tally{above, here};
    if (!searches) own = {piece_.end - piece_.first, 0};
    if (exact) return {floor, floor, best, 0};
    return {static_cast<key>(floor + (key{1} << shift)), floor, best - missing, missing};
  }

  /// The key of the i-th entry of a row's exact result.
  __device__ __forceinline__ key written_key(std::int64_t row, std::int64_t i) const {
    const top_k_output& out = args_.request.out;
    const std::int64_t at = row * args_.request.options.k + i;
    if (out.values) return key_of_stored(static_cast<const Stored*>(out.values)[at], sign());
    const std::int64_t column = out.indices_as == index_type::i32 ? static_cast<const std::int32_t*>(out.indices)[at]
                                                                  : static_cast<const std::int64_t*>(out.indices)[at];
    return key_of_stored(*piece_.at(column), sign());
  }
  /// The least key of a row's exact result. @pre fp32 or 16 bits
  __device__ key written_border(std::int64_t row) {
    key_extremes mine;
    for (std::int64_t i = threadIdx.x; i < args_.request.options.k; i += blockDim.x)
      mine.least = min(mine.least, static_cast<std::uint32_t>(written_key(row, i)));
    return block_extremes(mine).least;
  }
  /// How many keys of a row's exact result reach one.
  __device__ std::int64_t written_from(std::int64_t row, key from) {
    std::uint32_t reach = 0;
    for (std::int64_t i = threadIdx.x; i < args_.request.options.k; i += blockDim.x)
      reach += written_key(row, i) >= from ? 1 : 0;
    return sum_of(reach, 0).sure;
  }

  /// Over the block's threads; every thread gets it.
  __device__ key_extremes block_extremes(key_extremes mine) {
    const auto across_lanes = [](const key_extremes& part) {
      return key_extremes{__reduce_min_sync(kFullWarp, part.least), __reduce_max_sync(kFullWarp, part.most),
                          __reduce_min_sync(kFullWarp, part.border), __reduce_max_sync(kFullWarp, part.next),
                          __reduce_add_sync(kFullWarp, part.reach)};
    };
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    mine = across_lanes(mine);
    if (lane == 0) shared_.extremes[warp()] = mine;
    __syncthreads();
    const key_extremes all = across_lanes(lane < warps() ? shared_.extremes[lane] : key_extremes{});
    __syncthreads();  // the next may overwrite
    return all;
  }

  /// Of the whole row, around the lower end of the border's digits.
  __device__ key_extremes find_extremes(std::uint32_t border) {
    key_extremes mine;
    visit_piece([&](const auto& values) {
#pragma unroll
      for (int e = 0; e < values.kCount; e++) {
        if (!values.is_there(e)) continue;
        const std::uint32_t found = values.key(e);
        const bool reaches = found >= border;
        mine.add({found, found, reaches ? found : ~0u, reaches ? 0u : found, reaches ? 1u : 0u});
      }
    });
    key_extremes all = block_extremes(mine);
    if (shares_rows()) {
      key_extremes* parts = args_.extremes + static_cast<std::int64_t>(team_) * args_.team_blocks;
      if (threadIdx.x == 0) parts[rank_] = all;
      grid_sync();
      key_extremes of_team;
      for (int other = static_cast<int>(threadIdx.x); other < args_.team_blocks; other += static_cast<int>(blockDim.x))
        of_team.add({__ldcg(&parts[other].least), __ldcg(&parts[other].most), __ldcg(&parts[other].border),
                     __ldcg(&parts[other].next), __ldcg(&parts[other].reach)});
      all = block_extremes(of_team);
    }
    return all;
  }

  /// Moves the ends of an exact selection to where the bisection stops; how many reach them is yet to be counted.
  /// @return whether it did: not in a row that is not finite, or where Algorithm 1 finds the exact set.
  __device__ bool stop_early(const key_extremes& ends, selection& chosen) const {
    if (ends.least <= kMinusInfinityKey || ends.most >= kInfinityKey) return false;
    const bool exactly_k = chosen.fill == 0;  // else the (k+1)-th best equals the k-th
    float low = core::from_ascending_key(ends.least);
    float high = core::from_ascending_key(ends.most);
    if (bisect(args_.stop, core::from_ascending_key(ends.border),
               core::from_ascending_key(exactly_k ? ends.next : ends.border), low, high))
      return false;
    chosen.fill_from = core::ascending_key(low);
    chosen.from = args_.stop.by_count ? chosen.fill_from : core::ascending_key(high);
    return true;
  }

  __device__ tally count_selected(const selection& chosen) {
    std::uint32_t sure = 0;
    std::uint32_t reached = 0;
    visit_piece([&](const auto& values) {
#pragma unroll
      for (int e = 0; e < values.kCount; e++) {
        sure += values.is_there(e) && values.key(e) >= chosen.from ? 1u : 0u;
        reached += values.is_there(e) && values.key(e) >= chosen.fill_from ? 1u : 0u;
      }
    });
    return sum_of(sure, reached - sure);
  }

  /// What the team's blocks have, those before this one and all.
  __device__ void exchange(const tally& own, tally& before, tally& all) {
    // Two sets in turn: a block may be a row ahead of one that still reads, and never two.
    tally* parts = args_.tallies + (static_cast<std::int64_t>(team_) * 2 + row_parity_) * args_.team_blocks;
    if (threadIdx.x == 0) parts[rank_] = own;
    grid_sync();
    before = {0, 0};
    all = {0, 0};
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    for (int other = lane; other < args_.team_blocks; other += kWarp) {
      const tally part{__ldcg(&parts[other].sure), __ldcg(&parts[other].fill)};
      all.sure += part.sure;
      all.fill += part.fill;
      before.sure += other < rank_ ? part.sure : 0;
      before.fill += other < rank_ ? part.fill : 0;
    }
    for (int o = kWarp / 2; o > 0; o >>= 1) {
      all.sure += __shfl_xor_sync(kFullWarp, all.sure, o);
      all.fill += __shfl_xor_sync(kFullWarp, all.fill, o);
      before.sure += __shfl_xor_sync(kFullWarp, before.sure, o);
      before.fill += __shfl_xor_sync(kFullWarp, before.fill, o);
    }
  }

  /// A bit for each of the lane's keys of a segment that the selection may take.
  __device__ __forceinline__ void mark_segment(std::int64_t start, const selection& chosen, std::uint32_t& sure,
                                               std::uint32_t& fill) const {
    visit_segment(piece_, start, sign(), [&](const auto& values) {
      key most = 0;
#pragma unroll
      for (int e = 0; e < values.kCount; e++) most = max(most, values.key(e));
      if (!__any_sync(kFullWarp, most >= chosen.fill_from)) return;  // most segments of most rows
#pragma unroll
      for (int e = 0; e < values.kCount; e++) {
        const bool reaches = values.is_there(e) && values.key(e) >= chosen.fill_from;
        sure |= reaches && values.key(e) >= chosen.from ? 1u << e << values.first : 0u;
        fill |= reaches && values.key(e) < chosen.from ? 1u << e << values.first : 0u;
      }
    });
  }

  /// Writes what is selected in a segment.
  /// @param seen how many of the row's keys before the segment are marked.
  __device__ void write_segment(std::int64_t row, std::int64_t start, const selection& chosen, tally seen,
                                std::uint32_t sure_bits, std::uint32_t fill_bits) const {
    constexpr std::uint32_t kUnitBits = (1u << cut::kUnit) - 1u;
    const top_k_output& out = args_.request.out;
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll 1
    for (int u = 0; u < kLoads; u++) {
      const std::uint32_t sure = sure_bits >> (u * cut::kUnit) & kUnitBits;
      const std::uint32_t fill = fill_bits >> (u * cut::kUnit) & kUnitBits;
      const std::uint32_t mine = static_cast<std::uint32_t>(__popc(sure) | __popc(fill) << 16);
      std::uint32_t reached = mine;
#pragma unroll
      for (int o = 1; o < kWarp; o <<= 1) {
        const std::uint32_t other = __shfl_up_sync(kFullWarp, reached, o);
        if (lane >= o) reached += other;
      }
      std::int64_t sure_before = seen.sure + ((reached - mine) & 0xFFFFu);
      std::int64_t fill_before = seen.fill + ((reached - mine) >> 16);
      const std::int64_t first = start + (u * kWarp + lane) * cut::kUnit;
      std::uint32_t selected = 0;
      for (std::uint32_t left = sure | fill; left != 0; left &= left - 1) {
        const int c = __ffs(static_cast<int>(left)) - 1;
        const bool is_sure = (sure >> c & 1u) != 0;
        const std::int64_t place = min(sure_before, chosen.sure) + min(fill_before, chosen.fill);
        const bool takes = is_sure ? sure_before < chosen.sure : fill_before < chosen.fill;
        (is_sure ? sure_before : fill_before)++;
        if (!takes) continue;
        selected |= 1u << c;
        if (!out.mask) write_entry(out, row * args_.request.options.k + place, *piece_.at(first + c), first + c);
      }
      if (out.mask)
        write_mask<cut::kUnit>(out.mask + row * args_.request.matrix.cols + first, selected,
                               first >= piece_.first && first + cut::kUnit <= piece_.end, piece_.first - first,
                               piece_.end - first);
      const std::uint32_t of_unit = __shfl_sync(kFullWarp, reached, kWarp - 1);
      seen.sure += of_unit & 0xFFFFu;
      seen.fill += of_unit >> 16;
    }
  }

  /// Writes what is selected in the piece, tile by tile; a tile is a segment for each warp.
  __device__ void write_piece(std::int64_t row, const selection& chosen, const tally& own, const tally& before) {
    const bool masks = args_.request.out.mask != nullptr;
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const std::int64_t last_sure = min(before.sure + own.sure, chosen.sure);
    const std::int64_t last_fill = min(before.fill + own.fill, chosen.fill);
    tally seen = before;
    int parity = 0;
    __syncthreads();  // the row before has read its tiles' counts
#pragma unroll 1
    for (std::int64_t tile = piece_.origin; tile < piece_.end; tile += tile_columns(), parity ^= 1) {
      if (!masks && seen.sure >= last_sure && seen.fill >= last_fill) break;
      const std::int64_t start = tile + warp() * cut::kColumns;
      std::uint32_t sure = 0;
      std::uint32_t fill = 0;
      if (start < piece_.end) mark_segment(start, chosen, sure, fill);
      // Two counts a word: a tile's are below 2^16. Two sets of words in turn: one barrier a tile.
      static_assert(kWarps * cut::kColumns < 1 << 16);
      const auto marked = static_cast<std::uint32_t>(__popc(sure) | __popc(fill) << 16);
      const std::uint32_t of_warp = __reduce_add_sync(kFullWarp, marked);
      if (lane == 0) shared_.tiles[parity][warp()] = of_warp;
      __syncthreads();
      const std::uint32_t part = lane < warps() ? shared_.tiles[parity][lane] : 0u;
      const std::uint32_t ahead = __reduce_add_sync(kFullWarp, lane < warp() ? part : 0u);
      const std::uint32_t of_tile = __reduce_add_sync(kFullWarp, part);
      if (start < piece_.end && (of_warp != 0 || masks))
        write_segment(row, start, chosen, {seen.sure + (ahead & 0xFFFFu), seen.fill + (ahead >> 16)}, sure, fill);
      seen.sure += of_tile & 0xFFFFu;
      seen.fill += of_tile >> 16;
    }
  }

  /// Pads a row of fewer than k columns, or clears the mask outside the row.
  __device__ void write_rest(std::int64_t row, const row_span& span, std::int64_t best) const {
    const top_k_output& out = args_.request.out;
    const std::int64_t k = args_.request.options.k;
    const std::int64_t cols = args_.request.matrix.cols;
    const std::int64_t mine = static_cast<std::int64_t>(rank_) * blockDim.x + threadIdx.x;
    const std::int64_t step = static_cast<std::int64_t>(args_.team_blocks) * blockDim.x;
    if (out.mask) {
      std::uint8_t* mask = out.mask + row * cols;
      for (std::int64_t c = mine; c < span.begin; c += step) mask[c] = 0;
      for (std::int64_t c = span.begin + span.count + mine; c < cols; c += step) mask[c] = 0;
    } else {
      for (std::int64_t place = best + mine; place < k; place += step)
        write_entry(out, row * k + place, worst_value<Stored>(negated()), kNoColumn);
    }
  }

  const radix_args& args_;
  radix_shared& shared_;
  const int team_;
  const int rank_;
  row_piece<Stored> piece_{};
  int turn_ = 0;
  int row_parity_ = 0;
};

template <class Stored>
__global__ void __launch_bounds__(kThreads, kBlocks) radix_rows_kernel(const __grid_constant__ radix_args args) {
  radix_block<Stored> block(args, *reinterpret_cast<radix_shared*>(dynamic_shared()));
  const std::int64_t team = static_cast<int>(blockIdx.x) / args.team_blocks;
  // As many turns for every team, so that all come to the same meetings.
  for (std::int64_t row = team; row - team < args.request.matrix.rows; row += args.teams) {
    if constexpr (sizeof(Stored) < 8) {
      if (args.exact_is_written) {
        block.stop_row(row);
        continue;
      }
    }
    block.select_row(row);
  }
}

/// How many blocks share a row: what makes the slowest block read the fewest columns, meetings counted as columns.
int choose_team_blocks(std::int64_t rows, std::int64_t cols, int capacity) {
  const auto cost = [&](int blocks) {
    const std::int64_t teams = capacity / blocks;
    const std::int64_t turns = (rows + teams - 1) / teams;
    const std::int64_t columns = (cols + blocks - 1) / blocks + (blocks > 1 ? kMeetingColumns : 0);
    return static_cast<double>(turns) * static_cast<double>(columns);
  };
  const auto most = static_cast<int>(std::clamp<std::int64_t>(cols / kLeastPiece, 1, capacity));
  const auto least = static_cast<int>(std::clamp<std::int64_t>((cols + kMostPiece - 1) / kMostPiece, 1, most));
  int best = least;
  for (int blocks = least + 1; blocks <= most; blocks++)
    if (cost(blocks) < cost(best)) best = blocks;
  return best;
}

template <class Stored>
void launch_type(cudaStream_t stream, radix_args args, int multiprocessors) {
  constexpr const char* kWhat = "launching the row-wise top k by radix selection";
  const value_matrix& matrix = args.request.matrix;
  const bool is_short = matrix.cols <= kShortColumns;
  const int threads = is_short ? kShortThreads : kThreads;
  args.digit_bits = is_short ? kShortDigitBits : kDigitBits;
  const auto shared_bytes = static_cast<std::int64_t>(sizeof(radix_shared));
  const int capacity =
      multiprocessors * blocks_per_multiprocessor(radix_rows_kernel<Stored>, threads, shared_bytes, kWhat);
  args.team_blocks = choose_team_blocks(matrix.rows, matrix.cols, capacity);
  args.teams = static_cast<int>(std::min<std::int64_t>(matrix.rows, capacity / args.team_blocks));
  const launch_shape how{.grid = dim3(static_cast<unsigned>(args.teams * args.team_blocks)),
                         .threads = threads,
                         .shared_bytes = shared_bytes,
                         .cooperative = args.team_blocks > 1};
  if (args.team_blocks == 1) {
    launch(radix_rows_kernel<Stored>, how, stream, args, kWhat);
    return;
  }
  const std::int64_t histograms = std::int64_t{args.teams} * kHistograms * kBins;
  const std::int64_t blocks = std::int64_t{args.teams} * args.team_blocks;
  const auto bytes = histograms * static_cast<std::int64_t>(sizeof(unsigned long long)) +
                     blocks * static_cast<std::int64_t>(2 * sizeof(tally) + sizeof(key_extremes));
  const stream_memory memory(stream, bytes);
  args.histograms = static_cast<unsigned long long*>(memory.data());
  args.tallies = reinterpret_cast<tally*>(args.histograms + histograms);
  args.extremes = reinterpret_cast<key_extremes*>(args.tallies + 2 * blocks);
  launch(radix_rows_kernel<Stored>, how, stream, args, kWhat);
}

void launch_rows(cudaStream_t stream, const core::top_k_request& request, bool exact_is_written, int multiprocessors) {
  if (request.matrix.rows == 0) return;
  radix_args args{};
  args.request = request;
  args.exact_is_written = exact_is_written;
  args.stop = early_stop_of(request.options);
  switch (request.matrix.type) {
    case value_type::f32: return launch_type<float>(stream, args, multiprocessors);
    case value_type::f16: return launch_type<float16>(stream, args, multiprocessors);
    case value_type::bf16: return launch_type<bfloat16>(stream, args, multiprocessors);
    case value_type::f64: return launch_type<double>(stream, args, multiprocessors);
  }
}

}  // namespace

void launch_radix_rows(cudaStream_t stream, const core::top_k_request& request, int multiprocessors) {
  launch_rows(stream, request, false, multiprocessors);
}

void launch_radix_stops(cudaStream_t stream, const core::top_k_request& request, int multiprocessors) {
  launch_rows(stream, request, true, multiprocessors);
}

}  // namespace shortlist::cuda
