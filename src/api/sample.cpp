// Sampling: arguments are checked here, once; then the stream's backend does the work.
#include "shortlist/sample.hpp"

#include <fmt/format.h>

#include <cmath>
#include <string_view>

#include "api/checks.hpp"
#include "api/registry.hpp"
#include "core/backend.hpp"
#include "core/message.hpp"
#include "core/plan.hpp"
#include "index/checks.hpp"
#include "reference/sample.hpp"

namespace shortlist {
namespace {

constexpr std::int64_t kMaskWordBits = 32;

void check_type(std::string_view argument, value_type type) {
  if (type == value_type::f32 || type == value_type::f16 || type == value_type::bf16) return;
  constexpr std::string_view kAllowed = "f32, f16 or bf16";
  if (type == value_type::f64) core::throw_invalid(argument, "f64", kAllowed);
  core::throw_invalid(argument, static_cast<std::int64_t>(type), kAllowed);
}

void check_vocab(std::string_view argument, std::int64_t vocab) {
  if (vocab < 1 || vocab > kMaxVocab) core::throw_invalid(argument, vocab, fmt::format("1 to {}", kMaxVocab));
}

void check_logits(const value_matrix& logits) {
  check_type("logits.type", logits.type);
  check_vocab("logits.cols", logits.cols);
  api::check_layout("logits", logits);
}

/// A value that all rows share; those of an array are looked at when the work runs.
template <class Holds>
void check_common(std::string_view argument, const per_row<float>& value, Holds holds, std::string_view allowed) {
  if (!value.rows && !holds(value.common)) core::throw_invalid(argument, fmt::format("{}", value.common), allowed);
}

void check_parameters(const sample_params& params) {
  const auto is_finite = [](float x) { return std::isfinite(x); };
  check_common(
      "temperature", params.temperature, [](float x) { return std::isfinite(x) && x >= 0.0f; },
      "0 or more, and finite");
  check_common(
      "top_p", params.top_p, [](float x) { return !std::isnan(x); }, "any number");
  check_common(
      "min_p", params.min_p, [](float x) { return x >= 0.0f && x <= 1.0f; }, "0 to 1");
  check_common(
      "repetition_penalty", params.repetition_penalty, [](float x) { return std::isfinite(x) && x > 0.0f; },
      "above 0, and finite");
  check_common("presence_penalty", params.presence_penalty, is_finite, "any finite number");
  check_common("frequency_penalty", params.frequency_penalty, is_finite, "any finite number");
  if (params.min_p_order != min_p_order::last && params.min_p_order != min_p_order::first) {
    core::throw_invalid("min_p_order", static_cast<std::int64_t>(params.min_p_order), "last or first");
  }
}

void check_token_rows(std::string_view argument, const token_rows& rows) {
  if (rows.begins && !rows.tokens) {
    core::throw_invalid(fmt::format("{}.tokens", argument), "null", fmt::format("an array, as {}.begins is", argument));
  }
  if (rows.tokens && !rows.begins) {
    core::throw_invalid(fmt::format("{}.begins", argument), "null", fmt::format("an array, as {}.tokens is", argument));
  }
}

/// Only where the CPU can read them.
void check_begins(std::string_view argument, const token_rows& rows, std::int64_t count) {
  if (!rows.begins) return;
  std::int64_t least = 0;
  for (std::int64_t row = 0; row <= count; ++row) {
    if (rows.begins[row] < least) {
      core::throw_invalid(fmt::format("{}.begins[{}]", argument, row), rows.begins[row],
                          fmt::format("{} or more: begins do not decrease", least));
    }
    least = rows.begins[row];
  }
}

/// A stride of 0, which all rows share, or one that a row of `row_elements` fits.
void check_row_stride(std::string_view argument, std::int64_t stride, std::int64_t rows, std::int64_t row_elements) {
  if (stride != 0 && stride < row_elements) {
    core::throw_invalid(argument, stride, fmt::format("0, or {} or more, which is a row", row_elements));
  }
  if (!api::is_addressable(rows, stride, static_cast<double>(row_elements), sizeof(float))) {
    core::throw_invalid(argument, stride, fmt::format("one with which 2^60 bytes hold {} rows", rows));
  }
}

void check_bias(const logit_bias& bias, const value_matrix& logits) {
  if (bias.values) check_row_stride("bias.row_stride", bias.row_stride, logits.rows, logits.cols);
}

void check_mask(const token_mask& mask, const value_matrix& logits) {
  if (mask.kind != mask_kind::bytes && mask.kind != mask_kind::bits) {
    core::throw_invalid("allowed.kind", static_cast<std::int64_t>(mask.kind), "bytes or bits");
  }
  const std::int64_t row_elements =
      mask.kind == mask_kind::bytes ? logits.cols : (logits.cols + kMaskWordBits - 1) / kMaskWordBits;
  if (mask.data) check_row_stride("allowed.row_stride", mask.row_stride, logits.rows, row_elements);
}

void check_output(const value_matrix& logits, const sample_output& out) {
  if (out.tokens_as != index_type::i32 && out.tokens_as != index_type::i64) {
    core::throw_invalid("out.tokens_as", static_cast<std::int64_t>(out.tokens_as), "i32 or i64");
  }
  if (!out.tokens && logits.rows > 0) {
    core::throw_invalid("out.tokens", "null", fmt::format("an array of {} tokens", logits.rows));
  }
  if (out.top_n < 0 || out.top_n > kMaxTopLogprobs) {
    core::throw_invalid("out.top_n", out.top_n, fmt::format("0 to {}", kMaxTopLogprobs));
  }
  if (out.top_n == 0 && (out.top_tokens || out.top_logprobs)) {
    core::throw_invalid("out.top_n", out.top_n, "1 or more beside out.top_tokens or out.top_logprobs");
  }
  if (out.top_n > 0 && logits.rows > 0 && !out.top_tokens && !out.top_logprobs) {
    core::throw_invalid("out.top_n", out.top_n, "0 without out.top_tokens and out.top_logprobs");
  }
  if (!api::is_addressable(logits.rows, out.top_n, 0.0, sizeof(float))) {
    core::throw_invalid("out.top_n", out.top_n, fmt::format("one with which 2^60 bytes hold {} rows", logits.rows));
  }
}

void check_arguments(const value_matrix& logits, const sample_params& params, const sample_output& out) {
  check_logits(logits);
  check_parameters(params);
  check_token_rows("prompt", params.prompt);
  check_token_rows("generated", params.generated);
  check_bias(params.bias, logits);
  check_mask(params.allowed, logits);
  check_output(logits, out);
}

void check_host_arrays(const value_matrix& logits, const sample_params& params) {
  check_begins("prompt", params.prompt, logits.rows);
  check_begins("generated", params.generated, logits.rows);
}

}  // namespace

void sample(const stream& s, const value_matrix& logits, const sample_params& params, const sample_output& out) {
  check_arguments(logits, params, out);
  if (logits.rows == 0) return;
  if (s.where().kind() == device_kind::cpu) check_host_arrays(logits, params);
  index::with_host_memory(
      [&] { core::backend_of(s.where()).sample(s.native(), {.logits = logits, .params = params, .out = out}); });
}

void reference_sample(const value_matrix& logits, const sample_params& params, const sample_output& out) {
  check_arguments(logits, params, out);
  if (logits.rows == 0) return;
  check_host_arrays(logits, params);
  index::with_host_memory([&] { reference::sample(logits, params, out); });
}

std::string explain(device where, const sample_shape& shape) {
  if (shape.rows < 1) core::throw_invalid("shape.rows", shape.rows, "1 or more");
  check_vocab("shape.vocab", shape.vocab);
  check_type("shape.type", shape.type);
  return core::explain_sample(where.kind(), where.description(), shape);
}

}  // namespace shortlist
