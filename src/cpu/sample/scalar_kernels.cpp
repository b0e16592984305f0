// Sampling kernels in plain loops.
#include <algorithm>

#include "core/sampling.hpp"
#include "cpu/sample/kernels.hpp"

namespace shortlist::cpu {
namespace {

template <class Stored>
void widen(const void* values, std::int64_t count, float* out) {
  const auto* from = static_cast<const Stored*>(values);
  for (std::int64_t i = 0; i < count; ++i) out[i] = core::widen(from[i]);
}

void add_bias(float* logits, std::int64_t count, const float* bias) {
  for (std::int64_t i = 0; i < count; ++i) logits[i] = core::add_once(logits[i], bias[i]);
}

void mask_bytes(float* logits, std::int64_t count, const std::uint8_t* allowed) {
  for (std::int64_t i = 0; i < count; ++i) {
    if (allowed[i] == 0) logits[i] = kMinusInfinity;
  }
}

void mask_bits(float* logits, std::int64_t count, const std::uint32_t* allowed) {
  for (std::int64_t i = 0; i < count; ++i) {
    if ((allowed[i / 32] >> (i % 32) & 1u) == 0) logits[i] = kMinusInfinity;
  }
}

template <class Stored>
bool scan(const void* values, std::int64_t count, std::int64_t block, float* maxima) {
  const auto* from = static_cast<const Stored*>(values);
  bool has_nan = false;
  for (std::int64_t first = 0; first < count; first += block) {
    float most = kMinusInfinity;
    for (std::int64_t i = first; i < std::min(count, first + block); ++i) {
      const float logit = core::widen(from[i]);
      has_nan |= logit != logit;
      most = std::max(most, logit);
    }
    *maxima++ = most;
  }
  return has_nan;
}

template <class Stored>
std::int64_t count_from(const void* values, std::int64_t count, float from) {
  const auto* row = static_cast<const Stored*>(values);
  return std::count_if(row, row + count, [=](Stored value) { return core::widen(value) >= from; });
}

template <class Stored>
std::int64_t collect(const void* values, std::int64_t count, float from, float below, std::uint32_t first_id,
                     std::uint64_t* out) {
  const auto* row = static_cast<const Stored*>(values);
  std::int64_t found = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const float logit = core::widen(row[i]);
    if (logit >= from && !(logit >= below)) {
      out[found++] = logit_and_id(logit, first_id + static_cast<std::uint32_t>(i));
    }
  }
  return found;
}

float exponent_in(float logit, const weight_scale& scale) {
  return core::exponent_of(logit, scale.largest, scale.steepness);
}

template <class Stored>
std::uint64_t weigh(const void* values, std::int64_t count, float from, const weight_scale& scale) {
  const auto* row = static_cast<const Stored*>(values);
  const float least = std::max(from, scale.lightest);
  std::uint64_t sum = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const float logit = core::widen(row[i]);
    if (logit >= least) sum += core::weight_of(exponent_in(logit, scale));
  }
  return sum;
}

template <class Stored>
std::uint64_t fill_bins(const void* values, std::int64_t count, float from, const weight_scale& scale,
                        std::uint64_t* sums) {
  const auto* row = static_cast<const Stored*>(values);
  const float least = std::max(from, scale.lightest);
  std::uint64_t others = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const float logit = core::widen(row[i]);
    if (!(logit >= scale.lightest)) continue;
    const float t = exponent_in(logit, scale);
    std::uint64_t& sum = logit >= least ? sums[bin_of(t)] : others;
    sum += core::weight_of(t);
  }
  return others;
}

void weigh_each(const float* logits, std::int64_t count, const weight_scale& scale, std::uint64_t* weights) {
  for (std::int64_t i = 0; i < count; ++i) weights[i] = core::weight_of(exponent_in(logits[i], scale));
}

constexpr sample_kernels kScalarKernels = {
    {widen<float>, widen<float16>, widen<bfloat16>},
    add_bias,
    mask_bytes,
    mask_bits,
    {scan<float>, scan<float16>, scan<bfloat16>},
    {count_from<float>, count_from<float16>, count_from<bfloat16>},
    {collect<float>, collect<float16>, collect<bfloat16>},
    {weigh<float>, weigh<float16>, weigh<bfloat16>},
    {fill_bins<float>, fill_bins<float16>, fill_bins<bfloat16>},
    weigh_each,
};

}  // namespace

const sample_kernels& scalar_sample_kernels() { return kScalarKernels; }

const sample_kernels& current_sample_kernels() {
  const isa which = current_isa();
  return which == isa::scalar ? scalar_sample_kernels() : simd_sample_kernels(which);
}

}  // namespace shortlist::cpu
