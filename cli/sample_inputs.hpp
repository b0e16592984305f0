// The files beside the logits of `shortlist sample`, on the op's device. Each holds a row for each row of the logits,
// or one for all; an empty path is a file that was not given.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

#include "arrays.hpp"
#include "shortlist/io.hpp"
#include "shortlist/sample.hpp"

namespace shortlist::program {

/// npy of int32 or int64, padded with -1.
class token_file {
 public:
  /// @throws invalid_argument if it has another number of rows, or a token that 32 bits do not hold.
  token_file(const stream& s, std::string_view option, const std::filesystem::path& path, std::int64_t rows);
  token_rows view() const;

 private:
  std::vector<std::int64_t> begins_;
  std::vector<std::int32_t> tokens_;
  std::optional<input_array> device_begins_;
  std::optional<input_array> device_tokens_;
};

/// npy of float32.
class bias_file {
 public:
  /// @throws invalid_argument if it has another shape, type or order.
  bias_file(const stream& s, const std::filesystem::path& path, std::int64_t rows, std::int64_t vocab);
  logit_bias view() const;

 private:
  matrix_data bias_;
  std::optional<input_array> device_;
};

/// npy of uint8.
class mask_file {
 public:
  /// @throws invalid_argument if it has another shape or type.
  mask_file(const stream& s, const std::filesystem::path& path, std::int64_t rows, std::int64_t vocab);
  token_mask view() const;

 private:
  vectors mask_;
  std::optional<input_array> device_;
};

}  // namespace shortlist::program
