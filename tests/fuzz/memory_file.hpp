// What every fuzz target shares: the input as a file in memory, and what must hold of whatever a reader accepts.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "shortlist/error.hpp"
#include "shortlist/io.hpp"

namespace shortlist::fuzz {

/// Ends the run, so that libFuzzer keeps the input.
inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "violated: %s\n", what);
  std::abort();
}

/// A file that lives in memory and has a path: the readers take paths, and a disk would be the slowest part.
class memory_file {
 public:
  memory_file(const void* data, std::size_t bytes) : descriptor_(memfd_create("fuzz", MFD_CLOEXEC)) {
    require(descriptor_ >= 0, "memfd_create succeeds");
    require(::write(descriptor_, data, bytes) == static_cast<ssize_t>(bytes), "a memory file takes the whole input");
  }
  ~memory_file() { ::close(descriptor_); }
  memory_file(const memory_file&) = delete;
  memory_file& operator=(const memory_file&) = delete;

  std::filesystem::path path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

/// Reads the input as each of the formats: it is refused with one of the library's errors, or read, whole and row by
/// row alike, to no more bytes than the file has.
inline void read_as(std::initializer_list<vector_format> formats, const std::uint8_t* data, std::size_t bytes) {
  const memory_file input(data, bytes);
  for (const vector_format format : formats) {
    try {
      const vectors all = read_vectors(input.path(), format);
      require(all.dim >= 1 && all.rows >= 0, "dim >= 1 and rows >= 0");
      require(static_cast<std::int64_t>(all.data.size()) == all.rows * all.dim * size_bytes(all.type), "shape == size");
      require(all.data.size() <= bytes, "no more data than the file has");
      vector_file file(input.path(), format);
      const std::int64_t row_bytes = all.dim * size_bytes(all.type);
      std::vector<std::byte> row(static_cast<std::size_t>(row_bytes));
      for (std::int64_t i = 0; i < std::min(all.rows, std::int64_t{16}); ++i) {
        file.read(i, 1, row.data());
        require(std::memcmp(row.data(), all.data.data() + i * row_bytes, row.size()) == 0, "a row == its slice of all");
      }
    } catch (const corrupt_file&) {
    } catch (const unsupported&) {
    }
    try {
      const id_table table = read_ids(input.path(), format);
      require(static_cast<std::int64_t>(table.data.size()) == table.rows * table.dim, "shape == size");
      require(table.data.size() * sizeof(std::int32_t) <= bytes, "no more ids than the file has");
    } catch (const corrupt_file&) {
    } catch (const unsupported&) {
    }
  }
}

}  // namespace shortlist::fuzz
