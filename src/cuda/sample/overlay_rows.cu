// Makes the overlays of rows that penalties and a mask change, under which tokens are drawn from the rows where they
// lie: no logit is read but those of the history, and none is copied.
//
// Why it is fast: few logits of a row are changed, so that two bits a token and the changed values are all there is to
// write; what draws reads a sixteenth of the bytes of bf16 logits more.
// Steps of a block, a piece of a row: the history's tokens are set in bits in shared memory; where a frequency counts,
// each is counted where its value will stand -> bits of tokens that stand as they are stored, and of those changed ->
// the first to take a changed token's bit writes its value. Bits that a caller gives as a mask serve as they are.
// Limit: bytes of a mask of bytes, the history and the bits over read bandwidth; in practice, steps that wait for each
// other. Measured share: docs/kernels.md.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

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
constexpr std::int64_t kMemoryBytes = std::int64_t{256} << 20;

struct mark_args {
  core::sample_request request;
  std::int64_t first_row = 0;
  row_overlay overlay{};
  std::uint32_t* plain = nullptr;    // of the overlay,
  std::uint32_t* changed = nullptr;  // null: no history
};

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
  /// Calls use(i, slot) for the tokens that are the i-th of `count` from `first` on; slot -1: not kept.
  template <class Use>
  __device__ __forceinline__ void for_each(std::uint32_t first, std::uint32_t count, Use use) const {
#pragma unroll
    for (int slot = 0; slot < kKept; slot++) {
      const std::uint32_t i = static_cast<std::uint32_t>(kept_[slot]) - first;
      if (i < count) use(i, slot);
    }
#pragma unroll 1
    for (std::int64_t h = next_; h < end_; h += kThreads) {
      const std::uint32_t i = static_cast<std::uint32_t>(tokens_[h]) - first;
      if (i < count) use(i, -1);
    }
  }

 private:
  const std::int32_t* tokens_;
  std::int64_t next_ = 0;
  std::int64_t end_ = 0;
  std::int32_t kept_[kKept];
};

template <class Stored>
__global__ void __launch_bounds__(kThreads) overlay_rows_kernel(const __grid_constant__ mark_args args) {
  join_chain();
  const core::sample_request& request = args.request;
  const sample_params& params = request.params;
  const row_overlay& overlay = args.overlay;
  const auto pieces = static_cast<std::uint32_t>(overlay.pieces);
  const std::int64_t of_turn = blockIdx.x >> shift_of(pieces);
  const std::int64_t row = args.first_row + of_turn;
  const auto vocab = static_cast<std::uint32_t>(request.logits.cols);
  const std::uint32_t all_words = (vocab + kWordBits - 1) / kWordBits;
  const std::uint32_t first_word = min((blockIdx.x & (pieces - 1)) * overlay.piece_words, all_words);
  const std::uint32_t words = min(overlay.piece_words, all_words - first_word);
  const std::uint32_t first = first_word * kWordBits;
  const std::uint32_t count = min(words * kWordBits, vocab - min(first, vocab));
  std::uint32_t* plain = args.plain + of_turn * overlay.plain_stride + first_word;
  if (!args.changed) {
    for (std::uint32_t w = threadIdx.x; w < words; w += kThreads)
      plain[w] = allowed_word(params.allowed, row, first + w * kWordBits, count - w * kWordBits);
    return;
  }

  std::uint32_t* changed = args.changed + of_turn * overlay.changed_stride + first_word;
  float* values = overlay.values + of_turn * overlay.values_stride + first;
  auto* touched = reinterpret_cast<std::uint32_t*>(dynamic_shared());  // tokens of the history,
  std::uint32_t* generated = touched + overlay.piece_words;            // and of those, which are generated
  __shared__ std::uint32_t total;
  __shared__ std::uint32_t listed;
  const core::penalties by{core::value_for(params.repetition_penalty, row),
                           core::value_for(params.presence_penalty, row),
                           core::value_for(params.frequency_penalty, row)};
  const bool counts = by.frequency != 0.0f;
  auto* counted = reinterpret_cast<std::uint32_t*>(values);
  const auto bit_of = [](std::uint32_t i) { return 1u << i % kWordBits; };
  history_tokens of_prompt(params.prompt, row);
  history_tokens of_generated(params.generated, row);
  if (threadIdx.x == 0) total = listed = 0;
  for (std::uint32_t w = threadIdx.x; w < words; w += kThreads) touched[w] = generated[w] = 0;
  of_prompt.load();
  of_generated.load();
  const Stored* logits = static_cast<const Stored*>(request.logits.data) + row * request.logits.row_stride + first;
  Stored x_of_prompt[history_tokens::kKept];
  Stored x_of_generated[history_tokens::kKept];
  of_prompt.for_each(first, count, [&](std::uint32_t i, int slot) {
    if (slot >= 0) x_of_prompt[slot] = logits[i];
  });
  of_generated.for_each(first, count, [&](std::uint32_t i, int slot) {
    if (slot >= 0) x_of_generated[slot] = logits[i];
  });
  __syncthreads();
  of_prompt.for_each(first, count, [&](std::uint32_t i, int) { atomicOr(&touched[i / kWordBits], bit_of(i)); });
  of_generated.for_each(first, count, [&](std::uint32_t i, int) {
    const bool is_first = (atomicOr(&generated[i / kWordBits], bit_of(i)) & bit_of(i)) == 0;
    if (counts && is_first) counted[i] = 0;
  });
  __syncthreads();
  if (counts) of_generated.for_each(first, count, [&](std::uint32_t i, int) { atomicAdd(&counted[i], 1u); });
  std::uint32_t mine = 0;
  for (std::uint32_t w = threadIdx.x; w < words; w += kThreads) {
    const std::uint32_t allowed = allowed_word(params.allowed, row, first + w * kWordBits, count - w * kWordBits);
    const std::uint32_t of_history = touched[w] | generated[w];
    plain[w] = allowed & ~of_history;
    changed[w] = allowed & of_history;
    touched[w] = allowed & of_history;  // of which none is taken
    mine += __popc(allowed & of_history);
  }
  mine = __reduce_add_sync(kFullWarp, mine);
  if (threadIdx.x % kWarp == 0 && mine > 0) atomicAdd(&total, mine);
  __syncthreads();
  const bool lists = total <= overlay.list_room;
  const std::int64_t piece = blockIdx.x;
  if (threadIdx.x == 0) overlay.counts[piece] = total;
  changed_logit* list = overlay.lists + piece * overlay.list_room;
  const auto change = [&](std::uint32_t i, Stored x) {
    if ((atomicAnd(&touched[i / kWordBits], ~bit_of(i)) & bit_of(i)) == 0) return;
    const bool is_generated = (generated[i / kWordBits] & bit_of(i)) != 0;
    const std::uint32_t times = !is_generated ? 0 : counts ? __ldcg(&counted[i]) : 1;
    const float value = core::penalized(core::widen(x), static_cast<std::int32_t>(times), by);
    if (lists)
      list[atomicAdd(&listed, 1u)] = {first + i, value};
    else
      values[i] = value;
  };
  of_prompt.for_each(first, count,
                     [&](std::uint32_t i, int slot) { change(i, slot >= 0 ? x_of_prompt[slot] : logits[i]); });
  of_generated.for_each(first, count,
                        [&](std::uint32_t i, int slot) { change(i, slot >= 0 ? x_of_generated[slot] : logits[i]); });
}

void launch_overlay_rows(cudaStream_t stream, const mark_args& args, std::int64_t rows) {
  launch_shape shape;
  shape.grid = dim3(static_cast<unsigned>(rows * args.overlay.pieces));
  shape.threads = kThreads;
  shape.shared_bytes = args.changed ? 2 * std::int64_t{args.overlay.piece_words} * 4 : 0;
  shape.overlaps = true;
  by_stored_type(args.request.logits.type, [&](auto stored) {
    launch(overlay_rows_kernel<decltype(stored)>, shape, stream, args, "marking what changes of rows of logits");
  });
}

}  // namespace

bool overlay_serves(const core::sample_request& request) {
  const bool neighbours = request.logits.col_stride == 1 || request.logits.cols == 1;
  return neighbours && !request.params.bias.values && counts_alone(request) && count_sample_serves_overlay(request);
}

void sample_under_overlay(cudaStream_t stream, const core::sample_request& request, int multiprocessors) {
  const value_matrix& logits = request.logits;
  const sample_params& params = request.params;
  const token_mask& mask = params.allowed;
  const bool has_history = params.prompt.begins || params.generated.begins;
  mark_args args{.request = request};
  row_overlay& overlay = args.overlay;
  overlay.pieces = overlaid_pieces(request, multiprocessors);
  if (!has_history && mask.kind == mask_kind::bits) {
    overlay.plain = static_cast<const std::uint32_t*>(mask.data);
    overlay.plain_stride = mask.row_stride;
    return launch_count_sample(stream, request, &overlay, multiprocessors);
  }
  const auto whole_units = [](std::int64_t count) { return (count + 3) / 4 * 4; };  // of 16 bytes
  const std::int64_t words = whole_units((logits.cols + kWordBits - 1) / kWordBits);
  const std::int64_t piece_words = (words + overlay.pieces - 1) / overlay.pieces;
  const std::int64_t list_room = whole_units(piece_words * kWordBits / kListShare);
  const std::int64_t list_words = overlay.pieces * list_room * 2;
  const std::int64_t values_stride = whole_units(logits.cols);
  const std::int64_t row_words = has_history ? list_words + values_stride + 2 * words + overlay.pieces : words;
  const std::int64_t at_once = std::clamp(kMemoryBytes / (row_words * 4), std::int64_t{1}, logits.rows);
  const stream_memory memory(stream, at_once * row_words * 4);
  auto* next = static_cast<std::uint32_t*>(memory.data());
  const auto take = [&](std::int64_t words_of_row) { return std::exchange(next, next + at_once * words_of_row); };
  overlay.piece_words = static_cast<std::uint32_t>(piece_words);
  overlay.plain = args.plain = take(words);
  overlay.plain_stride = words;
  if (has_history) {
    overlay.lists = reinterpret_cast<changed_logit*>(take(list_words));
    overlay.list_room = static_cast<std::uint32_t>(list_room);
    overlay.values = reinterpret_cast<float*>(take(values_stride));
    overlay.values_stride = values_stride;
    overlay.changed = args.changed = take(words);
    overlay.changed_stride = words;
    overlay.counts = take(overlay.pieces);
  }
  for (; args.first_row < logits.rows; args.first_row += at_once) {
    const std::int64_t rows = std::min(at_once, logits.rows - args.first_row);
    launch_overlay_rows(stream, args, rows);
    const auto* from =
        static_cast<const std::byte*>(logits.data) + args.first_row * logits.row_stride * size_bytes(logits.type);
    const value_matrix of_turn(from, logits.type, rows, logits.cols, logits.row_stride);
    launch_count_sample(stream, plain_rows(request, of_turn, args.first_row), &overlay, multiprocessors);
  }
}

}  // namespace shortlist::cuda
