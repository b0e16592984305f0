#include "cpu/sample/open.hpp"

#include <algorithm>
#include <span>

namespace shortlist::cpu {
namespace {

constexpr std::int64_t kChunk = 4096;  // logits that are widened, biased and masked while they are in the first cache

/// A row of the request before any step.
struct raw_row {
  const core::sample_request& request;
  std::int64_t row;

  const std::byte* data() const {
    const value_matrix& logits = request.logits;
    return static_cast<const std::byte*>(logits.data) + row * logits.row_stride * size_bytes(logits.type);
  }
  const float* bias() const {
    const logit_bias& bias = request.params.bias;
    return bias.values ? bias.values + row * bias.row_stride : nullptr;
  }
  /// The row's mask, as the words or bytes of type T.
  template <class T>
  const T* mask() const {
    const token_mask& mask = request.params.allowed;
    return static_cast<const T*>(mask.data) + row * mask.row_stride;
  }
  std::span<const std::int32_t> tokens(const token_rows& of) const {
    if (!of.begins) return {};
    return {of.tokens + of.begins[row], of.tokens + of.begins[row + 1]};
  }
};

float logit_at(const raw_row& raw, std::int64_t id) {
  return widened(raw.data(), raw.request.logits.type, id * raw.request.logits.col_stride);
}

bool is_allowed(const raw_row& raw, std::int64_t id) {
  const token_mask& mask = raw.request.params.allowed;
  if (!mask.data) return true;
  if (mask.kind == mask_kind::bytes) return raw.mask<std::uint8_t>()[id] != 0;
  return (raw.mask<std::uint32_t>()[id / 32] >> (id % 32) & 1u) != 0;
}

void widen_chunk(const raw_row& raw, const sample_kernels& kernels, std::int64_t first, std::int64_t count,
                 float* logits) {
  const value_matrix& matrix = raw.request.logits;
  if (matrix.col_stride != 1) {
    for (std::int64_t i = 0; i < count; ++i) logits[i] = logit_at(raw, first + i);
    return;
  }
  kernels.widen[static_cast<std::size_t>(matrix.type)](raw.data() + first * size_bytes(matrix.type), count, logits);
}

void mask_chunk(const raw_row& raw, const sample_kernels& kernels, std::int64_t first, std::int64_t count,
                float* logits) {
  static_assert(kChunk % 32 == 0, "chunks of a mask of bits start at whole words");
  if (raw.request.params.allowed.kind == mask_kind::bytes) {
    kernels.mask_bytes(logits, count, raw.mask<std::uint8_t>() + first);
  } else {
    kernels.mask_bits(logits, count, raw.mask<std::uint32_t>() + first / 32);
  }
}

/// Writes the penalised logits of the row's history over those that have none. Each token is computed from its own
/// logit, so it does not matter that some are there more than once.
void penalize(const raw_row& raw, const core::penalties& by, sample_scratch& memory, float* logits) {
  constexpr std::int32_t kDone = -1;
  const std::int64_t vocab = raw.request.logits.cols;
  const auto generated = raw.tokens(raw.request.params.generated);
  const auto prompt = raw.tokens(raw.request.params.prompt);
  const float* bias = raw.bias();
  std::int32_t* counts = memory.counts(vocab);
  const auto is_token = [=](std::int32_t id) { return id >= 0 && id < vocab; };
  const auto apply = [&](std::int32_t id) {
    if (!is_token(id) || counts[id] == kDone) return;
    const float x = core::penalized(logit_at(raw, id), counts[id], by);
    if (is_allowed(raw, id)) logits[id] = bias ? core::add_once(x, bias[id]) : x;
    counts[id] = kDone;
  };
  for (const std::int32_t id : generated) {
    if (is_token(id)) ++counts[id];
  }
  for (const std::int32_t id : generated) apply(id);
  for (const std::int32_t id : prompt) apply(id);
  for (const auto& tokens : {generated, prompt}) {
    for (const std::int32_t id : tokens) {
      if (is_token(id)) counts[id] = 0;
    }
  }
}

bool change_nothing(const core::penalties& by) {
  return by.repetition == 1.0f && by.presence == 0.0f && by.frequency == 0.0f;
}

template <class Stored>
float value_at(const std::byte* data, std::int64_t element) {
  return core::widen(reinterpret_cast<const Stored*>(data)[element]);
}

}  // namespace

float widened(const std::byte* logits, value_type type, std::int64_t element) {
  switch (type) {
    case value_type::f16: return value_at<float16>(logits, element);
    case value_type::bf16: return value_at<bfloat16>(logits, element);
    default: return value_at<float>(logits, element);
  }
}

open_row open(const core::sample_request& request, const sample_kernels& kernels, std::int64_t row,
              const core::penalties& by, sample_scratch& memory) {
  const raw_row raw{request, row};
  const value_matrix& matrix = request.logits;
  const sample_params& params = request.params;
  const bool has_history = !change_nothing(by) && (params.prompt.begins || params.generated.begins);
  if (matrix.col_stride == 1 && !has_history && !params.bias.values && !params.allowed.data) {
    return {raw.data(), matrix.type, matrix.cols};
  }
  float* logits = memory.logits(matrix.cols);
  for (std::int64_t first = 0; first < matrix.cols; first += kChunk) {
    const std::int64_t count = std::min(kChunk, matrix.cols - first);
    widen_chunk(raw, kernels, first, count, logits + first);
    if (params.bias.values) kernels.add_bias(logits + first, count, raw.bias() + first);
    if (params.allowed.data) mask_chunk(raw, kernels, first, count, logits + first);
  }
  if (has_history) penalize(raw, by, memory, logits);
  return {reinterpret_cast<const std::byte*>(logits), value_type::f32, matrix.cols};
}

}  // namespace shortlist::cpu
