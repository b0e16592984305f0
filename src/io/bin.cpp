// The *bin formats: uint32 rows, uint32 dim, then [rows, dim] elements; in files of true neighbours, as the benchmarks
// of a billion rows publish them, as many fp32 distances follow the ids.
#include <fmt/format.h>

#include <array>

#include "io/vector_layout.hpp"

namespace shortlist::io {
namespace {

constexpr std::int64_t kHeaderBytes = 8;
constexpr std::int64_t kDistanceBytes = 4;  // fp32

bool fits(const input_file& file, std::uint32_t rows, std::uint32_t dim, stored_type type) {
  if (dim == 0) return false;
  const auto ends_with = [&](std::int64_t element_bytes) {
    return checked_end(kHeaderBytes, rows, dim, element_bytes) == file.size_bytes();
  };
  return ends_with(size_bytes(type)) || (type == stored_type::i32 && ends_with(size_bytes(type) + kDistanceBytes));
}

}  // namespace

vector_layout bin_layout(const input_file& file, stored_type type) {
  if (file.size_bytes() < kHeaderBytes) {
    throw_corrupt(
        file, fmt::format("the file has {} bytes; its header of rows and dim has {}", file.size_bytes(), kHeaderBytes));
  }
  std::array<std::uint32_t, 2> header{};
  file.read(0, kHeaderBytes, header.data());
  const auto [rows, dim] = header;
  if (!fits(file, rows, dim, type)) {
    const bool swapped = fits(file, __builtin_bswap32(rows), __builtin_bswap32(dim), type);
    const char* hint = swapped ? " (they would fit as big-endian numbers)" : "";
    if (dim == 0) throw_corrupt(file, fmt::format("dim at offset 4 is 0; allowed is 1 or more{}", hint));
    const std::optional<std::int64_t> end = checked_end(kHeaderBytes, rows, dim, size_bytes(type));
    const char* more = type == stored_type::i32 ? ", or as many distances more" : "";
    throw_corrupt(file,
                  fmt::format("rows at offset 0 is {} and dim at offset 4 is {}, for which the file must have {} "
                              "bytes{}; it has {}{}",
                              rows, dim, end ? fmt::to_string(*end) : "2^63 or more", more, file.size_bytes(), hint));
  }
  return {type, rows, dim, kHeaderBytes, 0};
}

}  // namespace shortlist::io
