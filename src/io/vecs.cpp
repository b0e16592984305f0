// The *vecs formats: every row is an int32 dimension followed by its elements; there is no header.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "io/vector_layout.hpp"

namespace shortlist::io {
namespace {

constexpr std::int64_t kPrefixBytes = 4;
constexpr std::int64_t kBufferBytes = std::int64_t{8} << 20;  // of one read: many rows, so that the disk streams

std::int32_t dimension_at(const input_file& file, std::int64_t offset) {
  std::int32_t dim = 0;
  file.read(offset, kPrefixBytes, &dim);
  return dim;
}

bool fits(const input_file& file, std::int32_t dim, stored_type type) {
  return dim > 0 && file.size_bytes() % (kPrefixBytes + dim * size_bytes(type)) == 0;
}

[[noreturn]] void throw_other_dimension(const input_file& file, std::int64_t row, std::int64_t offset,
                                        std::int32_t found, std::int64_t expected) {
  throw_corrupt(file, fmt::format("row {} at offset {} has dimension {}; row 0 has {}, and all rows must agree", row,
                                  offset, found, expected));
}

}  // namespace

vector_layout vecs_layout(const input_file& file, stored_type type) {
  if (file.size_bytes() < kPrefixBytes) {
    throw_corrupt(file, fmt::format("the file has {} bytes; row 0 begins with a dimension of {} bytes",
                                    file.size_bytes(), kPrefixBytes));
  }
  const std::int32_t dim = dimension_at(file, 0);
  if (!fits(file, dim, type)) {
    const auto swapped = static_cast<std::int32_t>(__builtin_bswap32(static_cast<std::uint32_t>(dim)));
    const char* hint = fits(file, swapped, type) ? " (it would fit as a big-endian number)" : "";
    if (dim < 1) {
      throw_corrupt(file, fmt::format("the dimension of row 0 at offset 0 is {}; allowed is 1 or more{}", dim, hint));
    }
    throw_corrupt(file, fmt::format("the dimension of row 0 at offset 0 is {}, so that every row takes {} bytes; the "
                                    "file's {} bytes are no multiple of that{}",
                                    dim, kPrefixBytes + dim * size_bytes(type), file.size_bytes(), hint));
  }
  vector_layout layout{type, 0, dim, 0, kPrefixBytes};
  layout.rows = file.size_bytes() / layout.row_bytes();
  // The last row is a cheap first look at whether the rows agree; the others are checked when they are read.
  const std::int64_t last = (layout.rows - 1) * layout.row_bytes();
  if (const std::int32_t found = dimension_at(file, last); found != dim) {
    throw_other_dimension(file, layout.rows - 1, last, found, dim);
  }
  return layout;
}

void read_rows(const input_file& file, const vector_layout& layout, std::int64_t first, std::int64_t count, void* out) {
  const std::int64_t row_bytes = layout.row_bytes();
  const std::int64_t data_bytes = layout.data_bytes();
  if (layout.row_prefix_bytes == 0) {
    file.read(layout.begin + first * row_bytes, count * row_bytes, out);
    return;
  }
  const std::int64_t rows_at_once = std::min(count, std::max(std::int64_t{1}, kBufferBytes / row_bytes));
  std::vector<std::byte> buffer(static_cast<std::size_t>(rows_at_once * row_bytes));
  auto* to = static_cast<std::byte*>(out);
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t rows = std::min(rows_at_once, count - done);
    const std::int64_t offset = layout.begin + (first + done) * row_bytes;
    file.read(offset, rows * row_bytes, buffer.data());
    for (std::int64_t row = 0; row < rows; ++row, to += data_bytes) {
      const std::byte* from = buffer.data() + row * row_bytes;
      std::int32_t dim = 0;
      std::memcpy(&dim, from, kPrefixBytes);
      if (dim != layout.dim) throw_other_dimension(file, first + done + row, offset + row * row_bytes, dim, layout.dim);
      std::memcpy(to, from + kPrefixBytes, static_cast<std::size_t>(data_bytes));
    }
    done += rows;
  }
}

}  // namespace shortlist::io
