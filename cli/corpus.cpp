// Vector files as one corpus. See corpus.hpp.
#include "corpus.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "convert.hpp"
#include "shortlist/error.hpp"

namespace shortlist::program {
namespace {

constexpr std::int64_t kSliceBytes = std::int64_t{16} << 20;  // large enough to hide a disk's latency, small beside RAM

template <class Half>
void convert_rows(std::span<const float> from, std::span<Half> to, Half (*convert)(float), std::string_view type_name,
                  std::int64_t first_row, std::int64_t dim, const std::filesystem::path& path) {
  for (std::size_t i = 0; i < from.size(); ++i) {
    to[i] = convert(from[i]);
    if (is_infinite(to[i]) && std::isfinite(from[i])) {
      throw invalid_argument(fmt::format("row {} of {} holds {}; type {} ends before that, allowed is f32",
                                         first_row + static_cast<std::int64_t>(i) / dim, path.string(), from[i],
                                         type_name));
    }
  }
}

}  // namespace

corpus::corpus(std::span<const std::filesystem::path> paths, std::optional<element_type> stored) {
  for (const auto& path : paths) {
    vector_file file(path);
    if (parts_.empty()) {
      dim_ = file.dim();
      file_type_ = file.type();
    } else if (file.dim() != dim_ || file.type() != file_type_) {
      throw invalid_argument(fmt::format("{} is {} of dim {}; allowed beside {} is {} of dim {}", path.string(),
                                         to_string(file.type()), file.dim(), parts_.front().path.string(),
                                         to_string(file_type_), dim_));
    }
    rows_ += file.rows();
    parts_.push_back({path, std::move(file)});
  }
  type_ = stored.value_or(file_type_);
  const bool rounds = file_type_ == element_type::f32 && (type_ == element_type::f16 || type_ == element_type::bf16);
  if (type_ != file_type_ && !rounds) {
    throw invalid_argument(fmt::format("type is {}; allowed for {} is its own {}{}", to_string(type_),
                                       parts_.front().path.string(), to_string(file_type_),
                                       file_type_ == element_type::f32 ? ", or f16 or bf16, rounded" : ""));
  }
}

void corpus::for_each_slice(const std::function<void(any_matrix_view)>& take) {
  const std::int64_t row_bytes = std::max<std::int64_t>(1, dim_ * size_bytes(file_type_));
  const std::int64_t slice_rows = std::max<std::int64_t>(1, kSliceBytes / row_bytes);
  const auto slice_elements = static_cast<std::size_t>(std::min(slice_rows, rows_) * dim_);
  std::vector<std::byte> read(slice_elements * static_cast<std::size_t>(size_bytes(file_type_)));
  std::vector<float16> halves(type_ != file_type_ && type_ == element_type::f16 ? slice_elements : 0);
  std::vector<bfloat16> brains(type_ != file_type_ && type_ == element_type::bf16 ? slice_elements : 0);

  for (part& from : parts_) {
    for (std::int64_t first = 0; first < from.file.rows(); first += slice_rows) {
      const std::int64_t count = std::min(slice_rows, from.file.rows() - first);
      from.file.read(first, count, read.data());
      const void* rows = read.data();
      const std::span<const float> floats(reinterpret_cast<const float*>(read.data()),
                                          type_ == file_type_ ? 0 : static_cast<std::size_t>(count * dim_));
      if (!halves.empty()) {
        convert_rows(floats, std::span(halves), to_float16, "f16", first, dim_, from.path);
        rows = halves.data();
      } else if (!brains.empty()) {
        convert_rows(floats, std::span(brains), to_bfloat16, "bf16", first, dim_, from.path);
        rows = brains.data();
      }
      take({rows, type_, count, dim_, dim_});
    }
  }
}

vectors corpus::read_all() {
  vectors all{.rows = rows_, .dim = dim_, .type = type_, .data = {}};
  const std::int64_t row_bytes = dim_ * size_bytes(type_);
  all.data.resize(static_cast<std::size_t>(rows_ * row_bytes));
  std::byte* to = all.data.data();
  for_each_slice([&](any_matrix_view slice) {
    const auto bytes = static_cast<std::size_t>(slice.rows * row_bytes);
    std::memcpy(to, slice.data, bytes);
    to += bytes;
  });
  return all;
}

std::vector<std::int64_t> read_labels(const std::filesystem::path& path, std::int64_t rows) {
  id_table table = read_ids(path);
  if ((table.rows != 1 && table.dim != 1) || static_cast<std::int64_t>(table.data.size()) != rows) {
    throw invalid_argument(
        fmt::format("ids file {} is {} x {}; allowed is one id a row, {}", path.string(), table.rows, table.dim, rows));
  }
  return std::move(table.data);
}

}  // namespace shortlist::program
