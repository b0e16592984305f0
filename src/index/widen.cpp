// Queries of any element type as fp32.
#include "index/widen.hpp"

#include "core/score.hpp"

namespace shortlist::index {
namespace {

template <class T>
void widen_typed(const any_matrix_view& from, std::int64_t first, std::int64_t count, float* to) {
  const std::int64_t stride = stride_of(from);
  for (std::int64_t row = first; row < first + count; ++row, to += from.cols) {
    const T* elements = static_cast<const T*>(from.data) + row * stride;
    for (std::int64_t col = 0; col < from.cols; ++col) to[col] = core::widen(elements[col]);
  }
}

}  // namespace

void widen_rows(const any_matrix_view& from, std::int64_t first, std::int64_t count, float* to) {
  switch (from.type) {
    case element_type::f32: return widen_typed<float>(from, first, count, to);
    case element_type::f16: return widen_typed<float16>(from, first, count, to);
    case element_type::bf16: return widen_typed<bfloat16>(from, first, count, to);
    case element_type::i8: return widen_typed<std::int8_t>(from, first, count, to);
    case element_type::u8: return widen_typed<std::uint8_t>(from, first, count, to);
  }
}

}  // namespace shortlist::index
