// Rows as an IVF-PQ index takes them: checked, widened, normalised, turned; and what codes stand for.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>

#include "core/score.hpp"
#include "cpu/flat/kernels.hpp"
#include "cpu/ivf_pq/parts.hpp"

namespace shortlist::cpu {
namespace {

constexpr auto kFloat = static_cast<std::size_t>(element_type::f32);
constexpr auto kDot = static_cast<std::size_t>(sum_kind::dot);
/// Sums that are computed at a time, on the stack.
constexpr std::int64_t kSums = 256;

/// Calls body(typed pointer to a row's elements) with the elements' type.
template <class Body>
auto with_row(const any_matrix_view& rows, std::int64_t row, const Body& body) {
  const std::byte* from = static_cast<const std::byte*>(rows.data) + row * rows.row_stride * size_bytes(rows.type);
  switch (rows.type) {
    case element_type::f32: return body(reinterpret_cast<const float*>(from));
    case element_type::f16: return body(reinterpret_cast<const float16*>(from));
    case element_type::bf16: return body(reinterpret_cast<const bfloat16*>(from));
    case element_type::i8: return body(reinterpret_cast<const std::int8_t*>(from));
    case element_type::u8: break;
  }
  return body(reinterpret_cast<const std::uint8_t*>(from));
}

bool is_finite(const any_matrix_view& rows, std::int64_t row) {
  constexpr std::uint32_t kInfinity = 0x7F800000u;
  return with_row(rows, row, [&](const auto* elements) {
    std::uint32_t largest = 0;
    for (std::int64_t i = 0; i < rows.cols; ++i) {
      largest = std::max(largest, core::float_bits(core::widen(elements[i])) & ~core::kSignBit);
    }
    return largest < kInfinity;
  });
}

}  // namespace

std::vector<std::int64_t> rows_not_finite(const any_matrix_view& rows, std::int64_t limit) {
  std::vector<std::int64_t> found;
  if (rows.type == element_type::i8 || rows.type == element_type::u8) return found;
  std::mutex of_found;
  std::atomic<bool> enough{false};
  // Parts are handed out in ascending order: once those that were hold `limit` such rows, the first are among them.
  for_each_range(rows.rows, kPartRows, [&](std::int64_t first, std::int64_t last) {
    if (enough.load(std::memory_order_relaxed)) return;
    for (std::int64_t row = first; row < last; ++row) {
      if (is_finite(rows, row)) continue;
      const std::lock_guard lock(of_found);
      found.push_back(row);
      if (static_cast<std::int64_t>(found.size()) >= limit) enough = true;
    }
  });
  std::sort(found.begin(), found.end());
  if (static_cast<std::int64_t>(found.size()) > limit) found.resize(static_cast<std::size_t>(limit));
  return found;
}

turner::turner(const float* rotation, std::int64_t dim)
    : rotation_(rotation), dim_(dim), stride_(round_up(dim, kCacheLineBytes / 4)) {
  if (stride_ == dim) return;
  padded_.reserve(dim * stride_ * 4);
  float* rows = padded_.as<float>();
  for (std::int64_t i = 0; i < dim; ++i) {
    std::copy_n(rotation + i * dim, dim, rows + i * stride_);
    std::fill_n(rows + i * stride_ + dim, stride_ - dim, core::kRowPadding);
  }
  rotation_ = rows;
}

void turner::turn(const float* padded_row, float* out) const {
  const flat_kernels& kernels = current_flat_kernels();
  const row_span all = {reinterpret_cast<const std::byte*>(rotation_), stride_ * 4, dim_};
  float sums[kSums + kSumsSlack];
  for (std::int64_t first = 0; first < dim_; first += kSums) {
    const std::int64_t count = std::min(kSums, dim_ - first);
    kernels.row_sums[kFloat][kDot](padded_row, all.part(first, count), dim_, sums);
    std::copy_n(sums, count, out + first);
  }
}

void take_rows(metric by, const float* rotation, const any_matrix_view& rows, float* out) {
  const std::int64_t dim = rows.cols;
  const flat_kernels& kernels = current_flat_kernels();
  std::unique_ptr<turner> turned;
  if (rotation != nullptr) turned = std::make_unique<turner>(rotation, dim);
  for_each_range(rows.rows, kPartRows, [&](std::int64_t first, std::int64_t last) {
    growing_memory memory;
    memory.reserve(padded_dim(dim) * 4);
    float* padded = memory.as<float>();
    std::fill(padded + dim, padded + padded_dim(dim), core::kQueryPadding);
    for (std::int64_t row = first; row < last; ++row) {
      with_row(rows, row, [&](const auto* elements) {
        for (std::int64_t i = 0; i < dim; ++i) padded[i] = core::widen(elements[i]);
      });
      if (by == metric::cosine) {
        float sums[1 + kSumsSlack];
        kernels.square_sums[kFloat]({reinterpret_cast<const std::byte*>(padded), padded_dim(dim) * 4, 1}, dim, sums);
        const float inverse_norm = core::inverse_norm(sums[0]);
        if (inverse_norm != core::kZeroVector) {
          for (std::int64_t i = 0; i < dim; ++i) padded[i] *= inverse_norm;
        }
      }
      if (turned != nullptr) {
        turned->turn(padded, out + row * dim);
      } else {
        std::copy_n(padded, dim, out + row * dim);
      }
    }
  });
}

void residuals(const core::ivf_pq_shape& shape, const float* rows, std::int64_t n, const std::int64_t* lists,
               const float* centroids, std::int64_t centroid_stride, float* out) {
  const std::int64_t dim = shape.dim;
  for_each_range(n, kPartRows, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t row = first; row < last; ++row) {
      const float* from = rows + row * dim;
      float* to = out + row * shape.padded_dim();
      if (shape.encodes == encoded::residual) {
        const float* centroid = centroids + lists[row] * centroid_stride;
        for (std::int64_t i = 0; i < dim; ++i) to[i] = from[i] - centroid[i];
      } else {
        std::copy_n(from, dim, to);
      }
      std::fill(to + dim, to + shape.padded_dim(), 0.0f);
    }
  });
}

}  // namespace shortlist::cpu
