// Sums of k-means: each element becomes a whole number and goes to its sum by one atomic addition in L2.
//
// Limit: the additions. Neighbouring lanes add to neighbouring elements of a list's sum, four to a sector; those to
// codewords are scattered, but lie in less than a megabyte.
#include <algorithm>
#include <cmath>

#include "cuda/ivf_pq/means.hpp"
#include "cuda/runtime/launch.cuh"

namespace shortlist::cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kRowsPerBlock = 32;
constexpr std::int64_t kMaxBlocks = 65536;  // each strides over the rows beyond

/// docs/ivf_pq.md, section 2: the product in fp64 is exact, the rounding goes to even.
__device__ __forceinline__ void add_scaled(std::int64_t* sum, float element, double factor) {
  const long long whole = __double2ll_rn(static_cast<double>(element) * factor);
  atomicAdd(reinterpret_cast<unsigned long long*>(sum), static_cast<unsigned long long>(whole));
}

__device__ __forceinline__ void add_one(std::int64_t* count) {
  atomicAdd(reinterpret_cast<unsigned long long*>(count), 1ull);
}

struct means_args {
  const float* rows;
  const std::int64_t* group_of;
  std::int64_t* sums;
  std::int64_t* counts;
  std::int64_t n;
  double factor;
  std::uint32_t dim;
};

__global__ void __launch_bounds__(kThreads) add_to_means_kernel(const __grid_constant__ means_args args) {
  for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kRowsPerBlock; first < args.n;
       first += static_cast<std::int64_t>(gridDim.x) * kRowsPerBlock) {
    const auto elements = static_cast<std::uint32_t>(min(kRowsPerBlock, args.n - first)) * args.dim;
    for (std::uint32_t e = threadIdx.x; e < elements; e += kThreads) {
      const std::int64_t group = args.group_of[first + e / args.dim];
      const std::uint32_t i = e % args.dim;
      add_scaled(args.sums + group * args.dim + i, args.rows[first * args.dim + e], args.factor);
      if (i == 0) add_one(args.counts + group);
    }
  }
}

struct codewords_args {
  const float* residuals;
  const std::uint8_t* codes;
  std::int64_t* sums;
  std::int64_t* counts;
  std::int64_t n;
  double factor;
  std::uint32_t pieces;
  std::uint32_t piece_dim;
  std::uint32_t codewords;
};

/// A thread a piece of a row.
__global__ void __launch_bounds__(kThreads) add_to_codewords_kernel(const __grid_constant__ codewords_args args) {
  for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kRowsPerBlock; first < args.n;
       first += static_cast<std::int64_t>(gridDim.x) * kRowsPerBlock) {
    const auto all_pieces = static_cast<std::uint32_t>(min(kRowsPerBlock, args.n - first)) * args.pieces;
    for (std::uint32_t p = threadIdx.x; p < all_pieces; p += kThreads) {
      const std::int64_t at = first * args.pieces + p;
      const std::int64_t codeword = std::int64_t{p % args.pieces} * args.codewords + args.codes[at];
      const float* from = args.residuals + at * args.piece_dim;
      for (std::uint32_t i = 0; i < args.piece_dim; i++)
        add_scaled(args.sums + codeword * args.piece_dim + i, from[i], args.factor);
      add_one(args.counts + codeword);
    }
  }
}

launch_shape shape_for(std::int64_t rows) {
  return {.grid = dim3(static_cast<unsigned>(std::min((rows + kRowsPerBlock - 1) / kRowsPerBlock, kMaxBlocks))),
          .threads = kThreads};
}

}  // namespace

void launch_add_to_means(cudaStream_t stream, const float* rows, std::int64_t n, std::int64_t dim,
                         const std::int64_t* group_of, int scale, std::int64_t* sums, std::int64_t* counts) {
  if (n == 0) return;
  const means_args args{rows, group_of, sums, counts, n, std::ldexp(1.0, scale), static_cast<std::uint32_t>(dim)};
  launch(add_to_means_kernel, shape_for(n), stream, args, "launching the sums of lists");
}

void launch_add_to_codewords(cudaStream_t stream, const core::ivf_pq_shape& shape, const float* residuals,
                             std::int64_t n, const std::uint8_t* codes, int scale, std::int64_t* sums,
                             std::int64_t* counts) {
  if (n == 0) return;
  const codewords_args args{residuals,
                            codes,
                            sums,
                            counts,
                            n,
                            std::ldexp(1.0, scale),
                            static_cast<std::uint32_t>(shape.pieces),
                            static_cast<std::uint32_t>(shape.piece_dim),
                            static_cast<std::uint32_t>(shape.codewords())};
  launch(add_to_codewords_kernel, shape_for(n), stream, args, "launching the sums of codewords");
}

}  // namespace shortlist::cuda
