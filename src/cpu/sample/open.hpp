// A row's logits as sampling looks at them: penalised, biased and masked, side by side.
#pragma once

#include "core/backend.hpp"
#include "core/sampling.hpp"
#include "cpu/sample/kernels.hpp"
#include "cpu/sample/scratch.hpp"

namespace shortlist::cpu {

/// One of an array of logits, as fp32.
float widened(const std::byte* logits, value_type type, std::int64_t element);

/// Logits side by side, at `data`.
struct open_row {
  const std::byte* data;
  value_type type;
  std::int64_t vocab;

  const void* from(std::int64_t id) const { return data + id * size_bytes(type); }
  float logit(std::int64_t id) const { return widened(data, type, id); }
};

/// Steps 1 to 3 of docs/sampling.md. A row that they leave as it is, and that has no column stride, is used in place;
/// others are widened into memory.logits().
open_row open(const core::sample_request& request, const sample_kernels& kernels, std::int64_t row,
              const core::penalties& by, sample_scratch& memory);

}  // namespace shortlist::cpu
