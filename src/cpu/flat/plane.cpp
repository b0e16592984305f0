// Writes the int8 plane of rows. See core/certified.hpp for its layout.
#include <algorithm>
#include <atomic>
#include <mutex>
#include <vector>

#include "cpu/flat/certified.hpp"
#include "cpu/flat/quantise.hpp"
#include "cpu/parallel.hpp"

namespace shortlist::cpu {
namespace {

/// Blocks that a worker takes at a time.
constexpr std::int64_t kGrabBlocks = 16;

template <class T>
void widen_row(const std::byte* row, std::int64_t dim, float* wide) {
  const T* elements = reinterpret_cast<const T*>(row);
  for (std::int64_t i = 0; i < dim; ++i) wide[i] = core::widen(elements[i]);
}

void widen_row(element_type type, const std::byte* row, std::int64_t dim, float* wide) {
  switch (type) {
    case element_type::f32: return widen_row<float>(row, dim, wide);
    case element_type::f16: return widen_row<float16>(row, dim, wide);
    case element_type::bf16: return widen_row<bfloat16>(row, dim, wide);
    case element_type::i8: return widen_row<std::int8_t>(row, dim, wide);
    case element_type::u8: return widen_row<std::uint8_t>(row, dim, wide);
  }
}

/// A worker's buffers for one row, padded to whole words of codes.
struct row_buffers {
  explicit row_buffers(std::int64_t dim, const core::plane_layout& layout)
      : wide(static_cast<std::size_t>(dim)), codes(static_cast<std::size_t>(layout.words * core::kPlaneWord)) {}
  std::vector<float> wide;
  std::vector<std::int16_t> codes;
};

/// Returns the summary of the row.
core::plane_summary write_row(const core::flat_corpus& corpus, const core::plane_layout& layout, std::int64_t position,
                              row_buffers& buffers, std::byte* plane) {
  widen_row(corpus.type, static_cast<const std::byte*>(corpus.rows) + position * corpus.row_stride_bytes, corpus.dim,
            buffers.wide.data());
  const quantised made = quantise(buffers.wide.data(), corpus.dim, core::kMaxRowCode, buffers.codes.data());
  const core::plane_row terms = core::row_terms(made.scale, made.squares, made.residual_squares, made.code_squares);

  std::byte* block = plane + position / core::kPlaneRows * layout.block_bytes();
  const std::int64_t row = position % core::kPlaneRows;
  const std::int16_t* codes = buffers.codes.data();
  for (std::int64_t word = 0; word < layout.words; ++word, codes += core::kPlaneWord) {
    std::byte* to = block + core::plane_layout::code_at(row, word * core::kPlaneWord);
    for (int i = 0; i < core::kPlaneWord; ++i) to[i] = static_cast<std::byte>(codes[i] + core::kCodeOffset);
  }
  float* to = reinterpret_cast<float*>(block + layout.codes_bytes()) + row;
  to[0] = terms.scale;
  constexpr std::int64_t kPitch = core::kPlaneRows;  // from a term to the next
  to[kPitch] = terms.residual;
  to[2 * kPitch] = terms.norm;
  if (layout.terms == 4) to[3 * kPitch] = terms.square;
  return core::summary_of(terms.residual, terms.norm);
}

}  // namespace

void write_plane(const core::flat_corpus& corpus, std::int64_t first, std::int64_t count, std::byte* plane,
                 core::plane_summary& summary) {
  const core::plane_layout layout(corpus.dim, corpus.metric);
  // Blocks are one worker's: two never write to the same cache line.
  const std::int64_t end = first + count;
  const std::int64_t end_block = divide_up(end, core::kPlaneRows);
  std::atomic<std::int64_t> next{first / core::kPlaneRows};
  const bool serial = count * corpus.dim <= kSerialBytes;
  std::mutex guard;
  const default_float_environment environment;
  for_each_slot(serial ? 1 : thread_count(), [&](int) {
    row_buffers buffers(corpus.dim, layout);
    core::plane_summary written;
    for (;;) {
      const std::int64_t block = next.fetch_add(kGrabBlocks, std::memory_order_relaxed);
      if (block >= end_block) break;
      const std::int64_t from = std::max(first, block * core::kPlaneRows);
      const std::int64_t to = std::min(end, (block + kGrabBlocks) * core::kPlaneRows);
      for (std::int64_t position = from; position < to; ++position) {
        written.add(write_row(corpus, layout, position, buffers, plane));
      }
    }
    const std::lock_guard lock(guard);
    summary.add(written);
  });
}

}  // namespace shortlist::cpu
