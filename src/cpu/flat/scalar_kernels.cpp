// Flat search without vector instructions: the definition, row by row.
//
// For processors without fused multiply-add in their vectors, and as the plain form of the vector kernels. std::fma
// rounds once everywhere, in software where the processor cannot.
#include "core/score.hpp"
#include "cpu/flat/kernels.hpp"

namespace shortlist::cpu {
namespace {

using core::kPartialSums;

std::int64_t padded(std::int64_t dim) { return (dim + kPartialSums - 1) / kPartialSums * kPartialSums; }

struct dot_step {
  static float next(float query, float row, float sum) { return core::step_dot(query, row, sum); }
};
struct l2_step {
  static float next(float query, float row, float sum) { return core::step_l2(query, row, sum); }
};

template <class Step, class Query, class T>
float sum_of(const Query* query, const T* row, std::int64_t dim) {
  float p[kPartialSums] = {};
  for (std::int64_t i = 0; i < dim; ++i) {
    float& sum = p[i % kPartialSums];
    sum = Step::next(core::widen(query[i]), core::widen(row[i]), sum);
  }
  for (int s = kPartialSums / 2; s > 0; s /= 2) {
    for (int j = 0; j < s; ++j) p[j] += p[j + s];
  }
  return p[0];
}

template <class Step, class T>
void row_sums(const float* query, row_span rows, std::int64_t dim, float* sums) {
  for (std::int64_t i = 0; i < rows.count; ++i) {
    sums[i] = sum_of<Step>(query, reinterpret_cast<const T*>(rows.data + i * rows.stride_bytes), dim);
  }
}

template <class Step, class T>
void scattered_sums(const float* query, scattered_rows rows, std::int64_t dim, float* sums) {
  for (std::int64_t i = 0; i < rows.count; ++i) {
    sums[i] = sum_of<Step>(query, reinterpret_cast<const T*>(rows.rows[i]), dim);
  }
}

template <class T>
void square_sums(row_span rows, std::int64_t dim, float* sums) {
  for (std::int64_t i = 0; i < rows.count; ++i) {
    const T* row = reinterpret_cast<const T*>(rows.data + i * rows.stride_bytes);
    sums[i] = sum_of<dot_step>(row, row, dim);
  }
}

template <class T>
void pack_rows(row_span rows, std::int64_t dim, float* packed) {
  for (std::int64_t r = 0; r < rows.count; ++r) {
    const T* row = reinterpret_cast<const T*>(rows.data + r * rows.stride_bytes);
    for (std::int64_t i = 0; i < dim; ++i) packed[r * padded(dim) + i] = core::widen(row[i]);
  }
}

void pack_queries(const float* queries, std::int64_t stride, std::int64_t count, std::int64_t dim, float* packed) {
  for (std::int64_t q = 0; q < count; ++q) {
    for (std::int64_t i = 0; i < dim; ++i) packed[q * padded(dim) + i] = queries[q * stride + i];
  }
}

template <class Step>
void tile_sums(const float* packed_queries, const float* packed_rows, std::int64_t rows, std::int64_t dim, fetch_ahead,
               float* sums) {
  for (std::int64_t r = 0; r < rows; ++r) sums[r] = sum_of<Step>(packed_queries, packed_rows + r * padded(dim), dim);
}

template <metric By>
void collect(const scored_rows& rows, candidates& found) {
  for (std::int64_t i = 0; i < rows.count; ++i) {
    float score = rows.sums[i];
    if constexpr (By == metric::cosine) {
      score = core::cosine_score(score, rows.query_inverse_norm, rows.inverse_norms[i]);
    }
    const std::uint32_t key = core::score_key(score, By);
    if (key >= found.min_key) {
      found.keys[found.size++] = core::row_key(key, rows.first + static_cast<std::uint32_t>(i));
    }
  }
}

}  // namespace

const flat_kernels& scalar_flat_kernels() {
  static constexpr flat_kernels kKernels = {
      .tile_queries = 1,
      .row_sums = {{row_sums<dot_step, float>, row_sums<l2_step, float>},
                   {row_sums<dot_step, float16>, row_sums<l2_step, float16>},
                   {row_sums<dot_step, bfloat16>, row_sums<l2_step, bfloat16>},
                   {row_sums<dot_step, std::int8_t>, row_sums<l2_step, std::int8_t>},
                   {row_sums<dot_step, std::uint8_t>, row_sums<l2_step, std::uint8_t>}},
      .scattered_sums = {{scattered_sums<dot_step, float>, scattered_sums<l2_step, float>},
                         {scattered_sums<dot_step, float16>, scattered_sums<l2_step, float16>},
                         {scattered_sums<dot_step, bfloat16>, scattered_sums<l2_step, bfloat16>},
                         {scattered_sums<dot_step, std::int8_t>, scattered_sums<l2_step, std::int8_t>},
                         {scattered_sums<dot_step, std::uint8_t>, scattered_sums<l2_step, std::uint8_t>}},
      .square_sums = {square_sums<float>, square_sums<float16>, square_sums<bfloat16>, square_sums<std::int8_t>,
                      square_sums<std::uint8_t>},
      .pack_rows = {pack_rows<float>, pack_rows<float16>, pack_rows<bfloat16>, pack_rows<std::int8_t>,
                    pack_rows<std::uint8_t>},
      .pack_queries = pack_queries,
      .tile_sums = {tile_sums<dot_step>, tile_sums<l2_step>},
      .collect = {collect<metric::inner_product>, collect<metric::cosine>, collect<metric::l2>},
  };
  return kKernels;
}

}  // namespace shortlist::cpu
