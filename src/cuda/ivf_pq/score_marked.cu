// Rows that a scan marked, scored to the bit, list by list.
//
// Pairs of query and list lie list by list. Warps take them one at a time and never wait for each other: a warp reads
// the marks of its pair, lists the rows, takes places among those of the query for all of them at once, finds out where
// they lie, a lane a row, and scores eight at a time, 16 lanes a row. The query and the centroid stay in registers; a
// list's codes come to the caches once for all of its queries. Codewords, pairs of elements that a byte names, are in
// shared memory in fp32, where the lanes of a row read 16 pieces from as many banks, and so is what two whole numbers
// of 4 bits stand for; those of 8 bits need no table. Other codes, and rows without centroids, are only listed:
// score_rows.cu scores them.
// Limit: 71 to 75 % of the issue slots; a quarter of the instructions find rows.
// History: docs/kernels.md.
#include "cuda/device/bulk_copy.cuh"
#include "cuda/device/chain.cuh"
#include "cuda/device/cluster.cuh"
#include "cuda/device/select_bits.cuh"
#include "cuda/device/warp_sum.cuh"
#include "cuda/ivf_pq/code_scorer.cuh"
#include "cuda/ivf_pq/many_rows.cuh"
#include "cuda/runtime/launch.cuh"

namespace shortlist::cuda {
namespace {

/// Whether codes are looked up by pairs of elements: those of codewords, and whole numbers of 4 bits, two of which are
/// a byte. Those of 8 bits are worked out.
template <row_form Form>
inline constexpr bool kLooksUp = Form != row_form::numbers8;
/// Of a block. Numbers that are worked out take registers for their steps.
template <row_form Form>
inline constexpr int kWideThreads = kLooksUp<Form> ? 1024 : 896;
constexpr int kLanes = 16;  // of a row
constexpr int kRowsOfLane = 4;
constexpr int kLanesOfResult = kLanes / kRowsOfLane;
constexpr std::uint32_t kRows = kWarp / kLanes * kRowsOfLane;  // of a warp at a time
constexpr int kCodewords = 256;
constexpr int kCodewordBytes = kLanes * sizeof(float2);  // one of each of 16 pieces, in banks of their own
constexpr int kGroupBytes = kCodewords * kCodewordBytes;
constexpr std::uint32_t kPairsOfRun = 64;        // neighbours that a block is dealt
constexpr std::uint32_t kPagesAtOnce = 64;       // of a list
constexpr std::uint32_t kListedRows = 128;       // at a time
constexpr std::uint32_t kRowsAhead = 2 * kRows;  // beyond those listed, that repeat the last
constexpr int kMarksOfStep = kWarp / 8;          // pages whose marks of one query a warp reads at once
constexpr int kMarkSteps = kPagesAtOnce / kMarksOfStep;
static_assert(kCodewordBytes < 256, "a factor in a dot product of bytes");
static_assert(kLanesOfResult == kLanesOfRow, "a row's words are loaded by the lanes that finish it");

/// How a page has rows of Groups groups of 32 elements; page_layout has the same at run time. A row's lanes have whole
/// planes of its words and, of one plane that it shares with the row eight further on, perhaps half.
template <row_form Form, int Groups>
struct row_layout {
  static constexpr int kSets = Form == row_form::numbers8 ? 8 : 4;  // of lanes that share their words
  static constexpr int kLaneWords = kSets * Groups / kLanesOfRow;   // of a row
  static constexpr int kPlaneWords = 2 * kLaneWords % 4 == 0 ? 4 : 2;
  static constexpr int kPlanes = kLaneWords / kPlaneWords;  // whole ones
  static constexpr int kHalf = kLaneWords % kPlaneWords;    // words of the other: none, or half of it
  static constexpr int kPlaneBytes = kPlaneWords * kWarp * 4;
  static constexpr int kTileBytes = 2 * kLaneWords * kWarp * 4;
  static constexpr int kUpperAt = (kPlanes + (kHalf > 0 ? 1 : 0)) * kPlaneBytes;  // whole planes of an upper row
  static_assert(kHalf == 0 || 2 * kHalf == kPlaneWords);
};

/// What a warp lists rows in.
struct listed_rows {
  std::uint64_t codes[kListedRows + kRowsAhead];  // where the first lane's lie, and 1 if it is an upper row
  std::uint32_t positions[kListedRows + kRowsAhead];
  std::uint32_t pages[kPagesAtOnce];  // their numbers
  std::uint16_t rows[kListedRows];    // of those pages together
};

/// What a block works in.
template <row_form Form, int Groups>
struct wide_shared {
  using layout = row_layout<Form, Groups>;
  static constexpr int kWarps = kWideThreads<Form> / kWarp;
  using codes_of_row = uint4[layout::kSets + 1];  // word v for group v; one is padding, so that rows lie in other banks
  codes_of_row codes[kWarps][kRows];
  listed_rows listed[kWarps];
  std::uint32_t next_pair;  // of the block
  float2 codewords[kLooksUp<Form> ? Groups : 1][kLooksUp<Form> ? kCodewords : 1][kLanes];
};

/// Pairs as warps take them. Three quarters are dealt out to the blocks in advance, runs of neighbours, so that lists'
/// rows are in their caches; who has none left takes one of the rest.
class pair_queue {
 public:
  /// `next` is that of the block, zero at first.
  __device__ pair_queue(const filter_batch& batch, std::uint32_t& next)
      : batch_(batch), next_(next), count_(*batch.all.pair_count) {
    dealt_ = count_ / 4 * 3 / (kPairsOfRun * gridDim.x) * kPairsOfRun;
  }

  /// The warp's next pair; false if there is none.
  __device__ __forceinline__ bool take(marked_pair& pair) const {
    std::uint32_t number = 0;
    if (threadIdx.x % kWarp == 0) {
      const std::uint32_t turn = atomicAdd(&next_, 1u);
      number = turn < dealt_ ? (turn / kPairsOfRun * gridDim.x + blockIdx.x) * kPairsOfRun + turn % kPairsOfRun
                             : dealt_ * gridDim.x + atomicAdd(batch_.next_marked, 1u);
    }
    number = __shfl_sync(kFullWarp, number, 0);
    if (number >= count_) return false;
    pair = batch_.marked[number];
    return true;
  }

 private:
  const filter_batch& batch_;
  std::uint32_t& next_;
  std::uint32_t count_;
  std::uint32_t dealt_;  // to a block
};

/// The four bits of each word from `shift` on, a multiple of four below 16; those of the first are the lowest.
__device__ __forceinline__ std::uint32_t nibbles_at(const std::uint32_t (&words)[8], std::uint32_t shift) {
  const std::uint32_t of_two = shift / 8 * 0x11 + 0x40;
  const auto bytes = [&](int first) {  // of every other word
    return __byte_perm(__byte_perm(words[first], words[first + 2], of_two),
                       __byte_perm(words[first + 4], words[first + 6], of_two), 0x5410);
  };
  return select_bits<0x0F0F0F0Fu>(bytes(0) >> shift % 8, bytes(1) << (4 - shift % 8));
}

/// The marked rows of a pair of query and list; a warp. Calls begin(list, query) if there are any, and then visit(the
/// place of the first row among the query's, how many) whenever some rows are listed: all, or, of long lists or many
/// rows, some.
template <class Begin, class Visit>
__device__ __forceinline__ void for_marked_rows(const many_plan& plan, const marked_pair& pair, listed_rows& listed,
                                                Begin begin, Visit visit) {
  constexpr std::uint32_t kRowsOfPage = core::kPageRows;
  constexpr int kHalfSteps = kMarkSteps / 2;
  const filter_batch& batch = plan.batch;
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const std::uint32_t table_at = batch.lists.first[pair.list];
  const std::uint32_t column = pair.column();
  const std::uint32_t of_marks = lane / 8 * kMarksOfPage + lane % 8 * 4 + column % 8 / 2;
  const std::uint32_t shift = 12 - 4 * (column / 8 * 2 + column % 2);
  bool has_begun = false;
  for (std::uint32_t from_page = 0; from_page < pair.pages(); from_page += kPagesAtOnce) {
    const std::uint32_t there = min(pair.pages() - from_page, kPagesAtOnce);
    const std::uint16_t* marks =
        batch.marks + static_cast<std::int64_t>(pair.place + from_page) * kMarksOfPage + of_marks;
    const std::uint32_t steps = (there + kMarksOfStep - 1 - lane / 8) / kMarksOfStep;  // of this lane
    std::uint32_t bits[2] = {};                                                        // four of each page
#pragma unroll
    for (int half = 0; half < 2; half++) {
      if (half * kHalfSteps * kMarksOfStep >= there) break;
      std::uint32_t words[kHalfSteps];
#pragma unroll
      for (int i = 0; i < kHalfSteps; i++) {
        const std::uint32_t step = half * kHalfSteps + i;
        words[i] = step < steps ? marks[step * kMarksOfStep * kMarksOfPage] : 0u;
      }
      bits[half] = nibbles_at(words, shift);
    }
    __syncwarp();  // what was listed before has been read
#pragma unroll
    for (std::uint32_t page = lane; page < kPagesAtOnce; page += kWarp)
      if (page < there) listed.pages[page] = batch.lists.table[table_at + from_page + page];
    const auto mine = static_cast<std::uint32_t>(__popc(bits[0]) + __popc(bits[1]));
    const std::uint32_t sum = running_sum(mine);
    const std::uint32_t count = __shfl_sync(kFullWarp, sum, kWarp - 1);
    if (count == 0) continue;
    std::uint32_t place = 0;
    if (lane == 0) place = atomicAdd(plan.counts + pair.query, count);
    if (!has_begun) begin(pair.list, pair.query);
    has_begun = true;
    std::uint32_t at = sum - mine;
    for (std::uint32_t from = 0; from < count; from += kListedRows, at -= kListedRows) {
      if (from > 0) __syncwarp();
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const std::uint32_t of_half = (half * kHalfSteps * kMarksOfStep + lane / 8) * kRowsOfPage + 24 + lane % 8;
        for (; bits[half] != 0 && at < kListedRows; at++) {
          const std::uint32_t bit = 31 - __clz(bits[half]);
          bits[half] ^= 1u << bit;
          // Row 24 - 8 (bit % 4) of page bit / 4 * kMarksOfStep.
          listed.rows[at] =
              static_cast<std::uint16_t>(of_half + bit / 4 * (kMarksOfStep * kRowsOfPage + 4 * 8) - bit * 8);
        }
      }
      __syncwarp();
      visit(__shfl_sync(kFullWarp, place, 0) + from, min(count - from, kListedRows));
    }
  }
}

/// All that the warp takes.
template <class Begin, class Visit>
__device__ __forceinline__ void for_all_marked_rows(const many_plan& plan, std::uint32_t& next, listed_rows& listed,
                                                    Begin begin, Visit visit) {
  const pair_queue queue(plan.batch, next);
  for (marked_pair pair; queue.take(pair);) for_marked_rows(plan, pair, listed, begin, visit);
}

/// One row's partial sums of two neighbouring elements.
template <bool L2>
__device__ __forceinline__ float2 partial_of(const float2& query, const float2& row) {
  if constexpr (L2) return make_float2(core::step_l2(query.x, row.x, 0.0f), core::step_l2(query.y, row.y, 0.0f));
  return make_float2(core::step_dot(query.x, row.x, 0.0f), core::step_dot(query.y, row.y, 0.0f));
}

/// What the elements 2 piece and 2 piece + 1 are for a code; 0 past the last of either.
template <row_form Form>
__device__ __forceinline__ float2 codeword_of(const decoder& from, std::int32_t piece, std::int32_t code) {
  const std::int32_t i = 2 * piece;
  if constexpr (Form == row_form::pairs) {
    const bool exists = i < from.dim && code < from.codewords;
    return exists ? reinterpret_cast<const float2*>(from.codebook)[piece * from.codewords + code] : float2{};
  }
  const auto number = [&](std::int32_t at, std::int32_t of) {
    return at < from.dim ? __fmul_rn(static_cast<float>(of) - 7.5f, from.steps[at]) : 0.0f;
  };
  return make_float2(number(i, code % 16), number(i + 1, code / 16));
}

template <row_form Form, int Groups>
__device__ void fill_codewords(const decoder& from, wide_shared<Form, Groups>& shared) {
  for (std::int32_t i = threadIdx.x; i < Groups * kLanes * kCodewords; i += kWideThreads<Form>) {
    const std::int32_t piece = i / kCodewords;
    const std::int32_t code = i % kCodewords;
    shared.codewords[piece / kLanes][code][piece % kLanes] = codeword_of<Form>(from, piece, code);
  }
}

/// What codes stand for: the elements 32 v + 2 b and the next of lane b.
template <row_form Form, int Groups>
class pair_decoder {
  static_assert(kLooksUp<Form>);
  static constexpr bool kNibbles = Form == row_form::numbers4;

 public:
  __device__ pair_decoder(const decoder&, const wide_shared<Form, Groups>& shared, int of_row)
      : shift_(kNibbles && of_row % 2 == 0 ? 4 : 0), table_(shared_address(&shared.codewords[0][0][of_row])) {
    // Of 4 bits the elements' are in the upper halves of two bytes, two bytes apart, and so 16 times what they count.
    constexpr std::uint32_t kFactor = kNibbles ? kCodewordBytes / 16 | kCodewordBytes << 16 : kCodewordBytes;
    const int byte = kNibbles ? of_row % 4 / 2 : of_row % 4;
    mask_ = 0x00F000F0u << (byte * 8);
    factor_ = kFactor << (byte * 8);
  }
  __device__ __forceinline__ float2 operator()(std::uint32_t word, int v) const {
    if constexpr (kNibbles) word = word << shift_ & mask_;
    float2 w;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                 : "=f"(w.x), "=f"(w.y)
                 : "r"(__dp4a(word, factor_, table_) + v * kGroupBytes));
    return w;
  }

 private:
  int shift_;
  std::uint32_t mask_;
  std::uint32_t factor_;
  std::uint32_t table_;
};

template <int Groups>
class pair_decoder<row_form::numbers8, Groups> {
 public:
  __device__ pair_decoder(const decoder& from, const wide_shared<row_form::numbers8, Groups>&, int of_row)
      : byte_(of_row % 2 * 2) {
#pragma unroll
    for (int v = 0; v < Groups; v++) {
      const int i = 2 * (v * kLanes + of_row);
      steps_[v] = make_float2(i < from.dim ? from.steps[i] : 0.0f, i + 1 < from.dim ? from.steps[i + 1] : 0.0f);
    }
  }
  __device__ __forceinline__ float2 operator()(std::uint32_t word, int v) const {
    return make_float2(__fmul_rn(centred(word, byte_, 255), steps_[v].x),
                       __fmul_rn(centred(word, byte_ + 1, 255), steps_[v].y));
  }

 private:
  int byte_;
  float2 steps_[Groups];
};

/// A warp that scores rows of a list by their codes; lane b of 16 has elements 32 v + 2 b and the next, v below Groups.
template <row_form Form, int Groups, bool L2>
class wide_scorer {
 public:
  __device__ wide_scorer(const many_plan& plan, wide_shared<Form, Groups>& shared)
      : plan_(plan),
        codes_(plan.codes),
        lane_(static_cast<int>(threadIdx.x % kWarp)),
        of_row_(lane_ % kLanes),
        decode_(plan.codes, shared, lane_ % kLanes),
        here_(shared.codes[threadIdx.x / kWarp]),
        listed_(shared.listed[threadIdx.x / kWarp]) {}

  /// The lane's elements of a query and of a list's centroid, which the next rows belong to.
  __device__ __forceinline__ void begin(std::uint32_t list, std::uint32_t query) {
    const float* q = plan_.batch.queries + query * plan_.batch.query_stride;
    const float* c = codes_.centroids + list * codes_.centroid_stride;
#pragma unroll
    for (int v = 0; v < Groups; v++) {
      const std::int32_t i = 2 * (v * kLanes + of_row_);
      query_[v].x = i < codes_.dim ? q[i] : core::kQueryPadding;
      query_[v].y = i + 1 < codes_.dim ? q[i + 1] : core::kQueryPadding;
      centroid_[v] = i < codes_.dim ? *reinterpret_cast<const float2*>(c + i) : make_float2(0.0f, 0.0f);
    }
    if (plan_.answer.results.by == metric::cosine) inverse_norm_ = plan_.batch.inverse_norms[query];
    to_ = plan_.rows + static_cast<std::int64_t>(query) * plan_.room;
  }

  /// Scores listed rows, which go to their places among the query's. While some are scored, the codes of the next are
  /// on their way.
  __device__ __forceinline__ void score(std::uint32_t place, std::uint32_t count) {
    locate(count);
    const metric by = L2 ? metric::l2 : plan_.answer.results.by;
    const std::uint32_t fit = min(count, plan_.room - min(place, plan_.room));
    const std::uint32_t writes_to = lane_ % kLanesOfResult == 0 ? fit : 0;
    std::uint32_t at = lane_ / kLanesOfResult;  // of the row that the lane finishes
    std::uint64_t* to = to_ + (place + at);
    row_codes next = codes_of(at);
#pragma unroll 1
    for (std::uint32_t first = 0; first < count; first += kRows, at += kRows, to += kRows) {
      const row_codes now = next;
      next = codes_of(at + kRows);
      hand_out(now);
      const float sum = sum_of_row();
      if (at < writes_to)
        *to = core::row_key(core::score_key(code_score(sum, by, inverse_norm_), by), listed_.positions[at]);
    }
  }

 private:
  using layout = row_layout<Form, Groups>;
  using codes_of_row = typename wide_shared<Form, Groups>::codes_of_row;
  static constexpr std::uint32_t kPageRows = core::kPageRows;

  /// Finds out where listed rows lie, a lane a row.
  __device__ __forceinline__ void locate(std::uint32_t count) {
    const auto pages = reinterpret_cast<std::uint64_t>(codes_.pages);
    const auto page_bytes = static_cast<std::uint32_t>(codes_.page_bytes);
#pragma unroll 1
    for (std::uint32_t i = lane_; i < count + kRowsAhead; i += kWarp) {
      const std::uint32_t listed = listed_.rows[min(i, count - 1)];
      const std::uint32_t row = listed % kPageRows;
      const std::uint64_t page = pages + static_cast<std::uint64_t>(listed_.pages[listed / kPageRows]) * page_bytes;
      const std::uint32_t upper = row / 8 & 1;
      listed_.codes[i] = page + (row / kTileRows * layout::kTileBytes + upper * (layout::kUpperAt + 1) +
                                 row % 8 * (kLanesOfRow * layout::kPlaneWords * 4));
      listed_.positions[i] = __ldg(
          reinterpret_cast<const std::uint32_t*>(page + (static_cast<std::uint32_t>(codes_.positions_at) + row * 4)));
    }
    __syncwarp();
  }

  /// The words of one of a row's lanes.
  struct row_codes {
    std::uint32_t words[layout::kLaneWords];
  };

  template <int Words>
  static __device__ __forceinline__ void load_words(std::uint64_t from, std::uint32_t* to) {
    if constexpr (Words == 4) {
      const uint4 v = __ldg(reinterpret_cast<const uint4*>(from));
      to[0] = v.x;
      to[1] = v.y;
      to[2] = v.z;
      to[3] = v.w;
    } else if constexpr (Words == 2) {
      const uint2 v = __ldg(reinterpret_cast<const uint2*>(from));
      to[0] = v.x;
      to[1] = v.y;
    } else if constexpr (Words == 1) {
      to[0] = __ldg(reinterpret_cast<const std::uint32_t*>(from));
    }
  }

  __device__ __forceinline__ row_codes codes_of(std::uint32_t listed) const {
    const std::uint64_t codes = listed_.codes[listed];
    const std::uint32_t upper = codes & 1;
    const std::uint64_t planes = codes - upper + lane_ % kLanesOfRow * (layout::kPlaneWords * 4);
    constexpr int kWhole = layout::kPlanes * layout::kPlaneWords;
    constexpr int kShared = layout::kPlanes * layout::kPlaneBytes;  // where the plane lies that rows share
    std::uint32_t whole[kWhole + 1];
    std::uint32_t half[layout::kHalf + 1];
#pragma unroll
    for (int plane = 0; plane < layout::kPlanes; plane++)
      load_words<layout::kPlaneWords>(planes + plane * layout::kPlaneBytes, whole + plane * layout::kPlaneWords);
    const std::int64_t down =
        static_cast<std::int64_t>(static_cast<std::int32_t>(upper)) * (layout::kHalf * 4 - layout::kUpperAt);
    load_words<layout::kHalf>(planes + down + kShared, half);
    row_codes brought;
#pragma unroll
    for (int i = 0; i < layout::kLaneWords; i++) {
      const std::uint32_t of_lower = i < kWhole ? whole[min(i, kWhole)] : half[max(i - kWhole, 0)];
      const std::uint32_t of_upper = i < layout::kHalf ? half[min(i, layout::kHalf)] : whole[max(i - layout::kHalf, 0)];
      brought.words[i] = upper ? of_upper : of_lower;
    }
    return brought;
  }

  /// A row's words go to where those who need them are.
  __device__ __forceinline__ void hand_out(const row_codes& row) const {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < layout::kLaneWords; i++) {
      const std::uint32_t word = lane_ % kLanesOfRow * layout::kLaneWords + i;  // of the row
      reinterpret_cast<std::uint32_t*>(&here_[lane_ / kLanesOfResult][word % layout::kSets])[word / layout::kSets] =
          row.words[i];
    }
    __syncwarp();
  }

  /// The sum of the lane's row; known to all lanes that finish it.
  __device__ __forceinline__ float sum_of_row() const {
    float sums[2 * kRowsOfLane];
#pragma unroll
    for (int r = 0; r < kRowsOfLane; r++) {
      const uint4 codes = here_[lane_ / kLanes * kRowsOfLane + r][of_row_ * layout::kSets / kLanes];
      const std::uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
      float2 p[4];
#pragma unroll
      for (int v = 0; v < Groups; v++) {
        const float2 w = decode_(words[v], v);
        const float2 c = centroid_[v];
        p[v] = partial_of<L2>(query_[v], make_float2(__fadd_rn(c.x, w.x), __fadd_rn(c.y, w.y)));
      }
      const float2 sum = sum_of_groups(p);
      sums[2 * r] = sum.x;
      sums[2 * r + 1] = sum.y;
    }
    add_across_lanes<2 * kRowsOfLane, kLanes / 2, 2>(sums, lane_);       // down to s = 4
    const float sum = sums[0] + __shfl_xor_sync(kFullWarp, sums[0], 1);  // s = 2
    return sum + __shfl_xor_sync(kFullWarp, sum, 2);
  }

  /// s = 64, then s = 32. Sums are never -0, so that adding nothing leaves them.
  static __device__ __forceinline__ float2 sum_of_groups(const float2 (&p)[4]) {
    const auto add = [](const float2& a, const float2& b) { return make_float2(a.x + b.x, a.y + b.y); };
    if constexpr (Groups == 1) return p[0];
    if constexpr (Groups == 2) return add(p[0], p[1]);
    if constexpr (Groups == 3) return add(add(p[0], p[2]), p[1]);
    return add(add(p[0], p[2]), add(p[1], p[3]));
  }

  const many_plan& plan_;
  const decoder& codes_;
  int lane_;
  int of_row_;
  pair_decoder<Form, Groups> decode_;
  codes_of_row* here_;  // [kRows]
  listed_rows& listed_;
  float2 query_[Groups];
  float2 centroid_[Groups];
  float inverse_norm_ = 0.0f;
  std::uint64_t* to_ = nullptr;  // the query's rows
};

template <row_form Form, int Groups, bool L2>
__global__ void __launch_bounds__(kWideThreads<Form>, 1) wide_score_kernel(const __grid_constant__ many_plan plan) {
  join_chain();
  auto& shared = *reinterpret_cast<wide_shared<Form, Groups>*>(dynamic_shared());
  if constexpr (kLooksUp<Form>) fill_codewords<Form, Groups>(plan.codes, shared);
  if (threadIdx.x == 0) shared.next_pair = 0;
  __syncthreads();
  wide_scorer<Form, Groups, L2> scorer(plan, shared);
  for_all_marked_rows(
      plan, shared.next_pair, shared.listed[threadIdx.x / kWarp],
      [&](std::uint32_t list, std::uint32_t query) { scorer.begin(list, query); },
      [&](std::uint32_t place, std::uint32_t count) { scorer.score(place, count); });
}

// ---- other codes

constexpr int kListThreads = 256;
constexpr int kListBlocks = 4;  // of a multiprocessor

/// Lists and slots of marked rows, among their queries'.
__global__ void __launch_bounds__(kListThreads) list_rows_kernel(const __grid_constant__ many_plan plan) {
  join_chain();
  __shared__ listed_rows all_listed[kListThreads / kWarp];
  __shared__ std::uint32_t next_pair;
  if (threadIdx.x == 0) next_pair = 0;
  __syncthreads();
  listed_rows& listed = all_listed[threadIdx.x / kWarp];
  std::uint32_t list = 0;
  std::uint64_t* to = nullptr;
  for_all_marked_rows(
      plan, next_pair, listed,
      [&](std::uint32_t of_list, std::uint32_t query) {
        list = of_list;
        to = plan.rows + static_cast<std::int64_t>(query) * plan.room;
      },
      [&](std::uint32_t place, std::uint32_t count) {
        constexpr std::uint32_t kRowsOfPage = core::kPageRows;
        for (std::uint32_t i = threadIdx.x % kWarp; i < count && place + i < plan.room; i += kWarp) {
          const std::uint32_t row = listed.rows[i];
          to[place + i] = static_cast<std::uint64_t>(list) << 32 |
                          (listed.pages[row / kRowsOfPage] * kRowsOfPage + row % kRowsOfPage);
        }
      });
}

using kernel_pointer = void (*)(many_plan);

struct wide_kernel {
  kernel_pointer kernel;
  int threads;
  std::int64_t shared_bytes;
};

template <row_form Form, int Groups>
wide_kernel wide_kernel_of(bool l2) {
  return {l2 ? wide_score_kernel<Form, Groups, true> : wide_score_kernel<Form, Groups, false>, kWideThreads<Form>,
          static_cast<std::int64_t>(sizeof(wide_shared<Form, Groups>))};
}

template <row_form Form>
wide_kernel wide_kernel_of(std::int32_t dim, bool l2) {
  constexpr int kElements = 2 * kLanes;  // of a group
  if (dim <= kElements) return wide_kernel_of<Form, 1>(l2);
  if (dim <= 2 * kElements) return wide_kernel_of<Form, 2>(l2);
  if (dim <= 3 * kElements) return wide_kernel_of<Form, 3>(l2);
  return wide_kernel_of<Form, 4>(l2);
}

wide_kernel wide_kernel_of(row_form form, std::int32_t dim, bool l2) {
  switch (form) {
    case row_form::pairs: return wide_kernel_of<row_form::pairs>(dim, l2);
    case row_form::numbers4: return wide_kernel_of<row_form::numbers4>(dim, l2);
    default: return wide_kernel_of<row_form::numbers8>(dim, l2);
  }
}

}  // namespace

void launch_score_marked(cudaStream_t stream, const many_plan& plan, int multiprocessors) {
  constexpr const char* kWhat = "launching the scores of marked rows";
  const row_form form = row_form_of(plan.codes);
  if (is_short(form) && plan.codes.centroids) {
    const wide_kernel wide = wide_kernel_of(form, plan.codes.dim, plan.answer.results.by == metric::l2);
    return launch(wide.kernel,
                  {.grid = dim3(static_cast<unsigned>(multiprocessors)),
                   .threads = wide.threads,
                   .shared_bytes = wide.shared_bytes,
                   .overlaps = true},
                  stream, plan, kWhat);
  }
  launch(
      list_rows_kernel,
      {.grid = dim3(static_cast<unsigned>(kListBlocks * multiprocessors)), .threads = kListThreads, .overlaps = true},
      stream, plan, kWhat);
  launch_score_rows(stream, plan);
}

}  // namespace shortlist::cuda
