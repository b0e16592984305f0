// A few queries: every row of their lists decoded and scored, by all of the GPU.
//
// One launch. Where there are not too many lists, each block chooses those of its query from the scores of all
// centroids, since a launch of its own would take longer. A query's pages are cut into parts, a block each; a warp
// decodes eight rows at a time. A block hands in its best keys, as many as the answer needs by code and perhaps a few
// more, and raises the query's cut to the last of them: so many rows reach it. The block that finishes last gathers
// what reaches the cut, and answers. There is no margin: all scores are to the bit from the start. Any lengths of lists
// are served: keys that shared memory cannot hold are cut on the way.
// Limit: latency of some ten steps that follow each other; for more rows, decoding. History: docs/kernels.md.
#include <algorithm>

#include "cuda/device/chain.cuh"
#include "cuda/device/cluster.cuh"
#include "cuda/ivf_pq/code_table.hpp"
#include "cuda/ivf_pq/decode_eights.cuh"
#include "cuda/ivf_pq/few_search.cuh"
#include "cuda/ivf_pq/pick_lists.cuh"
#include "cuda/runtime/launch.cuh"

namespace shortlist::cuda {
namespace {

constexpr int kThreads = 512;
constexpr std::uint32_t kWarps = kThreads / kWarp;
constexpr int kFoursAtOnce = 2;  // of a row that is decoded, of a lane: more would not fit the registers
constexpr std::uint32_t kUnitRows = kWarp / kLanesOfScore * kScoredOfLanes;  // of a warp at once
constexpr std::uint32_t kUnitsOfPage = static_cast<std::uint32_t>(core::kPageRows) / kUnitRows;
constexpr std::uint32_t kRoom = 3 * kFewMaxRows;   // keys of a block
constexpr std::uint32_t kRoundUnits = 8 * kWarps;  // between two looks at how many there are
constexpr std::uint32_t kRoundRows = kRoundUnits * kUnitRows;
constexpr std::uint32_t kRoundKeys = 2 * kFewMaxRows;   // the same, of those handed in
constexpr std::uint32_t kGatheredKeys = 16 * kThreads;  // of those, in registers
constexpr std::int64_t kMaxProbes = kThreads;           // a thread each
static_assert(kThreads == kPickThreads);
static_assert(kRoundRows < kRoom - kFewMaxRows && kRoundKeys <= kRoom - kFewMaxRows);

struct few_keys {
  std::uint64_t keys[kRoom];
  std::uint64_t spare[kFewMaxRows];
};

struct few_shared {
  select_scratch<kThreads> select;
  std::uint32_t length;
  std::uint32_t handed_in;
  std::uint32_t chosen;
  bool is_last;
  std::uint32_t lists[kMaxProbes];
  std::uint32_t sizes[kMaxProbes];
  std::uint32_t tables[kMaxProbes];  // where a list's part of the table begins
  std::uint32_t ends[kMaxProbes];    // of each list's pages, counted through all lists
  union {
    pick_keys picked;  // before rows are scored
    few_keys scored;
  };
};
constexpr std::int64_t kStagedAt = (static_cast<std::int64_t>(sizeof(few_shared)) + 15) / 16 * 16;

/// Eight rows of a page.
struct scored_unit {
  std::uint32_t list;
  std::uint32_t rows;  // of the list, from the page's first on
  std::uint32_t page;
  std::uint32_t in_page;
};

template <row_form Form, bool L2>
class few_block {
 public:
  __device__ few_block(const few_search_plan& plan, few_shared& shared, float* staged)
      : plan_(plan),
        shared_(shared),
        staged_(staged),
        query_(blockIdx.y),
        part_(blockIdx.x),
        kept_(plan.answer.by_code),
        lane_(static_cast<int>(threadIdx.x % kWarp)),
        codes_(plan.codes, lane_) {}

  __device__ void run() {
    join_chain();
    stage_query(plan_.queries.of(query_), plan_.codes.dim, staged_);
    if (threadIdx.x == 0) shared_.length = shared_.handed_in = shared_.chosen = 0;
    find_lists();
    const metric by = plan_.answer.results.by;
    inverse_norm_ = by == metric::cosine ? inverse_norm_of_query(staged_, plan_.codes.dim, lane_) : 0.0f;
    scan();
    hand_in();
    __syncthreads();
    if (shared_.is_last) answer();
  }

 private:
  __device__ void find_lists() {
    const auto nprobe = static_cast<std::uint32_t>(plan_.nprobe);
    if (plan_.centroid_keys != nullptr) {
      const centroid_keys all{plan_.centroid_keys + query_ * centroid_keys::stride(plan_.nlist), plan_.nlist};
      pick_lists(all, nprobe, shared_.picked, shared_.select,
                 [&](std::uint32_t rank, std::uint64_t key) { look_up_list(rank, core::position_of(key)); });
    } else if (threadIdx.x < nprobe) {
      look_up_list(threadIdx.x, static_cast<std::uint32_t>(plan_.probes[query_ * plan_.nprobe + threadIdx.x]));
    }
    __syncthreads();
    if (threadIdx.x < kWarp) add_up_pages(nprobe);
    __syncthreads();
  }

  __device__ void look_up_list(std::uint32_t rank, std::uint32_t list) {
    shared_.lists[rank] = list;
    shared_.sizes[rank] = plan_.sizes[list];
    shared_.tables[rank] = plan_.first[list];
  }

  __device__ void add_up_pages(std::uint32_t nprobe) {
    std::uint32_t before = 0;
    unsigned long long rows = 0;
    for (std::uint32_t base = 0; base < nprobe; base += kWarp) {
      const std::uint32_t rank = base + lane_;
      const std::uint32_t size = rank < nprobe ? shared_.sizes[rank] : 0;
      std::uint32_t end = (size + core::kPageRows - 1) / core::kPageRows;
      rows += __reduce_add_sync(kFullWarp, size);
      for (int offset = 1; offset < kWarp; offset *= 2) {
        const std::uint32_t other = __shfl_up_sync(kFullWarp, end, offset);
        if (lane_ >= offset) end += other;
      }
      if (rank < nprobe) shared_.ends[rank] = before + end;
      before += __shfl_sync(kFullWarp, end, kWarp - 1);
    }
    if (lane_ != 0 || part_ != 0 || plan_.decoded == nullptr) return;
    atomicAdd(plan_.decoded, rows);
    atomicAdd(plan_.decoded + 1, 1ull);
  }

  __device__ std::uint32_t rank_of_page(std::uint32_t page) const {
    std::uint32_t low = 0;
    std::uint32_t high = static_cast<std::uint32_t>(plan_.nprobe) - 1;
    while (low < high) {
      const std::uint32_t middle = (low + high) / 2;
      if (shared_.ends[middle] > page)
        high = middle;
      else
        low = middle + 1;
    }
    return low;
  }

  __device__ void scan() {
    const std::uint64_t units = std::uint64_t{shared_.ends[plan_.nprobe - 1]} * kUnitsOfPage;
    const auto first = static_cast<std::uint32_t>(units * part_ / plan_.parts);
    const auto end = static_cast<std::uint32_t>(units * (part_ + 1) / plan_.parts);
    for (std::uint32_t round = first; round < end; round += kRoundUnits) {
      if (round != first) {
        __syncthreads();
        if (shared_.length > kFewMaxRows) keep_best();  // the sooner, the fewer follow
        __syncthreads();
      }
      const std::uint32_t last = min(end, round + kRoundUnits);
      std::uint32_t unit = round + threadIdx.x / kWarp;
      scored_unit next = unit < last ? unit_of(unit) : scored_unit{};
      for (; unit < last; unit += kWarps) {
        const scored_unit now = next;
        if (unit + kWarps < last) next = unit_of(unit + kWarps);
        score(now);
      }
    }
    __syncthreads();
  }

  __device__ __forceinline__ scored_unit unit_of(std::uint32_t number) const {
    const std::uint32_t page = number / kUnitsOfPage;
    const std::uint32_t rank = rank_of_page(page);
    const std::uint32_t page_of_list = rank == 0 ? page : page - shared_.ends[rank - 1];
    return {shared_.lists[rank], shared_.sizes[rank] - page_of_list * static_cast<std::uint32_t>(core::kPageRows),
            plan_.table[shared_.tables[rank] + page_of_list], number % kUnitsOfPage * kUnitRows};
  }

  __device__ __forceinline__ void score(const scored_unit& unit) {
    const std::uint32_t in_page = unit.in_page + lane_ / kLanesOfScore * kScoredOfLanes;
    const slot row = unit.page * static_cast<slot>(core::kPageRows) + in_page;
    const int mine = finished_row<kLanesOfScore, kScoredOfLanes>(lane_);
    const bool enters = leads_finished_row<kLanesOfScore, kScoredOfLanes>(lane_) && in_page + mine < unit.rows;
    const std::uint32_t position = enters ? plan_.codes.position_of(row + mine) : 0;
    const float sum = codes_.template sum<L2, kFoursAtOnce>({row, row + 1}, {unit.list, unit.list}, staged_, lane_);
    const metric by = plan_.answer.results.by;
    const std::uint64_t key = core::row_key(core::score_key(code_score(sum, by, inverse_norm_), by), position);
    if (enters && key >= least_) shared_.scored.keys[atomicAdd(&shared_.length, 1u)] = key;
  }

  /// Cuts the block's keys to the best, if there are more than are needed. Between barriers.
  __device__ void keep_best() {
    const std::uint32_t n = shared_.length;
    if (n <= kept_) return;
    least_ = block_cut<kThreads>(shared_.scored.keys, n, kept_, 0, shared_.select);
    __syncthreads();
    if (threadIdx.x == 0) shared_.length = 0;
    __syncthreads();
    for (std::uint32_t i = threadIdx.x; i < n; i += kThreads)
      if (shared_.scored.keys[i] >= least_)
        shared_.scored.spare[atomicAdd(&shared_.length, 1u)] = shared_.scored.keys[i];
    __syncthreads();
    for (std::uint32_t i = threadIdx.x; i < kept_; i += kThreads) shared_.scored.keys[i] = shared_.scored.spare[i];
    __syncthreads();
  }

  __device__ void hand_in() {
    const std::uint32_t n = shared_.length;
    std::uint32_t reached = n;
    if (n > kept_) {
      least_ = block_cut_by_bins<kThreads>(shared_.scored.keys, n, kept_, shared_.select, reached);
      if (reached > part_keys()) {
        __syncthreads();
        least_ = block_cut<kThreads>(shared_.scored.keys, n, kept_, 0, shared_.select);
        reached = kept_;
      }
    }
    std::uint64_t* to = plan_.keys + (static_cast<std::int64_t>(query_) * plan_.parts + part_) * part_keys();
    for (std::uint32_t i = threadIdx.x; i < n; i += kThreads)
      if (shared_.scored.keys[i] >= least_) to[atomicAdd(&shared_.handed_in, 1u)] = shared_.scored.keys[i];
    for (std::uint32_t i = reached + threadIdx.x; i < part_keys(); i += kThreads) to[i] = core::kNoRow;
    if (threadIdx.x == 0 && least_ > 1) atomicMax(&plan_.control[query_].cut, static_cast<unsigned long long>(least_));
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
      shared_.is_last = atomicAdd(&plan_.control[query_].done, 1u) + 1 == static_cast<std::uint32_t>(plan_.parts);
  }

  /// Room for what a part hands in.
  __device__ __forceinline__ std::uint32_t part_keys() const { return kept_ + kFewMoreRows; }

  /// Enters all keys that reach the cut; their loads are under way at once. @returns false, and enters none, if there
  /// is no room for so many.
  __device__ bool enter_at_once(const std::uint64_t* keys, std::uint32_t all) {
    std::uint64_t mine[kGatheredKeys / kThreads];
    std::uint32_t count = 0;
#pragma unroll
    for (std::uint32_t i = 0; i < kGatheredKeys / kThreads; i++) {
      const std::uint32_t at = i * kThreads + threadIdx.x;
      mine[i] = at < all ? __ldcg(keys + at) : core::kNoRow;
    }
#pragma unroll
    for (std::uint32_t i = 0; i < kGatheredKeys / kThreads; i++) count += mine[i] >= least_;
    int phase = 0;
    if (block_sum<kThreads>(count, shared_.select, phase) > kRoom) return false;
    if (count > 0) {
      std::uint32_t place = atomicAdd(&shared_.length, count);
#pragma unroll
      for (std::uint32_t i = 0; i < kGatheredKeys / kThreads; i++)
        if (mine[i] >= least_) shared_.scored.keys[place++] = mine[i];
    }
    __syncthreads();
    return true;
  }

  /// The same for any number, cut to the best on the way.
  __device__ void enter_by_rounds(const std::uint64_t* keys, std::uint32_t all) {
    for (std::uint32_t round = 0; round < all; round += kRoundKeys) {
      std::uint64_t mine[kRoundKeys / kThreads];
#pragma unroll
      for (std::uint32_t i = 0; i < kRoundKeys / kThreads; i++) {
        const std::uint32_t at = round + i * kThreads + threadIdx.x;
        mine[i] = at < all ? __ldcg(keys + at) : core::kNoRow;
      }
#pragma unroll
      for (std::uint32_t i = 0; i < kRoundKeys / kThreads; i++)
        if (mine[i] >= least_) shared_.scored.keys[atomicAdd(&shared_.length, 1u)] = mine[i];
      __syncthreads();
      if (shared_.length > kRoom - kRoundKeys) keep_best();
      __syncthreads();
    }
  }

  /// Leaves the best of n keys, in no order: most by bins, the others by counting. Between barriers.
  __device__ void choose_best(std::uint32_t n) {
    few_keys& room = shared_.scored;
    std::uint32_t reached = 0;
    const std::uint64_t cut = block_cut_by_bins<kThreads>(room.keys, n, kept_, shared_.select, reached);
    if (reached > kThreads) {
      __syncthreads();
      return keep_best();
    }
    for (std::uint32_t i = threadIdx.x; i < n; i += kThreads)
      if (room.keys[i] >= cut) room.spare[atomicAdd(&shared_.chosen, 1u)] = room.keys[i];
    __syncthreads();
    rank_by_counting<kThreads>(room.spare, reached, [&](std::uint32_t rank, std::uint64_t key) {
      if (rank < kept_) room.keys[rank] = key;
    });
    __syncthreads();
  }

  /// The block that is last has everybody's keys.
  __device__ void answer() {
    __threadfence();
    least_ = max(__ldcg(&plan_.control[query_].cut), 1ull);
    if (threadIdx.x == 0) shared_.length = 0;
    __syncthreads();
    const std::uint32_t all = static_cast<std::uint32_t>(plan_.parts) * part_keys();
    const std::uint64_t* keys = plan_.keys + query_ * plan_.parts * part_keys();
    if (all > kGatheredKeys || !enter_at_once(keys, all)) enter_by_rounds(keys, all);
    std::uint32_t n = shared_.length;
    if (n > kept_) choose_best(n);
    n = min(n, kept_);
    if (threadIdx.x == 0) plan_.control[query_] = {};
    answer_plan by_rows = plan_.answer;
    if (by_rows.queries == nullptr) by_rows.queries = plan_.queries.of(0);
    write_answer<kThreads>(by_rows, query_, shared_.scored.keys, n, shared_.scored.spare, staged_, shared_.select);
    if (plan_.done.word == nullptr) return;
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x == 0) *reinterpret_cast<volatile std::uint32_t*>(plan_.done.word) = plan_.done.value;
  }

  const few_search_plan& plan_;
  few_shared& shared_;
  float* staged_;
  std::int64_t query_;
  std::uint32_t part_;
  std::uint32_t kept_;
  int lane_;
  decoder_by_form<Form> codes_;
  float inverse_norm_ = 0.0f;
  std::uint64_t least_ = 1;
};

template <row_form Form, bool L2>
__global__ void __launch_bounds__(kThreads, 1) few_search_kernel(const __grid_constant__ few_search_plan plan) {
  auto& shared = *reinterpret_cast<few_shared*>(dynamic_shared());
  few_block<Form, L2>(plan, shared, reinterpret_cast<float*>(dynamic_shared() + kStagedAt)).run();
}

using kernel_pointer = void (*)(few_search_plan);

template <row_form Form>
kernel_pointer kernel_of(bool l2) {
  return l2 ? few_search_kernel<Form, true> : few_search_kernel<Form, false>;
}

kernel_pointer kernel_of(row_form form, bool l2) {
  switch (form) {
    case row_form::numbers8: return kernel_of<row_form::numbers8>(l2);
    case row_form::numbers4: return kernel_of<row_form::numbers4>(l2);
    case row_form::pairs: return kernel_of<row_form::pairs>(l2);
    case row_form::wide_numbers: return kernel_of<row_form::wide_numbers>(l2);
    case row_form::wide_pieces: return kernel_of<row_form::wide_pieces>(l2);
    default: return kernel_of<row_form::any>(l2);
  }
}

}  // namespace

std::int32_t few_search_parts(std::int64_t queries, int multiprocessors) {
  return static_cast<std::int32_t>(std::max<std::int64_t>(1, multiprocessors / queries));
}

bool has_few_search(std::int64_t dim, std::int64_t queries, std::int64_t by_code, std::int64_t nprobe) {
  return dim <= kMaxWideHalves && queries <= kFewQueries && by_code <= kFewMaxRows && nprobe <= kMaxProbes;
}

void launch_few_search(cudaStream_t stream, const few_search_plan& plan) {
  const std::int64_t padded = (plan.codes.dim + core::kPartialSums - 1) / core::kPartialSums * core::kPartialSums;
  const launch_shape shape{.grid = dim3(static_cast<unsigned>(plan.parts), static_cast<unsigned>(plan.query_count)),
                           .threads = kThreads,
                           .shared_bytes = kStagedAt + padded * static_cast<std::int64_t>(sizeof(float)),
                           .overlaps = true};
  launch(kernel_of(row_form_of(plan.codes), plan.answer.results.by == metric::l2), shape, stream, plan,
         "launching the search of a few queries");
}

}  // namespace shortlist::cuda
