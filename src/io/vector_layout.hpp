// Where the rows of a vector file lie. Each format's header is parsed, and checked against the file's size, in a file
// of its own; whatever comes after that is the same for all of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "io/file.hpp"
#include "shortlist/io.hpp"

namespace shortlist::io {

/// The types of stored values; element_type has no integers of 32 and 64 bits, which hold ids.
enum class stored_type : std::uint8_t { f32, f16, i8, u8, i32, i64 };

std::string_view to_string(stored_type type);
constexpr std::int64_t size_bytes(stored_type type) {
  switch (type) {
    case stored_type::i64: return 8;
    case stored_type::f32:
    case stored_type::i32: return 4;
    case stored_type::f16: return 2;
    case stored_type::i8:
    case stored_type::u8: return 1;
  }
  return 0;
}

/// A file without rows has no byte that bears its dim out, so that a caller who allocates a row would believe a header
/// alone. This is the widest row of any index.
inline constexpr std::int64_t kMaxDimWithoutRows = 65536;

struct vector_layout {
  stored_type type = stored_type::f32;
  std::int64_t rows = 0;
  std::int64_t dim = 0;               // >= 1
  std::int64_t begin = 0;             // offset of row 0 in the file
  std::int64_t row_prefix_bytes = 0;  // of the dimension in front of each row: 4 in the *vecs formats, else 0

  std::int64_t data_bytes() const { return dim * size_bytes(type); }  // of one row
  std::int64_t row_bytes() const { return row_prefix_bytes + data_bytes(); }
};

/// These read the header. All sizes in the result fit the file, so that products of them do not overflow.
/// layout_of bounds the dim of a file without rows too.
/// @throws corrupt_file, io_error, unsupported.
vector_layout vecs_layout(const input_file& file, stored_type type);
vector_layout bin_layout(const input_file& file, stored_type type);
vector_layout npy_layout(const input_file& file);
vector_layout layout_of(const input_file& file, vector_format format);

/// Reads rows [first, first + count), which are in the file, densely into `out`.
/// @throws corrupt_file if a row's own dimension differs, io_error.
void read_rows(const input_file& file, const vector_layout& layout, std::int64_t first, std::int64_t count, void* out);

/// begin + rows * dim * element_bytes, or empty if that is 2^63 or more.
std::optional<std::int64_t> checked_end(std::int64_t begin, std::int64_t rows, std::int64_t dim,
                                        std::int64_t element_bytes);

[[noreturn]] void throw_corrupt(const input_file& file, const std::string& problem);

}  // namespace shortlist::io
