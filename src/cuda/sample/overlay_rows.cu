// Makes the overlays of rows that penalties and a mask change, under which tokens are drawn from the rows where they
// lie: no logit is read here, and none is copied.
//
// Why it is fast: few tokens of a row are penalized, so that two bits a token and a list of those are all there is to
// write; what draws reads a sixteenth of the bytes of bf16 logits more, and penalizes as it draws.
// Steps of a block, a piece of a row: the history's tokens are set in bits in shared memory, and where a frequency
// counts, counted in memory -> bits of tokens that stand as they are stored, and of those penalized -> the first to
// take a penalized token's bit lists it. Bits that a caller gives as a mask serve as they are.
// Limit: bytes of a mask of bytes, the history and the bits over read bandwidth; in practice, steps that wait for each
// other. Measured share: docs/kernels.md. History, 256 x 128,256 bf16, T 0.8, k 50, p 0.95, on an H100, the whole draw
// with penalties: rows copied as fp32 0.137 ms -> values of penalized tokens written where they belong 0.107 -> listed
// 0.063 -> penalized by what draws 0.060.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "core/plan.hpp"
#include "core/sampling.hpp"
#include "cuda/device/chain.cuh"
#include "cuda/device/cluster.cuh"
#include "cuda/device/element.cuh"
#include "cuda/device/score.cuh"
#include "cuda/runtime/launch.cuh"
#include "cuda/runtime/stream_memory.cuh"
#include "cuda/sample/change_rows.hpp"
#include "cuda/sample/count_sample.hpp"
#include "cuda/sample/overlay_rows.hpp"
#include "cuda/sample/row_overlay.hpp"
#include "cuda/sample/stream_sample.hpp"
#include "cuda/top_k/row_parts.cuh"

namespace shortlist::cuda {
namespace {

constexpr int kThreads = 512;
constexpr std::uint32_t kWordBits = 32;
constexpr std::int64_t kListShare = 4;  // a list has room for so much of the tokens of its piece

struct mark_args {
  core::sample_request request;
  std::int64_t first_row = 0;
  row_kinds kinds = row_kinds::all;
  row_overlay overlay{};
  std::uint32_t* plain = nullptr;  // the overlay's; no others where there is no history
  std::uint32_t* penalized = nullptr;
  penalized_token* lists = nullptr;
  std::uint32_t* counts = nullptr;
};

__device__ __forceinline__ std::uint32_t bit_of(std::uint32_t i) { return 1u << i % kWordBits; }

/// Bits of 16 bytes, those that are not 0.
__device__ __forceinline__ std::uint32_t bits_of_bytes(uint4 bytes) {
  const auto four = [](std::uint32_t word) { return __vsetne4(word, 0) * 0x01020408u >> 24; };
  return four(bytes.x) | four(bytes.y) << 4 | four(bytes.z) << 8 | four(bytes.w) << 12;
}

/// A word of the bits of allowed tokens, from token first on, of which there are so many.
__device__ __forceinline__ std::uint32_t allowed_word(const token_mask& mask, std::int64_t row, std::uint32_t first,
                                                      std::uint32_t count) {
  if (!mask.data) return ~0u;
  if (mask.kind == mask_kind::bits)
    return static_cast<const std::uint32_t*>(mask.data)[row * mask.row_stride + first / kWordBits];
  const std::uint8_t* bytes = static_cast<const std::uint8_t*>(mask.data) + row * mask.row_stride + first;
  if (count >= kWordBits && reinterpret_cast<std::uintptr_t>(bytes) % sizeof(uint4) == 0) {
    const auto* fours = reinterpret_cast<const uint4*>(bytes);
    const uint4 low = load_streaming(fours);
    const uint4 high = load_streaming(fours + 1);
    return bits_of_bytes(low) | bits_of_bytes(high) << 16;
  }
  std::uint32_t word = 0;
#pragma unroll 8
  for (std::uint32_t i = 0; i < kWordBits; i++)
    if (i < count && bytes[i] != 0) word |= 1u << i;
  return word;
}

/// A row's history, prompt or generated: the first tokens of each thread stay in its registers.
class history_tokens {
 public:
  static constexpr int kKept = 4;

  __device__ __forceinline__ history_tokens(const token_rows& history, std::int64_t row) : tokens_(history.tokens) {
    if (!history.begins) return;
    next_ = history.begins[row] + threadIdx.x;
    end_ = history.begins[row + 1];
  }
  /// Loads what is kept.
  __device__ __forceinline__ void load() {
#pragma unroll
    for (int slot = 0; slot < kKept; slot++) {
      kept_[slot] = next_ < end_ ? tokens_[next_] : -1;
      next_ += kThreads;
    }
  }
  /// Calls use(i) for the tokens that are the i-th of `count` from `first` on.
  template <class Use>
  __device__ __forceinline__ void for_each(std::uint32_t first, std::uint32_t count, Use use) const {
    const auto use_piece = [&](std::int32_t token) {
      const std::uint32_t i = static_cast<std::uint32_t>(token) - first;
      if (i < count) use(i);
    };
#pragma unroll
    for (int slot = 0; slot < kKept; slot++) use_piece(kept_[slot]);
#pragma unroll 4
    for (std::int64_t h = next_; h < end_; h += kThreads) use_piece(tokens_[h]);
  }

 private:
  const std::int32_t* tokens_;
  std::int64_t next_ = 0;
  std::int64_t end_ = 0;
  std::int32_t kept_[kKept];
};

__global__ void __launch_bounds__(kThreads) overlay_rows_kernel(const __grid_constant__ mark_args args) {
  join_chain();
  const core::sample_request& request = args.request;
  const sample_params& params = request.params;
  const row_overlay& overlay = args.overlay;
  const auto pieces = static_cast<std::uint32_t>(overlay.pieces);
  const std::int64_t of_turn = blockIdx.x >> shift_of(pieces);
  const std::int64_t row = args.first_row + of_turn;
  if (skips(args.kinds, request, row)) return;
  const auto vocab = static_cast<std::uint32_t>(request.logits.cols);
  const std::uint32_t all_words = (vocab + kWordBits - 1) / kWordBits;
  const std::uint32_t first_word = min((blockIdx.x & (pieces - 1)) * overlay.piece_words, all_words);
  const std::uint32_t words = min(overlay.piece_words, all_words - first_word);
  const std::uint32_t first = first_word * kWordBits;
  const std::uint32_t count = min(words * kWordBits, vocab - min(first, vocab));
  std::uint32_t* plain = args.plain + of_turn * overlay.plain_stride + first_word;
  if (!args.penalized) {
    for (std::uint32_t w = threadIdx.x; w < words; w += kThreads)
      plain[w] = allowed_word(params.allowed, row, first + w * kWordBits, count - w * kWordBits);
    return;
  }

  std::uint32_t* penalized = args.penalized + of_turn * overlay.penalized_stride + first_word;
  std::uint32_t* times = overlay.times + of_turn * overlay.times_stride + first;
  const std::int64_t piece = blockIdx.x;
  penalized_token* list = args.lists + piece * overlay.list_room;
  auto* touched = reinterpret_cast<std::uint32_t*>(dynamic_shared());  // tokens of the history,
  std::uint32_t* generated = touched + overlay.piece_words;            // and of those, which are generated
  __shared__ std::uint32_t listed;
  const bool counts = core::value_for(params.frequency_penalty, row) != 0.0f;
  const auto set = [](std::uint32_t* words, std::uint32_t i) { return atomicOr(&words[i / kWordBits], bit_of(i)); };
  history_tokens of_prompt(params.prompt, row);
  history_tokens of_generated(params.generated, row);
  if (threadIdx.x == 0) listed = 0;
  for (std::uint32_t w = threadIdx.x; w < words; w += kThreads) touched[w] = generated[w] = 0;
  of_prompt.load();
  of_generated.load();
  __syncthreads();
  of_prompt.for_each(first, count, [&](std::uint32_t i) { set(touched, i); });
  of_generated.for_each(first, count, [&](std::uint32_t i) {
    if ((set(generated, i) & bit_of(i)) == 0 && counts) times[i] = 0;
  });
  __syncthreads();
  if (counts) of_generated.for_each(first, count, [&](std::uint32_t i) { atomicAdd(&times[i], 1u); });
  for (std::uint32_t w = threadIdx.x; w < words; w += kThreads) {
    const std::uint32_t allowed = allowed_word(params.allowed, row, first + w * kWordBits, count - w * kWordBits);
    const std::uint32_t of_history = touched[w] | generated[w];
    plain[w] = allowed & ~of_history;
    penalized[w] = allowed & of_history;
    touched[w] = allowed & of_history;  // of which none is taken
  }
  __syncthreads();
  const auto take = [&](std::uint32_t i) {
    if ((atomicAnd(&touched[i / kWordBits], ~bit_of(i)) & bit_of(i)) == 0) return;
    const bool is_generated = (generated[i / kWordBits] & bit_of(i)) != 0;
    const std::uint32_t often = !is_generated ? 0 : counts ? __ldcg(&times[i]) : 1;
    const std::uint32_t at = atomicAdd(&listed, 1u);
    if (at < overlay.list_room)
      list[at] = {first + i, often};
    else
      times[i] = often;
  };
  of_prompt.for_each(first, count, take);
  of_generated.for_each(first, count, take);
  __syncthreads();
  if (threadIdx.x == 0) args.counts[piece] = listed;
}

void launch_overlay_rows(cudaStream_t stream, const mark_args& args, std::int64_t rows) {
  launch_shape shape;
  shape.grid = dim3(static_cast<unsigned>(rows * args.overlay.pieces));
  shape.threads = kThreads;
  shape.shared_bytes = args.penalized ? 2 * std::int64_t{args.overlay.piece_words} * 4 : 0;
  shape.overlaps = true;
  launch(overlay_rows_kernel, shape, stream, args, "marking what changes of rows of logits");
}

/// Whether a launch has to make the overlay: bits that a caller gives are one.
bool is_made(const core::sample_request& request) {
  return has_history(request.params) || request.params.allowed.kind != mask_kind::bits;
}

/// Draws from rows of the kinds that count_sample serves.
void sample_counted(cudaStream_t stream, const core::sample_request& request, row_kinds kinds, int multiprocessors) {
  const value_matrix& logits = request.logits;
  const token_mask& mask = request.params.allowed;
  mark_args args{.request = request, .kinds = kinds};
  row_overlay& overlay = args.overlay;
  overlay.pieces = overlaid_pieces(request, multiprocessors);
  if (!is_made(request)) {
    overlay.plain = static_cast<const std::uint32_t*>(mask.data);
    overlay.plain_stride = mask.row_stride;
    return launch_count_sample(stream, request, &overlay, kinds, multiprocessors);
  }
  const auto whole_units = [](std::int64_t count) { return (count + 3) / 4 * 4; };  // of 16 bytes
  const std::int64_t words = whole_units((logits.cols + kWordBits - 1) / kWordBits);
  const std::int64_t piece_words = (words + overlay.pieces - 1) / overlay.pieces;
  const std::int64_t list_room = whole_units(piece_words * kWordBits / kListShare);
  const std::int64_t times_stride = whole_units(logits.cols);
  const std::int64_t row_words =
      has_history(request.params) ? 2 * words + times_stride + overlay.pieces * (2 * list_room + 1) : words;
  const std::int64_t at_once = changed_at_once(logits.rows, row_words * 4);
  const stream_memory memory(stream, at_once * row_words * 4);
  auto* next = static_cast<std::uint32_t*>(memory.data());
  const auto take = [&](std::int64_t words_of_row) { return std::exchange(next, next + at_once * words_of_row); };
  overlay.piece_words = static_cast<std::uint32_t>(piece_words);
  overlay.plain = args.plain = take(words);
  overlay.plain_stride = words;
  if (has_history(request.params)) {
    overlay.penalized = args.penalized = take(words);
    overlay.penalized_stride = words;
    overlay.times = take(times_stride);
    overlay.times_stride = times_stride;
    overlay.lists = args.lists = reinterpret_cast<penalized_token*>(take(2 * overlay.pieces * list_room));
    overlay.list_room = static_cast<std::uint32_t>(list_room);
    overlay.counts = args.counts = take(overlay.pieces);
  }
  for (; args.first_row < logits.rows; args.first_row += at_once) {
    const std::int64_t rows = std::min(at_once, logits.rows - args.first_row);
    launch_overlay_rows(stream, args, rows);
    const auto* from =
        static_cast<const std::byte*>(logits.data) + args.first_row * logits.row_stride * size_bytes(logits.type);
    const value_matrix of_turn(from, logits.type, rows, logits.cols, logits.row_stride);
    launch_count_sample(stream, plain_rows(request, of_turn, args.first_row), &overlay, kinds, multiprocessors);
  }
}

}  // namespace

bool overlay_serves(const core::sample_request& request) {
  if (!are_neighbours(request.logits) || request.params.bias.values || !count_sample_serves_overlay(request))
    return false;
  // Making an overlay takes a few steps that wait for each other, as long as copying so many logits does: fp32 are
  // copied as they are, others made wider.
  const std::int64_t least = request.logits.type == value_type::f32 ? 3 << 21 : 3 << 19;
  return counts_alone(request) ? !is_made(request) || has_many_logits(request, least) : splits_rows(request);
}

void sample_under_overlay(cudaStream_t stream, const core::sample_request& request, int multiprocessors) {
  if (counts_alone(request)) return sample_counted(stream, request, row_kinds::all, multiprocessors);
  sample_counted(stream, request, row_kinds::counted, multiprocessors);
  sample_changed_rows(stream, request, row_kinds::others, multiprocessors, [&](const core::sample_request& plain) {
    launch_stream_sample(stream, plain, row_kinds::others, multiprocessors);
  });
}

}  // namespace shortlist::cuda
