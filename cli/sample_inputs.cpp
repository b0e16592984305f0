// The files beside the logits of `shortlist sample`. See sample_inputs.hpp.
#include "sample_inputs.hpp"

#include <fmt/core.h>

#include <limits>

#include "shortlist/error.hpp"

namespace shortlist::program {
namespace {

void check_rows(std::string_view option, std::int64_t rows, std::int64_t wanted) {
  if (rows == wanted || rows == 1) return;
  throw invalid_argument(fmt::format("{} has {} rows; allowed is 1, or {} as the logits", option, rows, wanted));
}

void check_cols(std::string_view option, std::int64_t cols, std::int64_t wanted) {
  if (cols == wanted) return;
  throw invalid_argument(fmt::format("{} has {} columns; allowed is {} as the logits", option, cols, wanted));
}

std::int32_t narrow(std::string_view option, std::int64_t token) {
  using limits = std::numeric_limits<std::int32_t>;
  if (token >= limits::min() && token <= limits::max()) return static_cast<std::int32_t>(token);
  throw invalid_argument(fmt::format("{} has the token {}; allowed is what 32 bits hold", option, token));
}

}  // namespace

token_file::token_file(const stream& s, std::string_view option, const std::filesystem::path& path, std::int64_t rows) {
  if (path.empty()) return;
  const id_table table = read_ids(path, vector_format::npy);
  check_rows(option, table.rows, rows);
  begins_.push_back(0);
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t from = table.rows == 1 ? 0 : row * table.dim;
    for (std::int64_t i = from; i < from + table.dim; ++i) {
      tokens_.push_back(narrow(option, table.data[static_cast<std::size_t>(i)]));
    }
    begins_.push_back((row + 1) * table.dim);
  }
  device_begins_.emplace(s, begins_);
  device_tokens_.emplace(s, tokens_);
}

token_rows token_file::view() const {
  if (!device_begins_) return {};
  return {.begins = static_cast<const std::int64_t*>(device_begins_->data()),
          .tokens = static_cast<const std::int32_t*>(device_tokens_->data())};
}

bias_file::bias_file(const stream& s, const std::filesystem::path& path, std::int64_t rows, std::int64_t vocab) {
  if (path.empty()) return;
  bias_ = read_npy_matrix(path);
  if (bias_.type != value_type::f32) {
    throw invalid_argument(fmt::format("--bias is {}; allowed is f32", to_string(bias_.type)));
  }
  check_rows("--bias", bias_.rows, rows);
  check_cols("--bias", bias_.cols, vocab);
  if (bias_.column_major && bias_.rows > 1) {
    throw invalid_argument("--bias is in Fortran order; allowed is C order");
  }
  device_.emplace(s, bias_.data);
}

logit_bias bias_file::view() const {
  if (!device_) return {};
  return {.values = static_cast<const float*>(device_->data()), .row_stride = bias_.rows == 1 ? 0 : bias_.cols};
}

mask_file::mask_file(const stream& s, const std::filesystem::path& path, std::int64_t rows, std::int64_t vocab) {
  if (path.empty()) return;
  mask_ = read_vectors(path, vector_format::npy);
  if (mask_.type != element_type::u8) {
    throw invalid_argument(fmt::format("--allowed is {}; allowed is u8", to_string(mask_.type)));
  }
  check_rows("--allowed", mask_.rows, rows);
  check_cols("--allowed", mask_.dim, vocab);
  device_.emplace(s, mask_.data);
}

token_mask mask_file::view() const {
  if (!device_) return {};
  return {.data = device_->data(), .kind = mask_kind::bytes, .row_stride = mask_.rows == 1 ? 0 : mask_.dim};
}

}  // namespace shortlist::program
