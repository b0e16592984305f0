// Rows that were chosen by written distances, scored to the bit.
//
// Codes whose pieces are two elements: blocks that fill a multiprocessor hold all codewords in fp32 in shared memory,
// where the 16 lanes of a row read 16 pieces from as many banks; warps take eight rows of a query at a time and never
// wait for each other. Other codes: a block a query, eight lanes a row. Queries come by their nearest list, so that
// codes are read while the L2 cache has them.
// Limit: shared memory and the L1 cache, some 90 accesses for eight rows. History: docs/kernels.md.
#include <algorithm>

#include "cuda/device/chain.cuh"
#include "cuda/device/bulk_copy.cuh"
#include "cuda/device/cluster.cuh"
#include "cuda/ivf_pq/code_scorer.cuh"
#include "cuda/ivf_pq/written.cuh"
#include "cuda/runtime/launch.cuh"

namespace shortlist::cuda {
namespace {

// ---- codewords in shared memory

constexpr int kTableThreads = 768;
constexpr int kTableWarps = kTableThreads / kWarp;
constexpr int kLanes = 16;  // of a row: as many pieces at a time
constexpr int kHalves = kWarp / kLanes;
constexpr int kRowsOfLane = 4;
constexpr int kLanesOfResult = kLanes / kRowsOfLane;
constexpr std::uint32_t kRows = kHalves * kRowsOfLane;  // of a warp at a time
constexpr int kCodewords = 256;
constexpr int kPieceBytes = sizeof(float2);
constexpr int kCodewordBytes = kLanes * kPieceBytes;  // one of each of 16 pieces, in banks of their own
constexpr int kGroupBytes = kCodewords * kCodewordBytes;
constexpr int kCodesOfRow = 5;                   // 16 bytes; one is padding, so that rows' words lie in other banks
constexpr std::int64_t kRowsOfPart = 256;        // of a query, which a warp takes at a time, or so
constexpr std::int64_t kLeastRowsOfPart = 4 * kRows;
constexpr std::int64_t kPartsOfWarp = 8;         // at least, as far as there are so many
static_assert(kCodewordBytes < 256, "a factor in a dot product of bytes");
static_assert(kLanesOfResult == kLanesOfRow, "a row's words are loaded by the lanes that finish it");

/// What a block of Groups groups of 16 pieces works in.
template <int Groups>
struct table_shared {
  float2 codewords[Groups][kCodewords][kLanes];
  uint4 codes[kTableWarps][kRows][kCodesOfRow];  // as lanes need them: word v of four lanes for group v
};

/// One row's partial sums of two neighbouring elements.
template <bool L2>
__device__ __forceinline__ float2 partial_of(const float2& query, const float2& row) {
  if constexpr (L2) return make_float2(core::step_l2(query.x, row.x, 0.0f), core::step_l2(query.y, row.y, 0.0f));
  return make_float2(core::step_dot(query.x, row.x, 0.0f), core::step_dot(query.y, row.y, 0.0f));
}

/// From [pieces, 256] pairs; 0 past the last piece.
template <int Groups>
__device__ void load_codewords(const decoder& from, table_shared<Groups>& shared) {
  const auto* codebook = reinterpret_cast<const float2*>(from.codebook);
  const std::int32_t pieces = (from.dim + 1) / 2;
  for (std::int32_t i = threadIdx.x; i < Groups * kLanes * kCodewords; i += kTableThreads) {
    const std::int32_t piece = i / kCodewords;
    shared.codewords[piece / kLanes][i % kCodewords][piece % kLanes] =
        piece < pieces ? codebook[i] : make_float2(0.0f, 0.0f);
  }
}

/// A warp that scores rows of queries by their codes; lane b of 16 has elements 32 v + 2 b and the next, v below Groups.
template <int Groups, bool L2>
class table_scorer {
 public:
  __device__ table_scorer(const written_plan& plan, table_shared<Groups>& shared)
      : plan_(plan),
        codes_(plan.codes),
        lane_(static_cast<int>(threadIdx.x % kWarp)),
        of_row_(lane_ % kLanes),
        is_whole_(element(Groups - 1) < plan.codes.dim),
        factor_(static_cast<std::uint32_t>(kCodewordBytes) << (of_row_ % 4 * 8)),
        table_(shared_address(&shared.codewords[0][0][of_row_])),
        codes_here_(shared.codes[threadIdx.x / kWarp]) {}

  /// Scores rows [first, end) of a query; a warp. While some are scored, the codes of the next are on their way, and the
  /// numbers of those after.
  __device__ void run(std::int64_t query, std::uint32_t first, std::uint32_t end) {
    if (first >= end) return;
    const float* q = plan_.batch.queries + query * plan_.batch.query_stride;
#pragma unroll
    for (int v = 0; v < Groups; v++) {
      const std::int32_t i = element(v);
      query_[v].x = i < codes_.dim ? q[i] : core::kQueryPadding;
      query_[v].y = i + 1 < codes_.dim ? q[i + 1] : core::kQueryPadding;
    }
    const metric by = plan_.answer.results.by;
    const float inverse_norm = by == metric::cosine ? plan_.batch.inverse_norms[query] : 0.0f;
    std::uint64_t* rows = plan_.chosen + query * plan_.room;
    std::uint32_t at = first + lane_ / kLanesOfResult;  // of the row that the lane finishes
    const auto chosen_at = [&](std::uint32_t i) { return reinterpret_cast<const uint2*>(rows)[min(i, end - 1)]; };
    uint2 chosen = chosen_at(at);
    row_codes next = codes_of(chosen);
    chosen = chosen_at(at + kRows);
#pragma unroll 1
    for (; first < end; first += kRows, at += kRows) {
      const row_codes now = next;
      next = codes_of(chosen);
      chosen = chosen_at(at + 2 * kRows);
      hand_out(now);
      const float sum = sum_of(now.centroid_at);
      if (lane_ % kLanesOfResult == 0 && at < end)
        rows[at] = core::row_key(core::score_key(code_score(sum, by, inverse_norm), by), now.position);
    }
  }

 private:
  static constexpr std::uint32_t kPageRows = core::kPageRows;
  static constexpr int kPlaneWords = 2 * Groups % 4 == 0 ? 4 : 2;
  static constexpr int kTileWords = 2 * Groups * kWarp;

  __device__ __forceinline__ std::int32_t element(int v) const { return 2 * (v * kLanes + of_row_); }
  __device__ __forceinline__ std::uint32_t page_bytes() const { return static_cast<std::uint32_t>(codes_.page_bytes); }

  /// Where word i lies of those that a page's lane has, from its first on.
  static constexpr int word_at(int i) { return i / kPlaneWords * kWarp * kPlaneWords + i % kPlaneWords; }

  /// What is brought of a row: the words of one of its lanes.
  struct row_codes {
    std::uint32_t words[Groups];
    std::uint32_t position;
    std::uint32_t centroid_at;  // bytes
  };

  /// Of a row's slot and list.
  __device__ __forceinline__ row_codes codes_of(const uint2& chosen) const {
    const std::byte* page = codes_.pages + chosen.x / kPageRows * static_cast<std::uint64_t>(page_bytes());
    const std::uint32_t row = chosen.x % kPageRows;
    const std::uint32_t first = row / kTileRows * kTileWords +
                                (row % 8 * kLanesOfRow + lane_ % kLanesOfRow) * kPlaneWords;  // of a lower row
    const auto* from = reinterpret_cast<const std::uint32_t*>(page + first * sizeof(std::uint32_t));
    row_codes brought;
#pragma unroll
    for (int i = 0; i < Groups; i++) brought.words[i] = row & 8 ? from[word_at(Groups + i)] : from[word_at(i)];
    brought.position = reinterpret_cast<const std::uint32_t*>(page + codes_.positions_at)[row];
    brought.centroid_at = chosen.y * static_cast<std::uint32_t>(codes_.centroid_stride * sizeof(float));
    return brought;
  }

  /// A row's words go to where those who need them are.
  __device__ __forceinline__ void hand_out(const row_codes& row) const {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < Groups; i++) {
      const std::uint32_t word = lane_ % kLanesOfRow * Groups + i;  // of the row: four pieces
      reinterpret_cast<std::uint32_t*>(&codes_here_[lane_ / kLanesOfResult][word % 4])[word / 4] = row.words[i];
    }
    __syncwarp();
  }

  /// The sum of the lane's row, whose centroid is given; known to all lanes that finish it.
  __device__ __forceinline__ float sum_of(std::uint32_t centroid_at) const {
    float sums[2 * kRowsOfLane];
    const auto* centroids = reinterpret_cast<const std::byte*>(codes_.centroids + 2 * of_row_);
#pragma unroll
    for (int r = 0; r < kRowsOfLane; r++) {
      const int of_warp = lane_ / kLanes * kRowsOfLane + r;
      const uint4 codes = codes_here_[of_warp][of_row_ / 4];
      const std::uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
      const auto* centroid = reinterpret_cast<const float*>(
          centroids + __shfl_sync(kFullWarp, centroid_at, of_warp * kLanesOfResult));
      float2 p[4];
#pragma unroll
      for (int v = 0; v < Groups; v++) {
        const float2 w = codeword_at(__dp4a(words[v], factor_, table_) + v * kGroupBytes);
        float2 c = make_float2(0.0f, 0.0f);
        if (v < Groups - 1 || is_whole_) c = *reinterpret_cast<const float2*>(centroid + v * 2 * kLanes);
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

  static __device__ __forceinline__ float2 codeword_at(std::uint32_t at) {
    float2 w;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(w.x), "=f"(w.y) : "r"(at));
    return w;
  }

  using codes_of_row = uint4[kCodesOfRow];

  const written_plan& plan_;
  const decoder& codes_;
  int lane_;
  int of_row_;
  bool is_whole_;  // whether the last group has elements of the lane
  std::uint32_t factor_;
  std::uint32_t table_;
  codes_of_row* codes_here_;  // [kRows]
  float2 query_[Groups];
};

template <int Groups, bool L2>
__global__ void __launch_bounds__(kTableThreads, 1) table_score_kernel(const __grid_constant__ written_plan plan) {
  join_chain();
  auto& shared = *reinterpret_cast<table_shared<Groups>*>(dynamic_shared());
  load_codewords<Groups>(plan.codes, shared);
  __syncthreads();
  table_scorer<Groups, L2> scorer(plan, shared);
  const std::uint32_t parts = plan.parts;
  const std::uint32_t count = static_cast<std::uint32_t>(plan.batch.count) * parts;
  for (std::uint32_t item = threadIdx.x / kWarp * gridDim.x + blockIdx.x; item < count;
       item += gridDim.x * kTableWarps) {
    const std::uint32_t query = plan.batch.in_order[item / parts];
    const std::uint32_t n = plan.counts[query];
    const std::uint32_t rows = ((n + parts - 1) / parts + kRows - 1) / kRows * kRows;
    scorer.run(query, item % parts * rows, min(n, (item % parts + 1) * rows));
  }
}

// ---- any codes

constexpr int kThreads = 256;

template <row_form Form, bool L2>
__global__ void __launch_bounds__(kThreads) score_kernel(const __grid_constant__ written_plan plan) {
  join_chain();
  auto* staged = reinterpret_cast<float*>(dynamic_shared());
  const std::uint32_t query = plan.batch.in_order[blockIdx.x];
  const std::uint32_t n = plan.counts[query];
  if (n == 0) return;
  stage_query(plan.batch.queries + query * plan.batch.query_stride, plan.codes.dim, staged);
  __syncthreads();
  const int lane = threadIdx.x % kWarp;
  const code_scorer<Form, L2> scorer(plan.codes, plan.answer.results.by, staged, lane);
  std::uint64_t* rows = plan.chosen + query * static_cast<std::int64_t>(plan.room);
  const int mine = finished_row<kLanesOfScore, kScoredOfLanes>(lane);
  for (std::uint32_t first = threadIdx.x / kWarp * kScoredAtOnce; first < n; first += kThreads / kWarp * kScoredAtOnce) {
    const std::uint32_t at = first + lane / kLanesOfScore * kScoredOfLanes;
    slot slots[kScoredOfLanes];
    std::uint32_t lists[kScoredOfLanes];
#pragma unroll
    for (int r = 0; r < kScoredOfLanes; r++) {
      const uint2 row = reinterpret_cast<const uint2*>(rows)[min(at + r, n - 1)];
      slots[r] = row.x;
      lists[r] = row.y;
    }
    const std::uint64_t key = scorer.key_of(slots, lists, mine);
    __syncwarp();
    if (leads_finished_row<kLanesOfScore, kScoredOfLanes>(lane) && at + mine < n) rows[at + mine] = key;
    __syncwarp();
  }
}

using kernel_pointer = void (*)(written_plan);

template <row_form Form>
kernel_pointer kernel_of(bool l2) {
  return l2 ? score_kernel<Form, true> : score_kernel<Form, false>;
}

kernel_pointer kernel_of(row_form form, bool l2) {
  switch (form) {
    case row_form::numbers8: return kernel_of<row_form::numbers8>(l2);
    case row_form::numbers4: return kernel_of<row_form::numbers4>(l2);
    default: return kernel_of<row_form::any>(l2);
  }
}

std::int64_t table_bytes_of(int groups) {
  return static_cast<std::int64_t>(sizeof(table_shared<1>)) + (groups - 1) * static_cast<std::int64_t>(kGroupBytes);
}

/// Parts that queries are cut into, so that warps have as many rows to score.
std::uint32_t parts_of(const written_plan& plan, int multiprocessors) {
  const std::int64_t rows = plan.answer.by_code;
  const std::int64_t wanted = kPartsOfWarp * multiprocessors * kTableWarps;
  const std::int64_t parts = std::max(rows / kRowsOfPart, wanted / plan.batch.count);
  return static_cast<std::uint32_t>(std::clamp<std::int64_t>(parts, 1, rows / kLeastRowsOfPart + 1));
}

template <bool L2>
kernel_pointer table_kernel_of(int groups) {
  switch (groups) {
    case 1: return table_score_kernel<1, L2>;
    case 2: return table_score_kernel<2, L2>;
    case 3: return table_score_kernel<3, L2>;
    default: return table_score_kernel<4, L2>;
  }
}

}  // namespace

void launch_score_rows(cudaStream_t stream, written_plan plan, int multiprocessors) {
  constexpr const char* kWhat = "launching the scores of chosen rows";
  const bool l2 = plan.answer.results.by == metric::l2;
  const row_form form = row_form_of(plan.codes);
  if (form == row_form::pairs && plan.codes.centroids) {
    plan.parts = parts_of(plan, multiprocessors);
    const int groups = (plan.codes.dim + 2 * kLanes - 1) / (2 * kLanes);
    const launch_shape shape{.grid = dim3(static_cast<unsigned>(multiprocessors)),
                             .threads = kTableThreads,
                             .shared_bytes = table_bytes_of(groups),
                             .overlaps = true};
    return launch(l2 ? table_kernel_of<true>(groups) : table_kernel_of<false>(groups), shape, stream, plan, kWhat);
  }
  launch(kernel_of(form, l2),
         {.grid = dim3(static_cast<unsigned>(plan.batch.count)),
          .threads = kThreads,
          .shared_bytes = padded_dim(plan.codes.dim) * static_cast<std::int64_t>(sizeof(float)),
          .overlaps = true},
         stream, plan, kWhat);
}

}  // namespace shortlist::cuda
