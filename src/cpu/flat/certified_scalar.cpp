// The filter over an int8 plane without vector instructions, and what all instruction sets share.
#include <algorithm>

#include "cpu/flat/certified_kernels.hpp"

namespace shortlist::cpu {
namespace {

constexpr std::int64_t kTileQueries = 4;

/// products[r] of a query's codes and those of row r of a block, modulo 2^32, which is exact.
void products_of(const std::int16_t* packed, std::int64_t query, std::int64_t width, std::uint32_t offset,
                 const std::byte* block, std::int64_t words, std::uint32_t* products) {
  std::fill_n(products, core::kPlaneRows, offset);
  for (std::int64_t word = 0; word < words; ++word) {
    const std::int16_t* codes = packed + packed_code_at(query, word * core::kPlaneWord, width);
    for (std::int64_t row = 0; row < core::kPlaneRows; ++row) {
      const std::byte* bytes = block + core::plane_layout::code_at(row, word * core::kPlaneWord);
      for (std::int64_t i = 0; i < core::kPlaneWord; ++i) {
        const int code = codes[packed_code_at(0, i, 1)];
        products[row] += static_cast<std::uint32_t>(code * std::to_integer<int>(bytes[i]));
      }
    }
  }
}

template <metric By>
void filter_one(const std::int16_t* packed, std::int64_t at, std::int64_t width, const filter_query& query,
                const plane_span& block, survivor_list& list) {
  const auto* terms = reinterpret_cast<const float*>(block.blocks + block.layout.codes_bytes());
  constexpr std::int64_t kPitch = core::kPlaneRows;  // from a term to the next
  const std::int64_t rows = std::min<std::int64_t>(block.rows, core::kPlaneRows);
  std::uint32_t products[core::kPlaneRows];
  products_of(packed, at, width, query.offset, block.blocks, block.layout.words, products);
  for (std::int64_t row = 0; row < rows; ++row) {
    const core::plane_row of_row = {.scale = terms[row],
                                    .residual = terms[kPitch + row],
                                    .norm = terms[2 * kPitch + row],
                                    .square = By == metric::l2 ? terms[3 * kPitch + row] : 0.0f};
    const core::merit_interval found =
        core::interval_of(By, query.terms, of_row, By == metric::cosine ? block.inverse_norms[row] : 0.0f,
                          static_cast<std::int32_t>(products[row]));
    if (!(found.high < list.threshold)) {
      append_survivor(found, By, block.first + static_cast<std::uint32_t>(row), list);
    }
  }
}

template <metric By>
std::int64_t filter_rows(const std::int16_t* packed, const filter_query& query, const plane_span& span,
                         std::int64_t limit, survivor_list& list) {
  plane_span block = span;
  while (block.rows > 0 && list.size + core::kPlaneRows <= limit) {
    filter_one<By>(packed, 0, 1, query, block, list);
    block = block.next();
  }
  return span.rows - std::max<std::int64_t>(block.rows, 0);
}

template <metric By>
void filter_block(const std::int16_t* packed, const filter_query* queries, std::int64_t count, const plane_span& block,
                  const std::byte*, std::int64_t, survivor_list* lists) {
  for (std::int64_t query = 0; query < count; ++query) {
    filter_one<By>(packed, query, kTileQueries, queries[query], block, lists[query]);
  }
}

}  // namespace

void pack_query_codes(const std::int16_t* codes, std::int64_t count, std::int64_t dim, std::int64_t width,
                      std::int16_t* packed) {
  const std::int64_t padded = core::plane_layout(dim, metric::l2).words * core::kPlaneWord;
  for (std::int64_t query = 0; query < width; ++query) {
    for (std::int64_t i = 0; i < padded; ++i) {
      packed[packed_code_at(query, i, width)] = query < count && i < dim ? codes[query * dim + i] : std::int16_t{0};
    }
  }
}

void pack_byte_codes(const std::int16_t* codes, std::int64_t count, std::int64_t dim, std::int64_t width,
                     std::int16_t* packed) {
  const std::int64_t words = core::plane_layout(dim, metric::l2).words;
  auto* bytes = reinterpret_cast<std::int8_t*>(packed);
  for (std::int64_t query = 0; query < width; ++query) {
    for (std::int64_t i = 0; i < words * core::kPlaneWord; ++i) {
      const std::int64_t at = (i / core::kPlaneWord * width + query) * core::kPlaneWord + i % core::kPlaneWord;
      bytes[at] = query < count && i < dim ? static_cast<std::int8_t>(codes[query * dim + i]) : std::int8_t{0};
    }
  }
}

const filter_kernels& scalar_filter_kernels() {
  static constexpr filter_kernels kKernels = {
      .tile_queries = kTileQueries,
      .tile_blocks = 1,
      .pack = pack_query_codes,
      .pack_bytes = pack_byte_codes,
      .filter_rows = {filter_rows<metric::inner_product>, filter_rows<metric::cosine>, filter_rows<metric::l2>},
      .filter_blocks = {filter_block<metric::inner_product>, filter_block<metric::cosine>, filter_block<metric::l2>},
      .filter_blocks_by_bytes = {},
      .max_byte_code = 0,
      .byte_codes_max_work = 0,
  };
  return kKernels;
}

}  // namespace shortlist::cpu
