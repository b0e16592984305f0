// Rows as an index takes them: checked, widened, divided by their norm, turned; then less their centroids.
//
// Eight lanes hold a row, as in the canonical score, whose sums they take from device/score.cuh. A turn is dim
// canonical dots a row, four at a time; the matrix, of which each warp reads all, comes from L1. Limit: one read and
// one write of the rows; with a turn, dim x dim fused multiply-adds a row.
#include <algorithm>

#include "core/score.hpp"
#include "cuda/device/element.cuh"
#include "cuda/device/score.cuh"
#include "cuda/ivf_pq/rows.hpp"
#include "cuda/runtime/launch.cuh"
#include "cuda/runtime/stream_memory.cuh"

namespace shortlist::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kLanesPerRow = 8;
constexpr int kRowsPerPass = kWarp / kLanesPerRow;  // of a warp
constexpr std::int64_t kRowsPerBlock = kWarps * kRowsPerPass;
constexpr std::int64_t kMaxBlocks = 65536;                       // each strides over the rows beyond
constexpr int kDotsAtOnce = 4;                                   // of a row, when it is turned
constexpr int kQuadsPerStep = core::kPartialSums / 4;            // one for each partial sum
constexpr std::int64_t kUnturnedBytes = std::int64_t{64} << 20;  // of rows that wait for their turn
constexpr std::uint32_t kExponentBits = 0x7F800000u;             // all of them set: not finite

/// Rows of any element type and stride, four neighbouring elements at a time.
struct row_source {
  const unsigned char* data;
  std::int64_t stride_bytes;
  std::int64_t rows;
  std::int32_t dim;
  bool whole_quads;  // can be loaded at once: their addresses are multiples of their size

  explicit row_source(const any_matrix_view& view)
      : data(static_cast<const unsigned char*>(view.data)),
        stride_bytes(view.row_stride * size_bytes(view.type)),
        rows(view.rows),
        dim(static_cast<std::int32_t>(view.cols)) {
    const std::int64_t quad_bytes = 4 * size_bytes(view.type);
    whole_quads = reinterpret_cast<std::uintptr_t>(data) % static_cast<std::uintptr_t>(quad_bytes) == 0 &&
                  stride_bytes % quad_bytes == 0;
  }

  __host__ __device__ std::int32_t quads() const { return (dim + 3) / 4; }
};

template <element_type E>
__device__ __forceinline__ float load_element(const unsigned char* row, std::int32_t i) {
  if constexpr (E == element_type::f32)
    return reinterpret_cast<const float*>(row)[i];
  else if constexpr (E == element_type::f16)
    return core::widen(float16{reinterpret_cast<const std::uint16_t*>(row)[i]});
  else if constexpr (E == element_type::bf16)
    return core::widen(bfloat16{reinterpret_cast<const std::uint16_t*>(row)[i]});
  else if constexpr (E == element_type::i8)
    return core::widen(reinterpret_cast<const std::int8_t*>(row)[i]);
  else
    return core::widen(row[i]);
}

/// Elements 4 q to 4 q + 3 of a row, widened; 0 past dim.
template <element_type E>
__device__ __forceinline__ float4 load_quad(const row_source& from, std::int64_t row, std::int32_t q) {
  using raw = typename quad<E>::raw;
  const unsigned char* at = from.data + row * from.stride_bytes;
  const std::int32_t i = 4 * q;
  if (from.whole_quads && i + 4 <= from.dim)
    return quad<E>::widen(load_streaming(reinterpret_cast<const raw*>(at) + q));
  const auto element = [&](std::int32_t e) { return e < from.dim ? load_element<E>(at, e) : 0.0f; };
  return make_float4(element(i), element(i + 1), element(i + 2), element(i + 3));
}

/// The same of dense fp32 rows that are read again and again. `past` stands for elements past dim.
__device__ __forceinline__ float4 load_dense(const float* row, std::int32_t q, std::int32_t dim, float past) {
  const std::int32_t i = 4 * q;
  if (dim % 4 == 0) {
    if (i < dim) return __ldg(reinterpret_cast<const float4*>(row) + q);
    return make_float4(past, past, past, past);
  }
  const auto element = [&](std::int32_t e) { return e < dim ? __ldg(row + e) : past; };
  return make_float4(element(i), element(i + 1), element(i + 2), element(i + 3));
}

__device__ __forceinline__ void store_quad(float* row, std::int32_t q, std::int32_t dim, const float4& x) {
  const std::int32_t i = 4 * q;
  if (dim % 4 == 0) {
    reinterpret_cast<float4*>(row)[q] = x;
    return;
  }
  const float elements[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
  for (int e = 0; e < 4; e++)
    if (i + e < dim) row[i + e] = elements[e];
}

__device__ __forceinline__ bool is_finite(float x) { return (__float_as_uint(x) & kExponentBits) != kExponentBits; }

/// The first row of this warp's pass, and how far it is to its next.
struct row_passes {
  std::int64_t first = (static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp) * kRowsPerPass;
  std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kRowsPerBlock;
};

launch_shape shape_for(std::int64_t rows) {
  return {.grid = dim3(static_cast<unsigned>(std::min((rows + kRowsPerBlock - 1) / kRowsPerBlock, kMaxBlocks))),
          .threads = kThreads};
}

struct check_args {
  row_source from;
  std::uint32_t* found;   // [1] whether there is any
  unsigned char* is_bad;  // [rows]
};

template <element_type E>
__global__ void __launch_bounds__(kThreads) not_finite_kernel(const __grid_constant__ check_args args) {
  const int lane = threadIdx.x % kWarp;
  const row_passes passes;
  for (std::int64_t first = passes.first; first < args.from.rows; first += passes.step) {
    const std::int64_t row = first + lane / kLanesPerRow;
    bool bad = false;
    if (row < args.from.rows) {
      for (std::int32_t q = lane % kLanesPerRow; q < args.from.quads(); q += kLanesPerRow) {
        const float4 x = load_quad<E>(args.from, row, q);
        bad |= !is_finite(x.x) || !is_finite(x.y) || !is_finite(x.z) || !is_finite(x.w);
      }
    }
    if (!bad) continue;
    args.is_bad[row] = 1;  // several lanes may, all the same
    *args.found = 1;
  }
}

struct take_args {
  row_source from;
  float* out;
  bool divides;  // by the row's norm
};

template <element_type E>
__global__ void __launch_bounds__(kThreads) take_rows_kernel(const __grid_constant__ take_args args) {
  const int lane = threadIdx.x % kWarp;
  const int lane_of_row = lane % kLanesPerRow;
  const row_passes passes;
  for (std::int64_t first = passes.first; first < args.from.rows; first += passes.step) {
    const std::int64_t row = first + lane / kLanesPerRow;
    const std::int64_t read = min(row, args.from.rows - 1);  // all lanes take part in the sum
    float factor = 1.0f;
    if (args.divides) {
      float sums[1][kQuadsPerLane<kLanesPerRow>][4] = {};
      for (std::int32_t chunk = 0; chunk < args.from.quads(); chunk += kQuadsPerStep) {
#pragma unroll
        for (int v = 0; v < kQuadsPerLane<kLanesPerRow>; v++) {
          const std::int32_t q = chunk + kLanesPerRow * v + lane_of_row;
          if (q >= args.from.quads()) continue;
          const float4 x = load_quad<E>(args.from, read, q);
          step4<false>(x, x, sums[0][v]);
        }
      }
      const float inverse = core::inverse_norm(finish_sums<kLanesPerRow, 1>(sums, lane));
      if (inverse != core::kZeroVector) factor = inverse;
    }
    if (row >= args.from.rows) continue;
    for (std::int32_t q = lane_of_row; q < args.from.quads(); q += kLanesPerRow) {
      float4 x = load_quad<E>(args.from, row, q);
      if (args.divides) {
        x = make_float4(__fmul_rn(x.x, factor), __fmul_rn(x.y, factor), __fmul_rn(x.z, factor), __fmul_rn(x.w, factor));
      }
      store_quad(args.out + row * args.from.dim, q, args.from.dim, x);
    }
  }
}

struct turn_args {
  const float* rows;      // [n, dim]
  const float* rotation;  // [dim, dim]
  float* out;             // [n, dim]
  std::int64_t n;
  std::int32_t dim;
};

__global__ void __launch_bounds__(kThreads) turn_rows_kernel(const __grid_constant__ turn_args args) {
  const int lane = threadIdx.x % kWarp;
  const int lane_of_row = lane % kLanesPerRow;
  const std::int32_t quads = (args.dim + 3) / 4;
  const row_passes passes;
  for (std::int64_t first = passes.first; first < args.n; first += passes.step) {
    const std::int64_t row = first + lane / kLanesPerRow;
    const float* from = args.rows + min(row, args.n - 1) * args.dim;
    for (std::int32_t i = 0; i < args.dim; i += kDotsAtOnce) {
      float sums[kDotsAtOnce][kQuadsPerLane<kLanesPerRow>][4] = {};
      for (std::int32_t chunk = 0; chunk < quads; chunk += kQuadsPerStep) {
#pragma unroll
        for (int v = 0; v < kQuadsPerLane<kLanesPerRow>; v++) {
          const std::int32_t q = chunk + kLanesPerRow * v + lane_of_row;
          if (q >= quads) continue;
          const float4 x = load_dense(from, q, args.dim, core::kRowPadding);
#pragma unroll
          for (int d = 0; d < kDotsAtOnce; d++) {
            const std::int64_t matrix_row = min(i + d, args.dim - 1);
            step4<false>(load_dense(args.rotation + matrix_row * args.dim, q, args.dim, core::kQueryPadding), x,
                         sums[d][v]);
          }
        }
      }
      const float dot = finish_sums<kLanesPerRow, kDotsAtOnce>(sums, lane);
      const std::int32_t element = i + finished_row<kLanesPerRow, kDotsAtOnce>(lane);
      if (leads_finished_row<kLanesPerRow, kDotsAtOnce>(lane) && row < args.n && element < args.dim)
        args.out[row * args.dim + element] = dot;
    }
  }
}

struct residual_args {
  const float* rows;
  const std::int64_t* lists;  // null if rows themselves are encoded
  const float* centroids;
  float* out;
  std::int64_t n;
  std::int64_t centroid_stride;
  std::int32_t dim;
  std::int32_t padded_dim;
  std::int32_t vectors_per_row;  // of Width elements of the output
};

/// A thread a vector of `Width` elements of one row; a block takes kRowsPerBlock rows.
template <int Width>
__global__ void __launch_bounds__(kThreads) residuals_kernel(const __grid_constant__ residual_args args) {
  const auto vectors = static_cast<std::uint32_t>(args.vectors_per_row);
  for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kRowsPerBlock; first < args.n;
       first += static_cast<std::int64_t>(gridDim.x) * kRowsPerBlock) {
    const auto rows = static_cast<std::uint32_t>(min(kRowsPerBlock, args.n - first));
    for (std::uint32_t i = threadIdx.x; i < rows * vectors; i += kThreads) {
      const std::int64_t row = first + i / vectors;
      const auto at = static_cast<std::int32_t>(i % vectors) * Width;
      const float* from = args.rows + row * args.dim + at;
      const float* centroid = args.lists ? args.centroids + args.lists[row] * args.centroid_stride + at : nullptr;
      float* to = args.out + row * args.padded_dim + at;
      if constexpr (Width == 4) {
        float4 x = load_dense(from, 0, 4, 0.0f);
        if (centroid) {
          const float4 c = load_dense(centroid, 0, 4, 0.0f);
          x = make_float4(__fsub_rn(x.x, c.x), __fsub_rn(x.y, c.y), __fsub_rn(x.z, c.z), __fsub_rn(x.w, c.w));
        }
        *reinterpret_cast<float4*>(to) = x;
      } else {
        *to = at >= args.dim ? 0.0f : centroid ? __fsub_rn(*from, *centroid) : *from;
      }
    }
  }
}

/// Calls launch_one with a kernel of the element type.
template <class LaunchOne>
void with_element_type(element_type type, const LaunchOne& launch_one) {
  switch (type) {
    case element_type::f32: return launch_one(std::integral_constant<element_type, element_type::f32>{});
    case element_type::f16: return launch_one(std::integral_constant<element_type, element_type::f16>{});
    case element_type::bf16: return launch_one(std::integral_constant<element_type, element_type::bf16>{});
    case element_type::i8: return launch_one(std::integral_constant<element_type, element_type::i8>{});
    case element_type::u8: return launch_one(std::integral_constant<element_type, element_type::u8>{});
  }
}

void take(cudaStream_t stream, metric by, const any_matrix_view& rows, float* out) {
  const take_args args{row_source(rows), out, by == metric::cosine};
  with_element_type(rows.type, [&](auto type) {
    launch(take_rows_kernel<type()>, shape_for(rows.rows), stream, args, "launching the taking of rows");
  });
}

}  // namespace

std::vector<std::int64_t> find_rows_not_finite(cudaStream_t stream, const any_matrix_view& rows, std::int64_t limit) {
  const bool may_be_bad = rows.type != element_type::i8 && rows.type != element_type::u8;
  if (rows.rows == 0 || limit == 0 || !may_be_bad) return {};
  constexpr std::int64_t kFlagBytes = 16;
  const stream_memory memory(stream, kFlagBytes + rows.rows);
  auto* found = static_cast<std::uint32_t*>(memory.data());
  auto* is_bad = static_cast<unsigned char*>(memory.data()) + kFlagBytes;
  constexpr const char* kWhat = "looking for rows that are not finite";
  check(cudaMemsetAsync(memory.data(), 0, static_cast<std::size_t>(kFlagBytes + rows.rows), stream), kWhat);
  const check_args args{row_source(rows), found, is_bad};
  with_element_type(rows.type,
                    [&](auto type) { launch(not_finite_kernel<type()>, shape_for(rows.rows), stream, args, kWhat); });
  std::uint32_t any = 0;
  check(cudaMemcpyAsync(&any, found, sizeof(any), cudaMemcpyDeviceToHost, stream), kWhat);
  check(cudaStreamSynchronize(stream), kWhat);
  std::vector<std::int64_t> numbers;
  if (any == 0) return numbers;
  std::vector<unsigned char> on_host(static_cast<std::size_t>(rows.rows));
  check(cudaMemcpyAsync(on_host.data(), is_bad, on_host.size(), cudaMemcpyDeviceToHost, stream), kWhat);
  check(cudaStreamSynchronize(stream), kWhat);
  for (std::int64_t row = 0; row < rows.rows && static_cast<std::int64_t>(numbers.size()) < limit; row++)
    if (on_host[static_cast<std::size_t>(row)]) numbers.push_back(row);
  return numbers;
}

void launch_take_rows(cudaStream_t stream, metric by, const float* rotation, const any_matrix_view& rows, float* out) {
  if (rows.rows == 0) return;
  if (!rotation) return take(stream, by, rows, out);
  const std::int64_t row_bytes = rows.cols * static_cast<std::int64_t>(sizeof(float));
  const std::int64_t chunk = std::clamp<std::int64_t>(kUnturnedBytes / row_bytes, 1, rows.rows);
  const stream_memory memory(stream, chunk * row_bytes);
  auto* unturned = static_cast<float*>(memory.data());
  for (std::int64_t first = 0; first < rows.rows; first += chunk) {
    any_matrix_view part = rows;
    part.data = static_cast<const unsigned char*>(rows.data) + first * rows.row_stride * size_bytes(rows.type);
    part.rows = std::min(chunk, rows.rows - first);
    take(stream, by, part, unturned);
    const turn_args args{unturned, rotation, out + first * rows.cols, part.rows, static_cast<std::int32_t>(rows.cols)};
    launch(turn_rows_kernel, shape_for(part.rows), stream, args, "launching the turning of rows");
  }
}

void launch_residuals(cudaStream_t stream, const core::ivf_pq_shape& shape, const float* rows, std::int64_t n,
                      const std::int64_t* lists, const float* centroids, std::int64_t centroid_stride, float* out) {
  if (n == 0) return;
  const bool of_rows = shape.encodes == encoded::row;
  const bool whole_quads = shape.dim % 4 == 0 && shape.padded_dim() == shape.dim && centroid_stride % 4 == 0;
  residual_args args{};
  args.rows = rows;
  args.lists = of_rows ? nullptr : lists;
  args.centroids = centroids;
  args.out = out;
  args.n = n;
  args.centroid_stride = centroid_stride;
  args.dim = static_cast<std::int32_t>(shape.dim);
  args.padded_dim = static_cast<std::int32_t>(shape.padded_dim());
  args.vectors_per_row = whole_quads ? args.padded_dim / 4 : args.padded_dim;
  launch(whole_quads ? residuals_kernel<4> : residuals_kernel<1>, shape_for(n), stream, args,
         "launching the residuals of rows");
}

}  // namespace shortlist::cuda
