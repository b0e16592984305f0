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

constexpr int kTableThreads = 1024;
constexpr int kTableWarps = kTableThreads / kWarp;
constexpr int kLanes = 16;         // of a row: as many pieces at a time
constexpr int kHalves = kWarp / kLanes;
constexpr int kRowsOfLane = 4;
constexpr std::uint32_t kRows = kHalves * kRowsOfLane;  // of a warp at a time
constexpr int kCodewords = 256;
constexpr int kPieceBytes = sizeof(float2);
constexpr int kCodewordBytes = kLanes * kPieceBytes;  // one of each of 16 pieces, in banks of their own
constexpr int kGroupBytes = kCodewords * kCodewordBytes;
static_assert(kCodewordBytes < 256, "a factor in a dot product of bytes");

__device__ __forceinline__ float2 codeword_at(std::uint32_t at) {
  float2 w;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(w.x), "=f"(w.y) : "r"(at));
  return w;
}

/// One row's partial sums of two neighbouring elements.
template <bool L2>
__device__ __forceinline__ float2 partial_of(const float2& query, const float2& row) {
  if constexpr (L2) return make_float2(core::step_l2(query.x, row.x, 0.0f), core::step_l2(query.y, row.y, 0.0f));
  return make_float2(core::step_dot(query.x, row.x, 0.0f), core::step_dot(query.y, row.y, 0.0f));
}

/// The codebook, [pieces, 256] pairs, as groups of 16 pieces: [groups][256][16].
__device__ void load_table(const decoder& from, unsigned char* table, int groups) {
  const auto* codebook = reinterpret_cast<const float2*>(from.codebook);
  auto* to = reinterpret_cast<float2*>(table);
  const std::int32_t pieces = (from.dim + 1) / 2;
  for (std::int32_t i = threadIdx.x; i < groups * kLanes * kCodewords; i += kTableThreads) {
    const std::int32_t piece = i / kCodewords;
    const std::int32_t code = i % kCodewords;
    to[(piece / kLanes * kCodewords + code) * kLanes + piece % kLanes] =
        piece < pieces ? codebook[piece * kCodewords + code] : make_float2(0.0f, 0.0f);
  }
}

/// A warp that scores rows of queries by their codes; lane b of 16 has elements 32 v + 2 b and the next, v below Groups.
template <int Groups, bool L2>
class table_scorer {
 public:
  __device__ table_scorer(const written_plan& plan, std::uint32_t table)
      : plan_(plan),
        codes_(plan.codes),
        lane_(static_cast<int>(threadIdx.x % kWarp)),
        of_row_(lane_ % kLanes),
        table_(table + of_row_ * kPieceBytes),
        factor_(static_cast<std::uint32_t>(kCodewordBytes) << (of_row_ % 4 * 8)) {
    // Of a row's words the lane loads one, and needs one for each group of pieces.
    const std::int32_t words = codes_.row_words * static_cast<std::int32_t>(kLanesOfRow);
    const std::int32_t mine = of_row_ < words ? of_row_ : 0;
#pragma unroll
    for (int upper = 0; upper < 2; upper++) {
      const std::int32_t at = upper * codes_.row_words + mine % codes_.row_words;
      const std::int32_t plane = at >> codes_.plane_shift;
      word_at_[upper] = ((plane * static_cast<std::int32_t>(kWarpLanes) + mine / codes_.row_words)
                         << codes_.plane_shift) +
                        at - (plane << codes_.plane_shift);
    }
#pragma unroll
    for (int v = 0; v < Groups; v++) {
      const std::int32_t piece = v * kLanes + of_row_;
      const std::int32_t lane_of_row = piece / codes_.lane_pieces;
      const std::int32_t word = lane_of_row * codes_.row_words + piece % codes_.lane_pieces / 4;
      words_from_[v] = word < words ? lane_ / kLanes * kLanes + word : lane_;
    }
    is_whole_ = element(Groups - 1) < codes_.dim;
    last_at_ = is_whole_ ? element(Groups - 1) : 0;
  }

  /// Takes a query; the warp scores rows [first, n) by `step`.
  __device__ void run(std::int64_t query, std::uint32_t first, std::uint32_t n, std::uint32_t step) {
    if (first >= n) return;
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
    const int mine = lane_ / 4 % kRowsOfLane;
    for (; first < n; first += step) {
      const std::uint32_t of_half = first + lane_ / kLanes * kRowsOfLane;
      uint2 row[kRowsOfLane];  // slot and list
#pragma unroll
      for (int r = 0; r < kRowsOfLane; r++) row[r] = reinterpret_cast<const uint2*>(rows)[min(of_half + r, n - 1)];
      const std::uint32_t position = codes_.position_of(chosen_of(row, mine).x);
      const float sum = sum_of(row);
      __syncwarp();
      if (lane_ % 4 == 0 && of_half + mine < n)
        rows[of_half + mine] = core::row_key(core::score_key(code_score(sum, by, inverse_norm), by), position);
    }
  }

 private:
  __device__ __forceinline__ std::int32_t element(int v) const { return 2 * (v * kLanes + of_row_); }

  __device__ __forceinline__ uint2 chosen_of(const uint2 (&row)[kRowsOfLane], int which) const {
    const uint2 low = which & 1 ? row[1] : row[0];
    const uint2 high = which & 1 ? row[3] : row[2];
    return which & 2 ? high : low;
  }

  __device__ __forceinline__ std::uint32_t word_of(slot row) const {
    const auto in_page = static_cast<std::int32_t>(row % core::kPageRows);
    const auto* of_row = reinterpret_cast<const std::uint32_t*>(codes_.page_of(row)) +
                         in_page / kTileRows * codes_.tile_words +
                         (in_page % 8 * static_cast<std::int32_t>(kLanesOfRow) << codes_.plane_shift);
    return of_row[in_page & 8 ? word_at_[1] : word_at_[0]];
  }

  /// The sum of the half-warp's row lane / 4 % 4, known to all lanes of the four that share it.
  __device__ __forceinline__ float sum_of(const uint2 (&row)[kRowsOfLane]) const {
    std::uint32_t words[kRowsOfLane];
#pragma unroll
    for (int r = 0; r < kRowsOfLane; r++) words[r] = word_of(row[r].x);
    float sums[2 * kRowsOfLane];
#pragma unroll
    for (int r = 0; r < kRowsOfLane; r++) {
      const float* centroid = codes_.centroids + row[r].y * codes_.centroid_stride;
      float2 p[4] = {};
#pragma unroll
      for (int v = 0; v < Groups; v++) {
        const std::uint32_t word = __shfl_sync(kFullWarp, words[r], words_from_[v]);
        const float2 w = codeword_at(__dp4a(word, factor_, table_) + v * kGroupBytes);
        const float2 c =
            *reinterpret_cast<const float2*>(centroid + (v == Groups - 1 ? last_at_ : v * 2 * kLanes + 2 * of_row_));
        p[v] = partial_of<L2>(query_[v], make_float2(__fadd_rn(c.x, w.x), __fadd_rn(c.y, w.y)));
      }
      if (!is_whole_) p[Groups - 1] = make_float2(0.0f, 0.0f);
      sums[2 * r] = (p[0].x + p[2].x) + (p[1].x + p[3].x);  // s = 64, s = 32
      sums[2 * r + 1] = (p[0].y + p[2].y) + (p[1].y + p[3].y);
    }
    add_across_lanes<2 * kRowsOfLane, kLanes / 2, 2>(sums, lane_);  // down to s = 4
    const float sum = sums[0] + __shfl_xor_sync(kFullWarp, sums[0], 1);  // s = 2
    return sum + __shfl_xor_sync(kFullWarp, sum, 2);
  }

  const written_plan& plan_;
  const decoder& codes_;
  int lane_;
  int of_row_;
  std::uint32_t table_;
  std::uint32_t factor_;
  std::int32_t word_at_[2];
  int words_from_[Groups];
  bool is_whole_;          // whether the last group has elements of the lane
  std::int32_t last_at_;
  float2 query_[Groups];
};

template <int Groups, bool L2>
__global__ void __launch_bounds__(kTableThreads, 1) table_score_kernel(const __grid_constant__ written_plan plan) {
  join_chain();
  load_table(plan.codes, dynamic_shared(), Groups);
  __syncthreads();
  table_scorer<Groups, L2> scorer(plan, shared_address(dynamic_shared()));
  const std::uint32_t warp = threadIdx.x / kWarp;
  for (std::int64_t turn = blockIdx.x, round = 0; turn < plan.batch.count; turn += gridDim.x, round++) {
    const std::uint32_t query = plan.batch.in_order[turn];
    const auto turned = static_cast<std::uint32_t>((warp + round * 8) % kTableWarps);  // no warp is last each time
    scorer.run(query, turned * kRows, plan.counts[query], kTableWarps * kRows);
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

void launch_score_rows(cudaStream_t stream, const written_plan& plan, int multiprocessors) {
  constexpr const char* kWhat = "launching the scores of chosen rows";
  const bool l2 = plan.answer.results.by == metric::l2;
  const row_form form = row_form_of(plan.codes);
  if (form == row_form::pairs && plan.codes.centroids) {
    const int groups = (plan.codes.dim + 2 * kLanes - 1) / (2 * kLanes);
    const launch_shape shape{.grid = dim3(static_cast<unsigned>(std::min<std::int64_t>(multiprocessors, plan.batch.count))),
                             .threads = kTableThreads,
                             .shared_bytes = static_cast<std::int64_t>(groups) * kGroupBytes,
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
