// The nearest codeword of each piece, by the distance of docs/ivf_pq.md, section 1.4.
//
// Pieces of up to 12 elements: a thread holds the same piece of several rows; the piece's codewords come from shared
// memory, all lanes reading the same. Only the smallest distance of each group of codewords is looked at; which
// codeword it was is found at the end, in one group. Four codes leave as one word. Longer pieces: a thread a piece,
// eight codewords at a time. Equal steps: a division gives the codeword to within one; its neighbours decide. Limit: 2
// x piece_dim + 1 instructions for each codeword of each piece (piece_dim 1: 3); of equal steps, the bytes.
#include <algorithm>

#include "cuda/device/score.cuh"
#include "cuda/ivf_pq/encode.hpp"
#include "cuda/runtime/launch.cuh"

namespace shortlist::cuda {
namespace {

constexpr float kInfinity = __builtin_huge_valf();
constexpr int kPiecesPerWord = 4;             // whose codes are stored at once
constexpr std::int64_t kBlocksWanted = 1024;  // of threads with enough to do, to fill any GPU

/// One more element of a distance.
__device__ __forceinline__ float add_element(float residual, float codeword, float distance) {
  const float t = __fsub_rn(residual, codeword);
  return __fmaf_rn(t, t, distance);
}

struct encode_args {
  const float* codebook;   // [pieces, codewords, piece_dim]
  const float* residuals;  // [n, pieces * piece_dim]
  std::uint8_t* codes;     // [n, pieces]
  std::int64_t n;
  std::int32_t pieces;
  std::int32_t piece_dim;
  std::int32_t codewords;         // a multiple of 16
  std::int32_t pieces_per_block;  // a multiple of kPiecesPerWord
};

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;
constexpr int kGroup = 8;   // codewords of which only the nearest distance is looked at
constexpr int kLoaded = 4;  // codewords in registers

/// Rows of a thread: enough for a load of codewords to serve several, few enough for their pieces to stay in registers.
template <int PieceDim>
inline constexpr int kRowsOfThread = PieceDim <= 4 ? 4 : 2;
template <int PieceDim>
inline constexpr int kRowsOfBlock = kThreads* kRowsOfThread<PieceDim>;

template <int PieceDim>
__device__ __forceinline__ float distance_to(const float (&residual)[PieceDim], const float* codeword) {
  float distance = 0.0f;
#pragma unroll
  for (int i = 0; i < PieceDim; i++) distance = add_element(residual[i], codeword[i], distance);
  return distance;
}

/// The code of one piece of several rows. `codewords` lie in shared memory.
template <int PieceDim, int Rows>
__device__ __forceinline__ void nearest_codewords(const float (&residuals)[Rows][PieceDim], const float* codewords,
                                                  int count, std::uint32_t (&codes)[Rows]) {
  float best[Rows];
  int best_group[Rows];
#pragma unroll
  for (int r = 0; r < Rows; r++) {
    best[r] = kInfinity;
    best_group[r] = 0;
  }
  for (int group = 0; group < count; group += kGroup) {
    float smallest[Rows];
#pragma unroll
    for (int half = 0; half < kGroup; half += kLoaded) {
      float loaded[kLoaded * PieceDim];
#pragma unroll
      for (int v = 0; v < PieceDim; v++) {
        const float4 four = reinterpret_cast<const float4*>(codewords + (group + half) * PieceDim)[v];
        loaded[4 * v] = four.x;
        loaded[4 * v + 1] = four.y;
        loaded[4 * v + 2] = four.z;
        loaded[4 * v + 3] = four.w;
      }
#pragma unroll
      for (int r = 0; r < Rows; r++)
#pragma unroll
        for (int w = 0; w < kLoaded; w++) {
          const float distance = distance_to<PieceDim>(residuals[r], loaded + w * PieceDim);
          smallest[r] = half == 0 && w == 0 ? distance : fminf(smallest[r], distance);
        }
    }
#pragma unroll
    for (int r = 0; r < Rows; r++) {
      if (smallest[r] < best[r]) {
        best[r] = smallest[r];
        best_group[r] = group;
      }
    }
  }
#pragma unroll
  for (int r = 0; r < Rows; r++) {
    const float* in_group = codewords + best_group[r] * PieceDim;
    int first = 0;  // of equals: found last
#pragma unroll
    for (int w = kGroup - 1; w >= 0; w--)
      if (distance_to<PieceDim>(residuals[r], in_group + w * PieceDim) == best[r]) first = w;
    codes[r] = static_cast<std::uint32_t>(best_group[r] + first);
  }
}

template <int PieceDim>
__global__ void __launch_bounds__(kThreads) encode_kernel(const __grid_constant__ encode_args args) {
  constexpr int kRows = kRowsOfThread<PieceDim>;
  __shared__ __align__(16) float codewords[core::kMaxCodewords * PieceDim];
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.x) * kRowsOfBlock<PieceDim> + threadIdx.x;
  const std::int64_t row_elements = static_cast<std::int64_t>(args.pieces) * PieceDim;
  const int first_piece = static_cast<int>(blockIdx.y) * args.pieces_per_block;
  const int end_piece = min(first_piece + args.pieces_per_block, args.pieces);
  const bool whole_words = args.pieces % kPiecesPerWord == 0;
  std::uint32_t packed[kRows] = {};
  for (int piece = first_piece; piece < end_piece; piece++) {
    __syncthreads();  // the piece before is done with
    const auto* from = reinterpret_cast<const float4*>(args.codebook) +
                       static_cast<std::int64_t>(piece) * (args.codewords / 4 * PieceDim);
    for (int v = threadIdx.x; v < args.codewords / 4 * PieceDim; v += kThreads)
      reinterpret_cast<float4*>(codewords)[v] = __ldg(from + v);
    float residuals[kRows][PieceDim];
#pragma unroll
    for (int r = 0; r < kRows; r++) {
      const std::int64_t row = min(first_row + r * kThreads, args.n - 1);
#pragma unroll
      for (int i = 0; i < PieceDim; i++)
        residuals[r][i] = __ldg(args.residuals + row * row_elements + piece * PieceDim + i);
    }
    __syncthreads();
    std::uint32_t codes[kRows];
    nearest_codewords<PieceDim, kRows>(residuals, codewords, args.codewords, codes);
    const int in_word = piece % kPiecesPerWord;
#pragma unroll
    for (int r = 0; r < kRows; r++) {
      const std::int64_t row = first_row + r * kThreads;
      if (row >= args.n) continue;
      std::uint8_t* to = args.codes + row * args.pieces + piece;
      if (!whole_words) {
        *to = static_cast<std::uint8_t>(codes[r]);
        continue;
      }
      packed[r] = (in_word == 0 ? 0u : packed[r]) | codes[r] << (8 * in_word);
      if (in_word == kPiecesPerWord - 1) *reinterpret_cast<std::uint32_t*>(to - in_word) = packed[r];
    }
  }
}

/// Pieces of any length.
__global__ void __launch_bounds__(kThreads) encode_long_kernel(const __grid_constant__ encode_args args) {
  const std::int64_t all = args.n * args.pieces;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; at < all; at += step) {
    const float* residual = args.residuals + at * args.piece_dim;
    const float* codewords =
        args.codebook + at % args.pieces * (static_cast<std::int64_t>(args.codewords) * args.piece_dim);
    float best = kInfinity;
    int code = 0;
    for (int group = 0; group < args.codewords; group += kGroup) {
      float distances[kGroup] = {};
      for (int i = 0; i < args.piece_dim; i++) {
        const float element = __ldg(residual + i);
#pragma unroll
        for (int w = 0; w < kGroup; w++)
          distances[w] = add_element(
              element, __ldg(codewords + static_cast<std::int64_t>(group + w) * args.piece_dim + i), distances[w]);
      }
#pragma unroll
      for (int w = 0; w < kGroup; w++) {
        if (distances[w] < best) {
          best = distances[w];
          code = group + w;
        }
      }
    }
    args.codes[at] = static_cast<std::uint8_t>(code);
  }
}

constexpr float kLeastFastStep = 0x1p-100f;  // steps within these bounds, and their multiples, are no denormals and
constexpr float kMostFastStep = 0x1p100f;    // do not overflow: then a division errs by far less than half a step

/// Codewords of one element: `middle` is the number between the two nearest to 0.
struct steps_of_element {
  const float* codewords;  // [count]
  float step;
  float inverse;
  float middle;
  int count;
  bool is_fast;

  __device__ __forceinline__ steps_of_element(const float* words, int words_count)
      : codewords(words), middle(0.5f * static_cast<float>(words_count - 1)), count(words_count) {
    const float half_step = words[words_count / 2];
    step = 2.0f * half_step;
    is_fast = step >= kLeastFastStep && step <= kMostFastStep;
    inverse = is_fast ? __frcp_rn(step) : 0.0f;
  }

  __device__ __forceinline__ float distance(float residual, int code) const {
    const float codeword = __fmul_rn(__fsub_rn(static_cast<float>(code), middle), step);  // as it was defined
    return add_element(residual, codeword, 0.0f);
  }

  /// Distances fall towards the nearest codeword and rise behind it, weakly: rounding keeps their order. The nearest is
  /// within one of the quotient; smaller codes of the same distance stand right before it.
  __device__ __forceinline__ int nearest(float residual) const {
    const float quotient = __fmaf_rn(residual, inverse, middle);
    const int guess = __float2int_rn(fminf(fmaxf(quotient, 0.0f), static_cast<float>(count - 1)));
    int code = max(guess - 1, 0);
    float best = distance(residual, code);
#pragma unroll
    for (int beside = 0; beside <= 1; beside++) {
      const int other = min(guess + beside, count - 1);
      const float there = distance(residual, other);
      if (there < best) {
        best = there;
        code = other;
      }
    }
    while (code > 0 && distance(residual, code - 1) <= best) code--;
    return code;
  }

  /// Of any steps, zero too.
  __device__ int nearest_of_all(float residual) const {
    if (codewords[0] == codewords[count - 1]) return 0;
    float best = kInfinity;
    int code = 0;
    for (int w = 0; w < count; w++) {
      const float there = add_element(residual, __ldg(codewords + w), 0.0f);
      if (there < best) {
        best = there;
        code = w;
      }
    }
    return code;
  }
};

/// A thread has one element of many rows, so that its step stays in registers.
__global__ void __launch_bounds__(kThreads) encode_steps_kernel(const __grid_constant__ encode_args args) {
  const int element = static_cast<int>(blockIdx.y * kWarp + threadIdx.x % kWarp);
  if (element >= args.pieces) return;
  const steps_of_element steps(args.codebook + static_cast<std::int64_t>(element) * args.codewords, args.codewords);
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kWarps;
#pragma unroll 4
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp; row < args.n;
       row += step) {
    const std::int64_t at = row * args.pieces + element;
    const float residual = __ldg(args.residuals + at);
    args.codes[at] =
        static_cast<std::uint8_t>(steps.is_fast ? steps.nearest(residual) : steps.nearest_of_all(residual));
  }
}

template <int PieceDim>
void launch_short(cudaStream_t stream, encode_args args) {
  const std::int64_t row_blocks = (args.n + kRowsOfBlock<PieceDim> - 1) / kRowsOfBlock<PieceDim>;
  const std::int64_t words = (args.pieces + kPiecesPerWord - 1) / kPiecesPerWord;
  const std::int64_t splits = std::clamp<std::int64_t>(kBlocksWanted / row_blocks, 1, words);
  const std::int64_t words_per_block = (words + splits - 1) / splits;
  args.pieces_per_block = static_cast<std::int32_t>(words_per_block * kPiecesPerWord);
  const launch_shape shape{.grid = dim3(static_cast<unsigned>(row_blocks),
                                        static_cast<unsigned>((words + words_per_block - 1) / words_per_block)),
                           .threads = kThreads};
  launch(encode_kernel<PieceDim>, shape, stream, args, "launching the codes of pieces");
}

void launch_steps(cudaStream_t stream, const encode_args& args) {
  constexpr std::int64_t kRowsOfThreadWanted = 32;  // for the step to be worth its division
  const std::int64_t blocks = (args.n + kWarps * kRowsOfThreadWanted - 1) / (kWarps * kRowsOfThreadWanted);
  const launch_shape shape{
      .grid = dim3(static_cast<unsigned>(blocks), static_cast<unsigned>((args.pieces + kWarp - 1) / kWarp)),
      .threads = kThreads};
  launch(encode_steps_kernel, shape, stream, args, "launching the codes of elements");
}

void launch_long(cudaStream_t stream, const encode_args& args) {
  constexpr std::int64_t kMaxBlocks = 65536;  // each strides over the pieces beyond
  const std::int64_t blocks = std::min((args.n * args.pieces + kThreads - 1) / kThreads, kMaxBlocks);
  launch(encode_long_kernel, {.grid = dim3(static_cast<unsigned>(blocks)), .threads = kThreads}, stream, args,
         "launching the codes of long pieces");
}

}  // namespace

void launch_encode(cudaStream_t stream, const core::ivf_pq_shape& shape, const float* codebook, const float* residuals,
                   std::int64_t n, std::uint8_t* codes) {
  if (n == 0) return;
  encode_args args{};
  args.codebook = codebook;
  args.residuals = residuals;
  args.codes = codes;
  args.n = n;
  args.pieces = static_cast<std::int32_t>(shape.pieces);
  args.piece_dim = static_cast<std::int32_t>(shape.piece_dim);
  args.codewords = static_cast<std::int32_t>(shape.codewords());
  if (shape.uniform) return launch_steps(stream, args);
  switch (shape.piece_dim) {
    case 1: return launch_short<1>(stream, args);
    case 2: return launch_short<2>(stream, args);
    case 3: return launch_short<3>(stream, args);
    case 4: return launch_short<4>(stream, args);
    case 6: return launch_short<6>(stream, args);
    case 8: return launch_short<8>(stream, args);
    case 12: return launch_short<12>(stream, args);
    default: launch_long(stream, args);
  }
}

}  // namespace shortlist::cuda
