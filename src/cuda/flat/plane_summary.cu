// Sums up what a plane knows of its rows: a thread takes a row at a time and reads two or four terms of it, 16 bytes of
// a row of hundreds. Whole numbers, so that the order of the sums does not matter.
#include <cub/block/block_reduce.cuh>

#include "cuda/flat/plane_summary.hpp"
#include "cuda/runtime/check.cuh"

namespace shortlist::cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kMaxBlocks = 1024;

struct sum_of_summaries {
  __device__ core::plane_summary operator()(core::plane_summary a, const core::plane_summary& b) const {
    a.add(b);
    return a;
  }
};

__device__ void add_to(std::int64_t& sum, std::int64_t more) {
  static_assert(sizeof(unsigned long long) == sizeof(std::int64_t));
  if (more != 0) atomicAdd(reinterpret_cast<unsigned long long*>(&sum), static_cast<unsigned long long>(more));
}

__global__ void plane_summary_kernel(const std::byte* plane, core::fragment_layout layout, std::int64_t first,
                                     std::int64_t end, core::plane_summary* summary) {
  core::plane_summary mine;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t row = first + blockIdx.x * kThreads + threadIdx.x; row < end; row += step) {
    const std::byte* block = plane + row / core::kPlaneRows * layout.block_bytes();
    const auto term = [&](std::int64_t terms_at, int which) {
      return reinterpret_cast<const float*>(block + terms_at)[which * core::kPlaneRows + row % core::kPlaneRows];
    };
    core::plane_summary of_row = core::summary_of(term(layout.codes_bytes(), 1), term(layout.codes_bytes(), 2));
    if (of_row.certifiable != 0 && layout.pairs != 0) {
      const std::int64_t coarse_terms = layout.whole_bytes() + layout.coarse_codes_bytes();
      of_row.coarse_looseness = core::looseness_of(term(coarse_terms, 1), term(coarse_terms, 2));
    }
    mine.add(of_row);
  }
  using block_sum = cub::BlockReduce<core::plane_summary, kThreads>;
  __shared__ typename block_sum::TempStorage storage;
  const core::plane_summary all = block_sum(storage).Reduce(mine, sum_of_summaries{});
  if (threadIdx.x != 0) return;
  add_to(summary->certifiable, all.certifiable);
  add_to(summary->uncertifiable, all.uncertifiable);
  add_to(summary->looseness, all.looseness);
  add_to(summary->coarse_looseness, all.coarse_looseness);
}

}  // namespace

void launch_plane_summary(cudaStream_t stream, const core::flat_corpus& corpus, std::int64_t first, std::int64_t count,
                          const std::byte* plane, core::plane_summary* summary) {
  const std::int64_t blocks = (count + kThreads - 1) / kThreads;
  plane_summary_kernel<<<static_cast<unsigned>(blocks < kMaxBlocks ? blocks : kMaxBlocks), kThreads, 0, stream>>>(
      plane, core::fragment_layout(corpus.dim, corpus.metric, corpus.storage), first, first + count, summary);
  check(cudaGetLastError(), "summing up a plane");
}

}  // namespace shortlist::cuda
