// IVF-PQ without vector instructions: the definitions, one row and codeword at a time.
#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/ivf_pq/kernels.hpp"
#include "cpu/ivf_pq/layout.hpp"

namespace shortlist::cpu {
namespace {

void coarse_estimates(const lane_centroids& centroids, std::int64_t block, const float* queries, std::int64_t stride,
                      std::int64_t count, float factor, float* out, std::int64_t out_stride) {
  const float* elements = centroids.elements + block * centroids.dim * kCentroidBlock;
  for (std::int64_t q = 0; q < count; ++q) {
    for (std::int64_t c = 0; c < kCentroidBlock; ++c) {
      float sum = 0.0f;
      for (std::int64_t i = 0; i < centroids.dim; ++i) {
        sum = std::fma(queries[q * stride + i], elements[i * kCentroidBlock + c], sum);
      }
      const std::int64_t number = block * kCentroidBlock + c;
      out[q * out_stride + number] = std::fma(factor, sum, centroids.offsets[number]);
    }
  }
}

void least_of_groups(const float* values, std::int64_t count, std::int64_t groups, float* least) {
  std::copy_n(values, groups, least);
  for (std::int64_t i = groups; i < count; ++i) least[i % groups] = std::min(least[i % groups], values[i]);
}

std::int64_t numbers_below(const float* values, std::int64_t count, float limit, std::uint32_t* numbers) {
  std::int64_t found = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    if (values[i] <= limit) numbers[found++] = static_cast<std::uint32_t>(i);
  }
  return found;
}

void encode(const lane_codewords& codewords, const float* pieces, std::int64_t stride, std::int64_t rows,
            std::uint8_t* codes, std::int64_t code_stride) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* piece = pieces + row * stride;
    float best = std::numeric_limits<float>::infinity();
    std::int64_t code = 0;
    for (std::int64_t n = 0; n < codewords.count; ++n) {
      float d = 0.0f;
      for (std::int64_t i = 0; i < codewords.piece_dim; ++i) {
        const float t = piece[i] - codewords.words[i * codewords.count + n];
        d = std::fma(t, t, d);
      }
      if (d < best) {
        best = d;
        code = n;
      }
    }
    codes[row * code_stride] = static_cast<std::uint8_t>(code);
  }
}

table_range make_table(const lane_codewords& codewords, std::int64_t pieces, const float* query, float factor,
                       float* table, float* least) {
  const std::int64_t count = codewords.count;
  table_range range;
  float width = 0.0f;  // of two pieces
  for (std::int64_t piece = 0; piece < pieces; ++piece) {
    float* entries = table + piece * count;
    for (std::int64_t n = 0; n < count; ++n) {
      float sum = 0.0f;
      for (std::int64_t i = 0; i < codewords.piece_dim; ++i) {
        const std::int64_t element = piece * codewords.piece_dim + i;
        sum = std::fma(query[element], codewords.words[element * count + n], sum);
      }
      entries[n] = factor * sum;
    }
    const auto [low, high] = std::minmax_element(entries, entries + count);
    least[piece] = *low;
    range.sum_of_least += static_cast<double>(*low);
    width = (piece % 2 == 0 ? 0.0f : width) + (*high - *low);
    range.widest = std::max(range.widest, width);
  }
  return range;
}

void make_bytes(const float* table, const float* least, std::int64_t pieces, std::int64_t count, float inverse_step,
                float largest, std::uint8_t* bytes) {
  for (std::int64_t i = 0; i < pieces * count; ++i) {
    bytes[i] = static_cast<std::uint8_t>(std::min((table[i] - least[i / count]) * inverse_step, largest));
  }
}

float limit_of_rank(float* values, std::int64_t count, std::int64_t rank) {
  std::nth_element(values, values + rank - 1, values + count);
  return values[rank - 1];
}

/// Appends the rows of one page.
void scan_page(const list_filter& filter, const list_span& list, std::int64_t number, candidate_list& found) {
  const std::byte* page = list.pages + list.table[number] * list.page_bytes;
  const std::int64_t rows = std::min(core::kPageRows, list.rows - number * core::kPageRows);
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::uint8_t* codes = page_layout::codes(page) + page_layout::place_in_strip(row);
    int sum = 0;
    for (std::int64_t strip = 0; strip < list.strips; ++strip) {
      const int code = codes[strip * core::kPageRows];
      if (filter.bits == 4) {
        sum += filter.bytes[strip * 32 + (code & 15)] + filter.bytes[strip * 32 + 16 + (code >> 4)];
      } else {
        sum += filter.bytes[(strip << filter.bits) + code];
      }
    }
    const float term = page_layout::terms(page)[row];
    const float highest = (filter.limit - filter.offset - term) * filter.inverse_step;
    if (static_cast<float>(sum) > highest) continue;
    found.rows[found.size++] = {
        .estimate = filter.offset + term + filter.step * static_cast<float>(sum),
        .base = filter.base,
        .place = list.table[number] * static_cast<std::uint32_t>(core::kPageRows) + static_cast<std::uint32_t>(row),
        .list = list.list};
  }
}

std::int64_t scan_list(const list_filter* filters, std::int64_t queries, const list_span& list, std::int64_t first_page,
                       candidate_list* const* found) {
  const std::int64_t pages = divide_up(list.rows, core::kPageRows);
  for (std::int64_t number = first_page; number < pages; ++number) {
    for (std::int64_t q = 0; q < queries; ++q) {
      if (found[q]->size + core::kPageRows > found[q]->room) return number;
    }
    for (std::int64_t q = 0; q < queries; ++q) scan_page(filters[q], list, number, *found[q]);
  }
  return pages;
}

}  // namespace

const ivf_pq_kernels& scalar_ivf_pq_kernels() {
  static constexpr ivf_pq_kernels kKernels = {.coarse_estimates = coarse_estimates,
                                              .least_of_groups = least_of_groups,
                                              .numbers_below = numbers_below,
                                              .encode = encode,
                                              .make_table = make_table,
                                              .make_bytes = make_bytes,
                                              .limit_of_rank = limit_of_rank,
                                              .scan_list = scan_list};
  return kKernels;
}

}  // namespace shortlist::cpu
