// Lists of codes: rows placed, written into pages and read out again.
#include <algorithm>
#include <cmath>
#include <mutex>

#include "cpu/ivf_pq/bounds.hpp"
#include "cpu/ivf_pq/filter.hpp"
#include "cpu/ivf_pq/layout.hpp"
#include "cpu/ivf_pq/parts.hpp"

namespace shortlist::cpu {

void clear_pages(const core::ivf_pq_shape& shape, std::byte* pages, std::int64_t first, std::int64_t count) {
  const page_layout layout(shape);
  for (std::int64_t number = first; number < first + count; ++number) {
    std::byte* page = pages + number * layout.bytes();
    std::fill_n(page, layout.bytes(), std::byte{0});
    std::fill_n(page_layout::positions(page), core::kPageRows, core::kNoPosition);
  }
}

void place_rows(const std::int64_t* lists, std::int64_t n, std::int64_t nlist, std::uint32_t* counts,
                std::uint32_t* places) {
  std::fill_n(counts, nlist, 0u);
  for (std::int64_t row = 0; row < n; ++row) places[row] = counts[lists[row]]++;
}

void write_rows(const core::ivf_pq_model& model, const core::ivf_pq_lists& to, const std::uint32_t* sizes_before,
                const std::int64_t* lists, const std::uint32_t* places, const std::uint8_t* codes, std::int64_t n,
                std::int64_t first_position, const std::uint32_t* positions) {
  const page_layout layout(model.shape);
  std::mutex of_largest;
  for_each_range(n, kPartRows, [&](std::int64_t first, std::int64_t last) {
    double largest = 0.0;  // squared norm of a row's codewords
    for (std::int64_t row = first; row < last; ++row) {
      const std::int64_t list = lists[row];
      const std::uint32_t place = sizes_before[list] + places[row];
      std::byte* page = to.pages + to.table[to.first[list] + place / core::kPageRows] * layout.bytes();
      const std::int64_t in_page = place % core::kPageRows;
      const std::uint8_t* of_row = codes + row * model.shape.pieces;
      layout.set_codes(page, in_page, of_row);
      double squares = 0.0;
      page_layout::terms(page)[in_page] = term_of(model, list, of_row, squares);
      largest = std::max(largest, squares);
      page_layout::positions(page)[in_page] =
          positions != nullptr ? positions[row] : static_cast<std::uint32_t>(first_position + row);
    }
    const std::lock_guard lock(of_largest);
    *to.largest = std::max(*to.largest, rounded_up(std::sqrt(largest)));
  });
}

void read_rows(const core::ivf_pq_shape& shape, const core::ivf_pq_lists& lists, const std::int64_t* list_starts,
               std::int64_t first, std::int64_t n, std::uint8_t* codes, std::uint32_t* positions) {
  const page_layout layout(shape);
  for_each_range(n, kPartRows, [&](std::int64_t begin, std::int64_t end) {
    std::int64_t list = std::upper_bound(list_starts, list_starts + shape.nlist + 1, first + begin) - list_starts - 1;
    for (std::int64_t row = begin; row < end; ++row) {
      while (first + row >= list_starts[list + 1]) ++list;
      const std::int64_t place = first + row - list_starts[list];
      const std::byte* page = lists.pages + lists.table[lists.first[list] + place / core::kPageRows] * layout.bytes();
      const std::int64_t in_page = place % core::kPageRows;
      for (std::int64_t piece = 0; piece < shape.pieces; ++piece) {
        codes[row * shape.pieces + piece] = layout.code(page, in_page, piece);
      }
      positions[row] = page_layout::positions(page)[in_page];
    }
  });
}

}  // namespace shortlist::cpu
