// Sampling: one token of every row of logits, after penalties, temperature, top k, top p and min p.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

#include "shortlist/device.hpp"
#include "shortlist/top_k.hpp"
#include "shortlist/types.hpp"

namespace shortlist {

/// A parameter that all rows share, or one value a row: an array [rows] on the device of the logits, read when the work
/// runs, not when the call returns.
template <class T>
struct per_row {
  T common{};
  const T* rows = nullptr;  ///< if not null, `common` is not looked at

  constexpr per_row() = default;
  constexpr per_row(T common) : common(common) {}  // NOLINT(google-explicit-constructor): `.top_k = 50`
  template <class Pointer>                         // deduced, so that a literal 0 is a value
  requires std::is_same_v<Pointer, const T*> || std::is_same_v<Pointer, T*>
  constexpr per_row(Pointer rows) : common(), rows(rows) {}  // NOLINT(google-explicit-constructor)
};

/// Tokens that belong to each row, as compressed rows: row r has tokens[begins[r], begins[r + 1]). Ids outside the
/// vocabulary are ignored, so that rows may be padded with -1. Null `begins`: no tokens; `tokens` may be null where
/// there are none. Both arrays are on the device of the logits.
struct token_rows {
  const std::int64_t* begins = nullptr;  ///< [rows + 1], not decreasing
  const std::int32_t* tokens = nullptr;
};

/// Added to the logits: [rows, vocab] fp32, `row_stride` elements from one row to the next; 0: all rows share one.
struct logit_bias {
  const float* values = nullptr;  ///< null: no bias
  std::int64_t row_stride = 0;
};

/// How a mask of allowed tokens is stored: a byte a token, or a bit a token in 32-bit words, the least significant bit
/// first.
enum class mask_kind : std::uint8_t { bytes, bits };

/// The tokens that may be drawn: those whose byte or bit is not 0.
struct token_mask {
  const void* data = nullptr;  ///< null: all tokens; bytes: [rows, vocab]; bits: [rows, ceil(vocab / 32)] words
  mask_kind kind = mask_kind::bytes;
  std::int64_t row_stride = 0;  ///< in bytes or words; 0: all rows share one
};

/// When min_p applies: after top_k and top_p, or before both.
enum class min_p_order : std::uint8_t { last, first };

/// How a token is drawn. The steps, in this order: penalties, bias, mask, temperature, top_k, top_p, min_p, draw; each
/// is defined to the last bit in docs/sampling.md.
struct sample_params {
  per_row<float> temperature = 1.0f;  ///< 0 or more; 0 takes the best token (greedy)
  per_row<std::int32_t> top_k = 0;    ///< the k best remain; below 1, or from the vocabulary's size on: off
  per_row<float> top_p = 1.0f;        ///< the fewest best that hold this share remain; 1 or more: off; <= 0: the best
  per_row<float> min_p = 0.0f;        ///< in [0, 1]: what has this share of the best one's probability remains; 0: off
  per_row<std::uint64_t> seed = std::uint64_t{0};    ///< key of the generator
  per_row<std::uint64_t> offset = std::uint64_t{0};  ///< its counter: another number for every token of a sequence
  shortlist::min_p_order min_p_order = shortlist::min_p_order::last;

  per_row<float> repetition_penalty = 1.0f;  ///< > 0; of tokens in `prompt` or `generated`
  per_row<float> presence_penalty = 0.0f;    ///< of tokens in `generated`
  per_row<float> frequency_penalty = 0.0f;   ///< the same, for each time they are there
  token_rows prompt = {};
  token_rows generated = {};
  logit_bias bias = {};
  token_mask allowed = {};
};

/// What became of a row.
enum class sample_status : std::uint8_t {
  ok,
  nan_logit,        ///< an allowed token's logit is NaN, or became NaN by penalties or bias
  nothing_allowed,  ///< every token is masked, or at -inf
  bad_parameter,    ///< a parameter of this row is outside of what sample_params allows
};

/// Where the tokens go; all arrays are on the device of the logits. A row whose status is not ok has token -1 and 0
/// kept tokens, its log-probabilities are NaN and its top tokens -1; other rows are not affected.
struct sample_output {
  void* tokens = nullptr;  ///< [rows] of `tokens_as`
  index_type tokens_as = index_type::i32;
  sample_status* status = nullptr;  ///< [rows], or null
  float* logprobs = nullptr;        ///< [rows], or null: of the token, natural, after temperature, before all filters
  std::int32_t* kept = nullptr;     ///< [rows], or null: how many tokens the filters left
  std::int32_t top_n = 0;           ///< how many best tokens of each row to return, with their log-probabilities
  std::int32_t* top_tokens = nullptr;  ///< [rows, top_n]: best first, ties by the smaller id; padded with -1
  float* top_logprobs = nullptr;       ///< [rows, top_n], padded with -inf
};

inline constexpr std::int64_t kMaxVocab = (std::int64_t{1} << 23) - 1;  ///< sums of so many weights fit 63 bits
inline constexpr std::int32_t kMaxTopLogprobs = 512;

/// Draws one token of every row.
///
/// A row's token depends on nothing but its logits, its parameters, its seed and its offset, not on the rows around it,
/// the device or the instruction set.
///
/// @param s       the stream; its device holds all arrays. The CPU has finished when the call returns; a GPU has not,
///                and the call does not wait for it. It can be captured in a CUDA graph.
/// @param logits  [rows, vocab] of f32, f16 or bf16, any strides of 1 or more.
/// @throws invalid_argument if the logits are f64, vocab is not in [1, kMaxVocab], a common parameter is outside of
///         what sample_params allows, a pointer is missing, a stride is wrong; on the CPU also if `begins` descend.
/// @throws cuda_error if a launch fails, or the GPU has no scratch memory left, of which rows that penalties, a bias or
///         a mask change take up to 7 bytes a logit, 256 MiB at most.
/// Cost: one read of the logits; where they are changed, often a copy of them, too: docs/kernels.md, "Sampling".
/// Definition, to the last bit: docs/sampling.md.
void sample(const stream& s, const value_matrix& logits, const sample_params& params, const sample_output& out);

/// The oracle: what sample returns on any device, by the definition, a full sort and plain loops, on one core of the
/// CPU.
/// @throws what sample throws for arrays on the CPU.
void reference_sample(const value_matrix& logits, const sample_params& params, const sample_output& out);

/// The shape of a sampling step, for choosing an algorithm before any data is there.
struct sample_shape {
  std::int64_t rows = 0;
  std::int64_t vocab = 0;
  value_type type = value_type::f32;
  std::int32_t top_k = 0;  ///< of all rows; 0: off, or a value a row
};

/// For people: the algorithm for this shape on this device, why, and the bytes it moves.
/// @throws invalid_argument if rows < 1 or vocab is not in [1, kMaxVocab], or SHORTLIST_FORCE_SAMPLE names no
/// algorithm.
std::string explain(device where, const sample_shape& shape);

}  // namespace shortlist
