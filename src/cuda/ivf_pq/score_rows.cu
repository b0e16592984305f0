// Rows that were chosen by written distances, scored to the bit.
//
// Pairs of elements that a byte names, and whole numbers of 4 or 8 bits: blocks that fill a multiprocessor, whose warps
// take eight rows of a query at a time and never wait for each other, 16 lanes a row. Codewords are in shared memory in
// fp32, where the lanes of a row read 16 pieces from as many banks. Rows without centroids, and other codes: a block a
// query, eight lanes a row.
// Limit: memory: of a row 96 bytes lie apart, of which 64 at a time are brought. History: docs/kernels.md.
#include <algorithm>

#include "cuda/device/bulk_copy.cuh"
#include "cuda/device/chain.cuh"
#include "cuda/device/cluster.cuh"
#include "cuda/ivf_pq/code_scorer.cuh"
#include "cuda/ivf_pq/written.cuh"
#include "cuda/runtime/launch.cuh"

namespace shortlist::cuda {
namespace {

// ---- codes of a byte or half of one

constexpr int kWideThreads = 1024;
constexpr int kWideWarps = kWideThreads / kWarp;
constexpr int kLanes = 16;  // of a row
constexpr int kRowsOfLane = 4;
constexpr int kLanesOfResult = kLanes / kRowsOfLane;
constexpr std::uint32_t kRows = kWarp / kLanes * kRowsOfLane;  // of a warp at a time
constexpr int kCodewords = 256;
constexpr int kCodewordBytes = kLanes * sizeof(float2);  // one of each of 16 pieces, in banks of their own
constexpr int kGroupBytes = kCodewords * kCodewordBytes;
constexpr std::int64_t kRowsOfPart = 256;  // of a query, which a warp takes at a time, or so
constexpr std::int64_t kLeastRowsOfPart = 4 * kRows;
constexpr std::int64_t kPartsOfWarp = 8;  // at least, as far as there are so many
static_assert(kCodewordBytes < 256, "a factor in a dot product of bytes");
static_assert(kLanesOfResult == kLanesOfRow, "a row's words are loaded by the lanes that finish it");

/// How a page has rows of Groups groups of 32 elements; page_layout has the same at run time.
template <row_form Form, int Groups>
struct row_layout {
  static constexpr bool kLooksUp = Form == row_form::pairs;
  static constexpr int kSets = Form == row_form::numbers8 ? 8 : 4;  // of lanes that share their words
  static constexpr int kLaneWords = kSets * Groups / kLanesOfRow;   // of a row
  static constexpr int kPlaneWords = 2 * kLaneWords % 4 == 0 ? 4 : 2;
  static constexpr int kTileWords = 2 * kLaneWords * kWarp;
  /// Where word i lies of those that a page's lane has, from its first on.
  static constexpr int word_at(int i) { return i / kPlaneWords * kWarp * kPlaneWords + i % kPlaneWords; }
};

/// What a block works in.
template <row_form Form, int Groups>
struct wide_shared {
  using layout = row_layout<Form, Groups>;
  using codes_of_row = uint4[layout::kSets + 1];  // word v for group v; one is padding, so that rows lie in other banks
  codes_of_row codes[kWideWarps][kRows];
  float2 codewords[layout::kLooksUp ? Groups : 1][layout::kLooksUp ? kCodewords : 1][kLanes];
};

/// One row's partial sums of two neighbouring elements.
template <bool L2>
__device__ __forceinline__ float2 partial_of(const float2& query, const float2& row) {
  if constexpr (L2) return make_float2(core::step_l2(query.x, row.x, 0.0f), core::step_l2(query.y, row.y, 0.0f));
  return make_float2(core::step_dot(query.x, row.x, 0.0f), core::step_dot(query.y, row.y, 0.0f));
}

/// From [pieces, codewords] pairs; 0 past the last of either.
template <int Groups>
__device__ void load_codewords(const decoder& from, wide_shared<row_form::pairs, Groups>& shared) {
  const auto* codebook = reinterpret_cast<const float2*>(from.codebook);
  const std::int32_t pieces = (from.dim + 1) / 2;
  for (std::int32_t i = threadIdx.x; i < Groups * kLanes * kCodewords; i += kWideThreads) {
    const std::int32_t piece = i / kCodewords;
    const std::int32_t code = i % kCodewords;
    const bool exists = piece < pieces && code < from.codewords;
    shared.codewords[piece / kLanes][code][piece % kLanes] =
        exists ? codebook[piece * from.codewords + code] : make_float2(0.0f, 0.0f);
  }
}

/// What codes stand for: the elements 32 v + 2 b and the next of lane b.
template <row_form Form, int Groups>
class pair_decoder {
 public:
  __device__ pair_decoder(const decoder& from, const wide_shared<Form, Groups>&, int of_row)
      : shift_(Form == row_form::numbers8 ? of_row % 2 * 16 : of_row % 4 * 4) {
#pragma unroll
    for (int v = 0; v < Groups; v++) {
      const int i = 2 * (v * kLanes + of_row);
      steps_[v] = make_float2(i < from.dim ? from.steps[i] : 0.0f, i + 1 < from.dim ? from.steps[i + 1] : 0.0f);
    }
  }
  __device__ __forceinline__ float2 operator()(std::uint32_t word, int v) const {
    constexpr bool kBytes = Form == row_form::numbers8;
    constexpr float kMiddle = kBytes ? 127.5f : 7.5f;
    constexpr std::uint32_t kMask = kBytes ? 0xFFu : 0xFu;
    const std::uint32_t first = word >> shift_ & kMask;
    const std::uint32_t second = word >> (shift_ + (kBytes ? 8 : 16)) & kMask;
    return make_float2(__fmul_rn(static_cast<float>(first) - kMiddle, steps_[v].x),
                       __fmul_rn(static_cast<float>(second) - kMiddle, steps_[v].y));
  }

 private:
  int shift_;
  float2 steps_[Groups];
};

template <int Groups>
class pair_decoder<row_form::pairs, Groups> {
 public:
  __device__ pair_decoder(const decoder&, const wide_shared<row_form::pairs, Groups>& shared, int of_row)
      : factor_(static_cast<std::uint32_t>(kCodewordBytes) << (of_row % 4 * 8)),
        table_(shared_address(&shared.codewords[0][0][of_row])) {}
  __device__ __forceinline__ float2 operator()(std::uint32_t word, int v) const {
    float2 w;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                 : "=f"(w.x), "=f"(w.y)
                 : "r"(__dp4a(word, factor_, table_) + v * kGroupBytes));
    return w;
  }

 private:
  std::uint32_t factor_;
  std::uint32_t table_;
};

/// A warp that scores rows of queries by their codes; lane b of 16 has elements 32 v + 2 b and the next, v below
/// Groups.
template <row_form Form, int Groups, bool L2>
class wide_scorer {
 public:
  __device__ wide_scorer(const written_plan& plan, wide_shared<Form, Groups>& shared)
      : plan_(plan),
        codes_(plan.codes),
        lane_(static_cast<int>(threadIdx.x % kWarp)),
        of_row_(lane_ % kLanes),
        is_whole_(element(Groups - 1) < plan.codes.dim),
        decode_(plan.codes, shared, lane_ % kLanes),
        here_(shared.codes[threadIdx.x / kWarp]) {}

  /// Scores rows[first, end) of a query; a warp. While some are scored, the codes of the next are on their way, and
  /// the numbers of those after.
  __device__ void run(std::int64_t query, std::uint64_t* rows, std::uint32_t first, std::uint32_t end) {
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
    std::uint32_t at = first + lane_ / kLanesOfResult;  // of the row that the lane finishes
    const auto chosen_at = [&](std::uint32_t i) { return reinterpret_cast<const uint2*>(rows)[min(i, end - 1)]; };
    uint2 chosen = chosen_at(at);
    row_codes next = codes_of(chosen);
    chosen = chosen_at(at + kRows);
#pragma unroll 1
    for (; first < end; first += kRows, at += kRows) {
      const row_codes now = next;
      next = codes_of(chosen);
      hand_out(now);
      chosen = chosen_at(at + 2 * kRows);
      const bool is_one_list = __all_sync(kFullWarp, now.centroid_at == __shfl_sync(kFullWarp, now.centroid_at, 0));
      const float sum = is_one_list ? sum_of<true>(now.centroid_at) : sum_of<false>(now.centroid_at);
      if (lane_ % kLanesOfResult == 0 && at < end)
        rows[at] = core::row_key(core::score_key(code_score(sum, by, inverse_norm), by), now.position);
    }
  }

 private:
  using layout = row_layout<Form, Groups>;
  using codes_of_row = typename wide_shared<Form, Groups>::codes_of_row;
  static constexpr std::uint32_t kPageRows = core::kPageRows;

  __device__ __forceinline__ std::int32_t element(int v) const { return 2 * (v * kLanes + of_row_); }
  __device__ __forceinline__ std::uint32_t page_bytes() const { return static_cast<std::uint32_t>(codes_.page_bytes); }

  /// What is brought of a row: the words of one of its lanes.
  struct row_codes {
    std::uint32_t words[layout::kLaneWords];
    std::uint32_t position;
    std::uint32_t centroid_at;  // bytes
  };

  /// Of a row's slot and list.
  __device__ __forceinline__ row_codes codes_of(const uint2& chosen) const {
    const std::byte* page = codes_.pages + chosen.x / kPageRows * static_cast<std::uint64_t>(page_bytes());
    const std::uint32_t row = chosen.x % kPageRows;
    const std::uint32_t first = row / kTileRows * layout::kTileWords +
                                (row % 8 * kLanesOfRow + lane_ % kLanesOfRow) * layout::kPlaneWords;  // of a lower row
    const auto* from = reinterpret_cast<const std::uint32_t*>(page + first * sizeof(std::uint32_t));
    row_codes brought;
#pragma unroll
    for (int i = 0; i < layout::kLaneWords; i++)
      brought.words[i] = row & 8 ? from[layout::word_at(layout::kLaneWords + i)] : from[layout::word_at(i)];
    brought.position = reinterpret_cast<const std::uint32_t*>(page + codes_.positions_at)[row];
    brought.centroid_at = chosen.y * static_cast<std::uint32_t>(codes_.centroid_stride * sizeof(float));
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

  /// Elements of a centroid, whose part of the lane is given.
  __device__ __forceinline__ float2 centroid_of(const float* centroid, int v) const {
    if (v < Groups - 1 || is_whole_) return *reinterpret_cast<const float2*>(centroid + v * 2 * kLanes);
    return make_float2(0.0f, 0.0f);
  }

  /// The sum of the lane's row, whose centroid is given, perhaps the same for all; known to all lanes that finish it.
  template <bool OneList>
  __device__ __forceinline__ float sum_of(std::uint32_t centroid_at) const {
    const auto* centroids = reinterpret_cast<const std::byte*>(codes_.centroids + 2 * of_row_);
    float2 c[Groups];
    if constexpr (OneList) {
#pragma unroll
      for (int v = 0; v < Groups; v++) c[v] = centroid_of(reinterpret_cast<const float*>(centroids + centroid_at), v);
    }
    float sums[2 * kRowsOfLane];
#pragma unroll
    for (int r = 0; r < kRowsOfLane; r++) {
      const int of_warp = lane_ / kLanes * kRowsOfLane + r;
      const uint4 codes = here_[of_warp][of_row_ * layout::kSets / kLanes];
      const std::uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
      if constexpr (!OneList) {
        const auto* centroid =
            reinterpret_cast<const float*>(centroids + __shfl_sync(kFullWarp, centroid_at, of_warp * kLanesOfResult));
#pragma unroll
        for (int v = 0; v < Groups; v++) c[v] = centroid_of(centroid, v);
      }
      float2 p[4];
#pragma unroll
      for (int v = 0; v < Groups; v++) {
        const float2 w = decode_(words[v], v);
        p[v] = partial_of<L2>(query_[v], make_float2(__fadd_rn(c[v].x, w.x), __fadd_rn(c[v].y, w.y)));
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

  const written_plan& plan_;
  const decoder& codes_;
  int lane_;
  int of_row_;
  bool is_whole_;  // whether the last group has elements of the lane
  pair_decoder<Form, Groups> decode_;
  codes_of_row* here_;  // [kRows]
  float2 query_[Groups];
};

template <row_form Form, int Groups, bool L2>
__global__ void __launch_bounds__(kWideThreads, 1) wide_score_kernel(const __grid_constant__ written_plan plan) {
  join_chain();
  auto& shared = *reinterpret_cast<wide_shared<Form, Groups>*>(dynamic_shared());
  if constexpr (Form == row_form::pairs) {
    load_codewords<Groups>(plan.codes, shared);
    __syncthreads();
  }
  wide_scorer<Form, Groups, L2> scorer(plan, shared);
  const std::uint32_t parts = plan.parts;
  const std::uint32_t count = static_cast<std::uint32_t>(plan.batch.count) * parts;
  for (std::uint32_t item = threadIdx.x / kWarp * gridDim.x + blockIdx.x; item < count;
       item += gridDim.x * kWideWarps) {
    const std::uint32_t query = plan.batch.order[item / parts];
    const coded_rows of_query = coded_rows_of(plan, query);
    const std::uint32_t n = of_query.count;
    const std::uint32_t rows = ((n + parts - 1) / parts + kRows - 1) / kRows * kRows;
    scorer.run(query, of_query.rows, item % parts * rows, min(n, (item % parts + 1) * rows));
  }
}

// ---- any codes

constexpr int kThreads = 256;

/// The slot of a row that was chosen.
struct number_of_slot {
  __device__ __forceinline__ std::uint32_t operator()(std::uint64_t row) const { return static_cast<slot>(row); }
};

template <bool L2>
__global__ void __launch_bounds__(kThreads) score_kernel(const __grid_constant__ written_plan plan) {
  join_chain();
  auto* staged = reinterpret_cast<float*>(dynamic_shared());
  const std::uint32_t query = blockIdx.x;
  const auto [rows, n] = coded_rows_of(plan, query);
  if (n == 0) return;
  stage_query(plan.batch.queries + query * plan.batch.query_stride, plan.codes.dim, staged);
  __syncthreads();
  const int lane = threadIdx.x % kWarp;
  const code_scorer<row_form::any, L2> scorer(plan.codes, plan.answer.results.by, staged, lane);
  replace_keys(rows, threadIdx.x / kWarp * kScoredAtOnce, n, kThreads / kWarp * kScoredAtOnce, lane, number_of_slot{},
               scorer);
}

using kernel_pointer = void (*)(written_plan);

struct wide_kernel {
  kernel_pointer kernel;
  std::int64_t shared_bytes;
};

template <row_form Form, int Groups>
wide_kernel wide_kernel_of(bool l2) {
  return {l2 ? wide_score_kernel<Form, Groups, true> : wide_score_kernel<Form, Groups, false>,
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

/// Parts that queries are cut into, so that warps have as many rows to score.
std::uint32_t parts_of(const written_plan& plan, int multiprocessors) {
  constexpr std::int64_t kBorderShare = 8;  // of refined rows, fewer than one in so many is scored by its code, mostly
  const std::int64_t rows = plan.border_counts ? plan.answer.by_code / kBorderShare : plan.answer.by_code;
  const std::int64_t wanted = kPartsOfWarp * multiprocessors * kWideWarps;
  const std::int64_t parts = std::max(rows / kRowsOfPart, wanted / plan.batch.count);
  return static_cast<std::uint32_t>(std::clamp<std::int64_t>(parts, 1, rows / kLeastRowsOfPart + 1));
}

}  // namespace

void launch_score_rows(cudaStream_t stream, written_plan plan, int multiprocessors) {
  constexpr const char* kWhat = "launching the scores of chosen rows";
  const bool l2 = plan.answer.results.by == metric::l2;
  const row_form form = row_form_of(plan.codes);
  if (form != row_form::any && plan.codes.centroids) {
    plan.parts = parts_of(plan, multiprocessors);
    const wide_kernel wide = wide_kernel_of(form, plan.codes.dim, l2);
    return launch(wide.kernel,
                  {.grid = dim3(static_cast<unsigned>(multiprocessors)),
                   .threads = kWideThreads,
                   .shared_bytes = wide.shared_bytes,
                   .overlaps = true},
                  stream, plan, kWhat);
  }
  launch(l2 ? score_kernel<true> : score_kernel<false>,
         {.grid = dim3(static_cast<unsigned>(plan.batch.count)),
          .threads = kThreads,
          .shared_bytes = padded_dim(plan.codes.dim) * static_cast<std::int64_t>(sizeof(float)),
          .overlaps = true},
         stream, plan, kWhat);
}

}  // namespace shortlist::cuda
