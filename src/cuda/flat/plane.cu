// Writes the int8 plane of rows in the order of matrix units, a warp a row; each row is read once, at add time.
//
// Steps of a warp: read its row, its largest magnitude and the sum of its squares on the way -> codes -> sums over the
// residuals and the codes -> terms; the same once more for a coarse copy, four lanes of which exchange bits. The row
// waits in shared memory between the first two, since it may lie in host memory; rows too long for that are read twice.
#include <algorithm>

#include "core/certified.hpp"
#include "cuda/device/element.cuh"
#include "cuda/device/plane_codes.cuh"
#include "cuda/device/score.cuh"
#include "cuda/flat/plane.hpp"
#include "cuda/runtime/launch.cuh"

namespace shortlist::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;
constexpr std::int64_t kKeptDim = 6144;     // rows up to here wait in shared memory: two blocks a multiprocessor
constexpr std::int64_t kMaxBlocks = 65536;  // each strides over the rows beyond

struct plane_args {
  const unsigned char* rows;
  const float* inverse_norms;  // null unless the metric is cosine
  unsigned char* plane;
  std::int64_t stride_bytes;
  std::int64_t block_bytes;
  std::int64_t codes_bytes;
  std::int64_t whole_bytes;
  std::int64_t coarse_codes_bytes;
  std::int64_t first;
  std::int64_t end;         // of the rows that are there
  std::int64_t padded_end;  // of the rows that are written
  std::int32_t quads;       // of elements in a row
  std::int32_t padded_quads;
  std::int32_t coarse_quads;  // padded, too; 0: there is no coarse copy
  bool is_kept;               // between its two passes a row waits in shared memory
  metric by;
};

__device__ __forceinline__ double sum_of_warp(double value) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(kFullWarp, value, offset);
  return value;
}

__device__ __forceinline__ void add_square(double& sum, double value) { sum += value * value; }

/// @param terms_at where in a block they lie
__device__ __forceinline__ void write_terms(const plane_args& args, std::int64_t row, std::int64_t terms_at,
                                            const core::plane_row& terms, float inverse_norm) {
  auto* to = reinterpret_cast<float*>(args.plane + row / core::kPlaneRows * args.block_bytes + terms_at) +
             row % core::kPlaneRows;
  to[0] = terms.scale;
  to[core::kPlaneRows] = terms.residual;
  to[2 * core::kPlaneRows] = terms.norm;
  if (args.by == metric::l2) to[3 * core::kPlaneRows] = terms.square;
  if (args.by == metric::cosine) to[3 * core::kPlaneRows] = inverse_norm;
}

/// The whole copy's codes `4 i` .. + 3 of a row.
__device__ __forceinline__ void write_codes(const plane_args& args, std::int64_t row, int i, std::uint32_t packed) {
  unsigned char* codes = args.plane + row / core::kPlaneRows * args.block_bytes;
  const std::int64_t at = core::fragment_layout::code_at(row % core::kPlaneRows, 4 * static_cast<std::int64_t>(i));
  *reinterpret_cast<std::uint32_t*>(codes + at) = packed;
}

/// The same of the coarse copy. All lanes of the warp together, whose quads are neighbours: word 3 of a pair, 12 lanes
/// after word 0, goes into the others.
__device__ __forceinline__ void write_coarse_codes(const plane_args& args, std::int64_t row, int i,
                                                   std::uint32_t packed, int lane) {
  const int word = i / 4 % 4;
  const std::uint32_t last = __shfl_sync(kFullWarp, packed, lane | 12);
  if (i >= args.coarse_quads || word == 3) return;
  unsigned char* codes = args.plane + row / core::kPlaneRows * args.block_bytes + args.whole_bytes;
  const std::int64_t at = core::fragment_layout::coarse_at(row % core::kPlaneRows, 4 * static_cast<std::int64_t>(i));
  *reinterpret_cast<std::uint32_t*>(codes + at) = packed | (last >> (6 - 2 * word) & ~kUpperBits);
}

/// Four codes of at most `max_code`, times `Step`, as bytes; what they leave of the elements is added up.
template <int Step>
__device__ __forceinline__ std::uint32_t encode(const float4& x, float scale, int max_code, double& residual_squares,
                                                std::int32_t& code_squares) {
  const float elements[4] = {x.x, x.y, x.z, x.w};
  const float inverse = core::inverse_scale(Step * scale);
  std::uint32_t packed = 0;
#pragma unroll
  for (int c = 0; c < 4; c++) {
    const float code = scale == 0.0f ? 0.0f : Step * core::code_of(elements[c], inverse, max_code);
    const int whole = static_cast<int>(code);
    add_square(residual_squares, elements[c] - static_cast<double>(scale) * code);
    code_squares += whole * whole;
    packed |= (static_cast<std::uint32_t>(whole) & 0xFFu) << (8 * c);
  }
  return packed;
}

/// One row, by one warp. `kept` has room for the row if it is to wait.
template <element_type E>
__device__ void write_row(const plane_args& args, std::int64_t row, float4* kept, int lane) {
  using raw = typename quad<E>::raw;
  const auto* from = reinterpret_cast<const raw*>(args.rows + row * args.stride_bytes);
  float largest = 0.0f;
  double squares = 0.0;
#pragma unroll 4
  for (int i = lane; i < args.quads; i += kWarp) {
    const float4 x = quad<E>::widen(load_streaming(from + i));
    if (args.is_kept) kept[i] = x;
    largest = fmaxf(largest, fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)), fmaxf(fabsf(x.z), fabsf(x.w))));
    add_square(squares, x.x);
    add_square(squares, x.y);
    add_square(squares, x.z);
    add_square(squares, x.w);
  }
  largest = __uint_as_float(__reduce_max_sync(kFullWarp, __float_as_uint(largest)));  // magnitudes order as their bits
  squares = sum_of_warp(squares);

  const bool is_certifiable = core::is_certifiable(squares, 1.0f);
  const float inverse_norm = args.inverse_norms ? args.inverse_norms[row] : 0.0f;
  const auto quad_at = [&](int i) { return args.is_kept ? kept[i] : quad<E>::widen(load_streaming(from + i)); };
  const auto terms_of = [&](float scale, double residual_squares, std::int32_t code_squares) {
    return core::row_terms(scale, squares, sum_of_warp(residual_squares), __reduce_add_sync(kFullWarp, code_squares));
  };

  const float scale = is_certifiable ? core::code_scale(largest, core::kMaxRowCode) : 0.0f;
  double residual_squares = 0.0;
  std::int32_t code_squares = 0;  // 127^2 times the largest dim fits
#pragma unroll 4
  for (int i = lane; i < args.padded_quads; i += kWarp) {
    std::uint32_t packed = 0;
    if (i < args.quads) packed = encode<1>(quad_at(i), scale, core::kMaxRowCode, residual_squares, code_squares);
    write_codes(args, row, i, packed);
  }
  const core::plane_row terms = terms_of(scale, residual_squares, code_squares);
  if (lane == 0) write_terms(args, row, args.codes_bytes, terms, inverse_norm);
  if (args.coarse_quads == 0) return;

  const float coarse_scale =
      is_certifiable ? core::code_scale(largest, core::kMaxCoarseCode) / core::kCoarseStep : 0.0f;
  residual_squares = 0.0;
  code_squares = 0;
  for (int first = 0; first < args.coarse_quads; first += kWarp) {
    const int i = first + lane;
    std::uint32_t packed = 0;
    if (i < args.quads)
      packed =
          encode<core::kCoarseStep>(quad_at(i), coarse_scale, core::kMaxCoarseCode, residual_squares, code_squares);
    write_coarse_codes(args, row, i, packed, lane);
  }
  const core::plane_row coarse_terms = terms_of(coarse_scale, residual_squares, code_squares);
  if (lane == 0) write_terms(args, row, args.whole_bytes + args.coarse_codes_bytes, coarse_terms, inverse_norm);
}

/// A row past the count: nothing is known of it.
__device__ void write_padding(const plane_args& args, std::int64_t row, int lane) {
  const core::plane_row unknown{.residual = core::float_from_bits(0x7F800000u)};
  for (int i = lane; i < args.padded_quads; i += kWarp) write_codes(args, row, i, 0);
  if (lane == 0) write_terms(args, row, args.codes_bytes, unknown, 0.0f);
  if (args.coarse_quads == 0) return;
  for (int first = 0; first < args.coarse_quads; first += kWarp) write_coarse_codes(args, row, first + lane, 0, lane);
  if (lane == 0) write_terms(args, row, args.whole_bytes + args.coarse_codes_bytes, unknown, 0.0f);
}

template <element_type E>
__global__ void __launch_bounds__(kThreads) write_plane_kernel(const __grid_constant__ plane_args args) {
  extern __shared__ __align__(16) unsigned char memory[];
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  float4* kept = reinterpret_cast<float4*>(memory) + static_cast<std::int64_t>(warp) * args.quads;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kWarps;
  for (std::int64_t row = args.first + static_cast<std::int64_t>(blockIdx.x) * kWarps + warp; row < args.padded_end;
       row += step) {
    if (row < args.end)
      write_row<E>(args, row, kept, lane);
    else
      write_padding(args, row, lane);
  }
}

}  // namespace

void launch_write_plane(cudaStream_t stream, const core::flat_corpus& corpus, std::int64_t first, std::int64_t count,
                        std::byte* plane) {
  if (count == 0) return;
  const core::fragment_layout layout(corpus.dim, corpus.metric, corpus.storage);
  plane_args args{};
  args.rows = static_cast<const unsigned char*>(corpus.rows);
  args.inverse_norms = corpus.inverse_norms;
  args.plane = reinterpret_cast<unsigned char*>(plane);
  args.stride_bytes = corpus.row_stride_bytes;
  args.block_bytes = layout.block_bytes();
  args.codes_bytes = layout.codes_bytes();
  args.whole_bytes = layout.whole_bytes();
  args.coarse_codes_bytes = layout.coarse_codes_bytes();
  args.first = first;
  args.end = first + count;
  const std::int64_t whole_blocks = (args.end + core::kPlaneRows - 1) / core::kPlaneRows * core::kPlaneRows;
  args.padded_end = args.end < corpus.count ? args.end : whole_blocks;  // rows may follow that are there already
  args.quads = static_cast<std::int32_t>((corpus.dim + 3) / 4);
  args.padded_quads = static_cast<std::int32_t>(layout.groups * core::fragment_layout::kGroup / 4);
  args.coarse_quads = static_cast<std::int32_t>(layout.pairs * core::fragment_layout::kPair / 4);
  args.is_kept = corpus.dim <= kKeptDim;
  args.by = corpus.metric;

  launch_shape shape;
  shape.grid = dim3(static_cast<unsigned>(std::min((args.padded_end - first + kWarps - 1) / kWarps, kMaxBlocks)));
  shape.threads = kThreads;
  shape.shared_bytes = args.is_kept ? kWarps * args.quads * static_cast<std::int64_t>(sizeof(float4)) : 0;
  constexpr const char* kWhat = "launching the plane's writer";
  switch (corpus.type) {
    case element_type::f32: return launch(write_plane_kernel<element_type::f32>, shape, stream, args, kWhat);
    case element_type::f16: return launch(write_plane_kernel<element_type::f16>, shape, stream, args, kWhat);
    case element_type::bf16: return launch(write_plane_kernel<element_type::bf16>, shape, stream, args, kWhat);
    case element_type::i8:
    case element_type::u8: throw_cuda(cudaErrorNotSupported, "a plane of rows of one byte an element");
  }
}

}  // namespace shortlist::cuda
