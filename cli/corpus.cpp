// Vector files as one corpus. See corpus.hpp.
#include "corpus.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

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

void corpus::read_part(part& from, std::int64_t first, std::int64_t count, std::byte* out) {
  if (type_ == file_type_) return from.file.read(first, count, out);
  unrounded_.resize(static_cast<std::size_t>(count * dim_));
  from.file.read(first, count, unrounded_.data());
  if (type_ == element_type::f16) {
    const std::span to(reinterpret_cast<float16*>(out), unrounded_.size());
    convert_rows(unrounded_, to, to_float16, "f16", first, dim_, from.path);
  } else {
    const std::span to(reinterpret_cast<bfloat16*>(out), unrounded_.size());
    convert_rows(unrounded_, to, to_bfloat16, "bf16", first, dim_, from.path);
  }
}

vectors corpus::room_for(std::int64_t count) const {
  vectors room{.rows = count, .dim = dim_, .type = type_, .data = {}};
  room.data.resize(static_cast<std::size_t>(count * dim_ * size_bytes(type_)));
  return room;
}

void corpus::for_each_slice(const std::function<void(any_matrix_view)>& take) {
  const std::int64_t row_bytes = std::max<std::int64_t>(1, dim_ * size_bytes(file_type_));
  const std::int64_t slice_rows = std::max<std::int64_t>(1, kSliceBytes / row_bytes);
  vectors slice = room_for(std::min(slice_rows, rows_));
  for (part& from : parts_) {
    for (std::int64_t first = 0; first < from.file.rows(); first += slice_rows) {
      const std::int64_t count = std::min(slice_rows, from.file.rows() - first);
      read_part(from, first, count, slice.data.data());
      take({slice.data.data(), type_, count, dim_, dim_});
    }
  }
}

vectors corpus::read(std::int64_t first, std::int64_t count) {
  vectors rows = room_for(count);
  std::byte* to = rows.data.data();
  for (part& from : parts_) {
    if (count == 0) break;
    if (first >= from.file.rows()) {
      first -= from.file.rows();
      continue;
    }
    const std::int64_t here = std::min(count, from.file.rows() - first);
    read_part(from, first, here, to);
    to += here * dim_ * size_bytes(type_);
    count -= here;
    first = 0;
  }
  return rows;
}

vectors corpus::sample(std::int64_t count) {
  if (count >= rows_) return read_all();
  vectors rows = room_for(count);
  std::size_t at = 0;
  std::int64_t before = 0;  // rows of earlier files
  for (std::int64_t i = 0; i < count; ++i) {
    __extension__ using wide = __int128;
    const auto number = static_cast<std::int64_t>(static_cast<wide>(i) * rows_ / count);
    while (number - before >= parts_[at].file.rows()) before += parts_[at++].file.rows();
    read_part(parts_[at], number - before, 1, rows.data.data() + i * dim_ * size_bytes(type_));
  }
  return rows;
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
