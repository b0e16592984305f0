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
  vectors read_all();

 private:
  struct part {
    std::filesystem::path path;
    vector_file file;
  };
  std::vector<part> parts_;
  std::int64_t rows_ = 0;
  std::int64_t dim_ = 0;
  element_type file_type_ = element_type::f32;
  element_type type_ = element_type::f32;
};

/// Labels, one a row. @throws invalid_argument if the file does not hold exactly `rows` of them.
std::vector<std::int64_t> read_labels(const std::filesystem::path& path, std::int64_t rows);

}  // namespace shortlist::program
