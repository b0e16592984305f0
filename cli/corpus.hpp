// Vector files, read as one corpus in slices, converted to the type that an index stores.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "shortlist/io.hpp"

namespace shortlist::program {

class corpus {
 public:
  /// Opens every file. `stored` is the type that slices have: the files' own, or f16 or bf16 from f32.
  /// @throws invalid_argument if the files disagree in dim or type, or `stored` cannot be made of them.
  corpus(std::span<const std::filesystem::path> paths, std::optional<element_type> stored);

  std::int64_t rows() const { return rows_; }
  std::int64_t dim() const { return dim_; }
  element_type type() const { return type_; }

  /// Hands every row to `take`, in order, some megabytes at a time.
  /// @throws invalid_argument if a finite value is beyond the stored type's range.
  void for_each_slice(const std::function<void(any_matrix_view)>& take);
  /// Rows [first, first + count) in memory, which hold them all.
  vectors read(std::int64_t first, std::int64_t count);
  vectors read_all() { return read(0, rows_); }
  /// `count` rows in memory: numbers floor(i rows / count), or all if there are no more.
  vectors sample(std::int64_t count);

 private:
  struct part {
    std::filesystem::path path;
    vector_file file;
  };
  /// Rows [first, first + count) of a file, as they are stored, to `out`.
  void read_part(part& from, std::int64_t first, std::int64_t count, std::byte* out);
  vectors room_for(std::int64_t count) const;

  std::vector<part> parts_;
  std::int64_t rows_ = 0;
  std::int64_t dim_ = 0;
  element_type file_type_ = element_type::f32;
  element_type type_ = element_type::f32;
  std::vector<float> unrounded_;  ///< what read_part reads before it rounds
};

/// Labels, one a row. @throws invalid_argument if the file does not hold exactly `rows` of them.
std::vector<std::int64_t> read_labels(const std::filesystem::path& path, std::int64_t rows);

}  // namespace shortlist::program
