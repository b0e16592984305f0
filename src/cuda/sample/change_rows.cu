// Changes rows of logits as penalties, a bias and a mask ask, into rows in memory, from which tokens are then drawn as
// from any plain rows: fp32, or as they are stored where a mask alone changes them. Where few of each row remain by
// count, and there is no bias, overlay_rows.cu does without the copy.
//
// Why it is fast: what draws from plain rows reads them once and keeps little; a copy that it finds in L2 costs less
// than a way to draw that has to hold every row on the chip as fp32. Steps of a block, a piece of a row: the history's
// tokens that lie in the piece are counted in shared memory -> logits loaded, four tokens a thread, several such
// vectors under way -> changed and written. Limit: bytes(logits) read and the copy written. Measured share:
// docs/kernels.md. History, 64 x 128,256 bf16, T 0.8, k 50, p 0.95, on an H100, the whole draw: rows held as fp32 by
// clusters and changed there, penalties 0.071 ms, a mask 0.067 -> a launch before the plain draw 0.042 and 0.042 ->
// masked rows as they are stored 0.031.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/sampling.hpp"
#include "cuda/device/chain.cuh"
#include "cuda/device/cluster.cuh"
#include "cuda/device/element.cuh"
#include "cuda/runtime/launch.cuh"
#include "cuda/runtime/stream_memory.cuh"
#include "cuda/sample/change_rows.hpp"
#include "cuda/top_k/row_parts.cuh"

namespace shortlist::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kFour = 4;                          // tokens that a thread changes together
constexpr int kFlight = 4;                        // such vectors under way in a thread
constexpr std::int64_t kPiece = 8192;             // tokens of a block
constexpr std::int64_t kShortPiece = 2048;        // where rows are few
constexpr std::int64_t kRowUnit = 16;             // bytes: where rows begin
constexpr std::uint32_t kInPrompt = 0x80000000u;  // beside a count of generated tokens

struct change_args {
  core::sample_request request;
  void* changed;        // [rows, stride]
  std::int64_t stride;  // a multiple of 16 bytes
  std::int64_t first_row;
  std::uint32_t pieces;  // of a row
  std::uint32_t piece;
  bool has_history;
  row_kinds kinds;
};

/// Four neighbours as they are stored. @pre they are aligned
template <class Stored>
using stored_four = typename quad<element_type_of<Stored>()>::raw;

/// What changes the logits of a piece of a row.
class piece_change {
 public:
  __device__ __forceinline__ piece_change(const change_args& args, std::int64_t row, std::uint32_t first,
                                          std::uint32_t* counts)
      : counts_(args.has_history ? counts : nullptr) {
    const sample_params& params = args.request.params;
    if (counts_) by_ = core::penalties_of(params, row);
    if (params.bias.values) bias_ = params.bias.values + row * params.bias.row_stride + first;
    const token_mask& mask = params.allowed;
    if (!mask.data) return;
    if (mask.kind == mask_kind::bytes)
      bytes_ = static_cast<const std::uint8_t*>(mask.data) + row * mask.row_stride + first;
    else
      words_ = static_cast<const std::uint32_t*>(mask.data) + row * mask.row_stride + first / 32;
  }

  /// Of token first + i. @pre first is a multiple of 32
  __device__ __forceinline__ float operator()(float x, std::uint32_t i) const {
    return changed(x, i, counts_ ? counts_[i] : 0, words_ ? words_[i / 32] >> i % 32 : 0);
  }
  /// Of four tokens from first + i on. @pre i is a multiple of four
  __device__ __forceinline__ float4 of_four(float4 x, std::uint32_t i) const {
    const uint4 counts = counts_ ? *reinterpret_cast<const uint4*>(counts_ + i) : make_uint4(0, 0, 0, 0);
    const std::uint32_t word = words_ ? words_[i / 32] >> i % 32 : 0;
    return make_float4(changed(x.x, i, counts.x, word), changed(x.y, i + 1, counts.y, word >> 1),
                       changed(x.z, i + 2, counts.z, word >> 2), changed(x.w, i + 3, counts.w, word >> 3));
  }

 private:
  __device__ __forceinline__ float changed(float x, std::uint32_t i, std::uint32_t count, std::uint32_t word) const {
    if (count != 0) x = core::penalized(x, static_cast<std::int32_t>(count & ~kInPrompt), by_);
    if (bias_) x = core::add_once(x, bias_[i]);
    const bool masked = (words_ && (word & 1u) == 0) || (bytes_ && bytes_[i] == 0);
    return masked ? core::float_from_bits(0xFF800000u) : x;
  }

  const std::uint32_t* counts_;
  core::penalties by_;
  const float* bias_ = nullptr;
  const std::uint8_t* bytes_ = nullptr;
  const std::uint32_t* words_ = nullptr;
};

/// Calls use(i) for each of the history's tokens that is the i-th of `count` from `first` on. All threads come.
template <class Use>
__device__ __forceinline__ void for_each_of_history(const token_rows& history, std::int64_t row, std::uint32_t first,
                                                    std::uint32_t count, Use use) {
  constexpr int kFlight = 4;  // tokens under way in a thread
  if (!history.begins) return;
  const std::int64_t end = history.begins[row + 1];
  for (std::int64_t h = history.begins[row] + threadIdx.x; h < end; h += kFlight * kThreads) {
    std::uint32_t at[kFlight];
#pragma unroll
    for (int i = 0; i < kFlight; i++) {
      const std::int64_t other = h + i * kThreads;
      at[i] = other < end ? static_cast<std::uint32_t>(__ldg(history.tokens + other)) - first : ~0u;
    }
#pragma unroll
    for (int i = 0; i < kFlight; i++)
      if (at[i] < count) use(at[i]);
  }
}

template <class Changed>
__device__ __forceinline__ void store_four(Changed* to, float4 x) {
  const Changed four[kFour] = {narrowed<Changed>(x.x), narrowed<Changed>(x.y), narrowed<Changed>(x.z),
                               narrowed<Changed>(x.w)};
  stored_four<Changed> raw;
  memcpy(&raw, four, sizeof raw);
  *reinterpret_cast<stored_four<Changed>*>(to) = raw;
}

/// @tparam Changed fp32, or Stored where no sum or product is asked for.
template <class Stored, class Changed>
__global__ void __launch_bounds__(kThreads) change_rows_kernel(const __grid_constant__ change_args args) {
  join_chain();
  const core::sample_request& request = args.request;
  const value_matrix& logits = request.logits;
  const std::int64_t of_turn = blockIdx.x / args.pieces;
  const std::int64_t row = args.first_row + of_turn;
  if (skips(args.kinds, request, row)) return;
  const std::uint32_t first = blockIdx.x % args.pieces * args.piece;
  const std::uint32_t count = min(args.piece, static_cast<std::uint32_t>(logits.cols) - first);
  const Stored* from = static_cast<const Stored*>(logits.data) + row * logits.row_stride + first * logits.col_stride;
  Changed* to = static_cast<Changed*>(args.changed) + of_turn * args.stride + first;
  auto* counts = reinterpret_cast<std::uint32_t*>(dynamic_shared());
  if (args.has_history) {
    for (std::uint32_t i = threadIdx.x; i < count; i += kThreads) counts[i] = 0;
    __syncthreads();
    for_each_of_history(request.params.prompt, row, first, count,
                        [&](std::uint32_t i) { atomicOr(&counts[i], kInPrompt); });
    for_each_of_history(request.params.generated, row, first, count,
                        [&](std::uint32_t i) { atomicAdd(&counts[i], 1u); });
    __syncthreads();
  }
  const piece_change change(args, row, first, counts);
  const bool in_fours =
      logits.col_stride == 1 && reinterpret_cast<std::uintptr_t>(from) % sizeof(stored_four<Stored>) == 0;
  const std::uint32_t fours = in_fours ? count / kFour : 0;
  for (std::uint32_t base = threadIdx.x; base < fours; base += kFlight * kThreads) {
    stored_four<Stored> raw[kFlight];
#pragma unroll
    for (std::uint32_t v = 0; v < kFlight; v++)
      if (base + v * kThreads < fours)
        raw[v] = load_streaming(reinterpret_cast<const stored_four<Stored>*>(from) + base + v * kThreads);
#pragma unroll
    for (std::uint32_t v = 0; v < kFlight; v++) {
      const std::uint32_t four = base + v * kThreads;
      if (four >= fours) break;
      const float4 x = quad<element_type_of<Stored>()>::widen(raw[v]);
      store_four(to + four * kFour, change.of_four(x, four * kFour));
    }
  }
#pragma unroll 4
  for (std::uint32_t i = fours * kFour + threadIdx.x; i < count; i += kThreads)
    to[i] = narrowed<Changed>(change(core::widen(from[i * logits.col_stride]), i));
}

void launch_change_rows(cudaStream_t stream, const core::sample_request& request, const value_matrix& changed,
                        std::int64_t first_row, row_kinds kinds, int multiprocessors) {
  const std::int64_t cols = request.logits.cols;
  const auto pieces_of = [&](std::int64_t piece) { return (cols + piece - 1) / piece; };
  const bool few = changed.rows * pieces_of(kPiece) < 2 * multiprocessors;
  const std::int64_t piece = few ? kShortPiece : kPiece;
  const change_args args{.request = request,
                         .changed = const_cast<void*>(changed.data),
                         .stride = changed.row_stride,
                         .first_row = first_row,
                         .pieces = static_cast<std::uint32_t>(pieces_of(piece)),
                         .piece = static_cast<std::uint32_t>(piece),
                         .has_history = has_history(request.params),
                         .kinds = kinds};
  launch_shape shape;
  shape.grid = dim3(static_cast<unsigned>(changed.rows * args.pieces));
  shape.threads = kThreads;
  shape.shared_bytes = args.has_history ? piece * static_cast<std::int64_t>(sizeof(std::uint32_t)) : 0;
  shape.overlaps = true;
  by_stored_type(request.logits.type, [&](auto stored) {
    using stored_type = decltype(stored);
    constexpr const char* kWhat = "changing rows of logits";
    if (changed.type == request.logits.type)
      launch(change_rows_kernel<stored_type, stored_type>, shape, stream, args, kWhat);
    else
      launch(change_rows_kernel<stored_type, float>, shape, stream, args, kWhat);
  });
}

}  // namespace

core::sample_request plain_rows(const core::sample_request& request, const value_matrix& logits, std::int64_t first) {
  core::sample_request plain = request;
  plain.logits = logits;
  sample_params& params = plain.params;
  params.prompt = params.generated = {};
  params.bias = {};
  params.allowed = {};
  const auto skip = [&](auto& parameter) {
    if (parameter.rows) parameter.rows += first;
  };
  skip(params.temperature);
  skip(params.top_k);
  skip(params.top_p);
  skip(params.min_p);
  skip(params.seed);
  skip(params.offset);
  skip(params.repetition_penalty);  // what is wrong with them is still found
  skip(params.presence_penalty);
  skip(params.frequency_penalty);
  sample_output& out = plain.out;
  const auto skip_output = [&](auto*& output, std::int64_t each) {
    if (output) output += first * each;
  };
  auto* tokens = static_cast<std::byte*>(out.tokens);
  skip_output(tokens, out.tokens_as == index_type::i32 ? sizeof(std::int32_t) : sizeof(std::int64_t));
  out.tokens = tokens;
  skip_output(out.status, 1);
  skip_output(out.logprobs, 1);
  skip_output(out.kept, 1);
  skip_output(out.top_tokens, out.top_n);
  skip_output(out.top_logprobs, out.top_n);
  return plain;
}

bool changes_rows(const core::sample_request& request) {
  const sample_params& params = request.params;
  return !are_neighbours(request.logits) || has_history(params) || params.bias.values || params.allowed.data;
}

std::int64_t changed_at_once(std::int64_t rows, std::int64_t row_bytes) {
  constexpr std::int64_t kMemoryBytes = std::int64_t{256} << 20;
  return std::clamp(kMemoryBytes / row_bytes, std::int64_t{1}, rows);
}

void sample_changed_rows(cudaStream_t stream, const core::sample_request& request, row_kinds kinds, int multiprocessors,
                         const std::function<void(const core::sample_request& plain)>& sample) {
  const std::int64_t rows = request.logits.rows;
  const bool masks_alone = !has_history(request.params) && !request.params.bias.values;
  const value_type type = masks_alone ? request.logits.type : value_type::f32;
  const std::int64_t row_bytes = (request.logits.cols * size_bytes(type) + kRowUnit - 1) / kRowUnit * kRowUnit;
  const std::int64_t stride = row_bytes / size_bytes(type);
  const std::int64_t at_once = changed_at_once(rows, row_bytes);
  const stream_memory memory(stream, at_once * row_bytes);
  for (std::int64_t first = 0; first < rows; first += at_once) {
    const value_matrix changed(memory.data(), type, std::min(at_once, rows - first), request.logits.cols, stride);
    launch_change_rows(stream, request, changed, first, kinds, multiprocessors);
    sample(plain_rows(request, changed, first));
  }
}

}  // namespace shortlist::cuda
