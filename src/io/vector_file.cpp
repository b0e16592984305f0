// The public calls for files of vectors, over the layouts of the single formats.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>

#include "io/allocate.hpp"
#include "io/vector_layout.hpp"
#include "shortlist/error.hpp"
#include "shortlist/io.hpp"

static_assert(std::endian::native == std::endian::little, "files are little-endian and are read as they lie");

namespace shortlist {
namespace io {

std::string_view to_string(stored_type type) {
  switch (type) {
    case stored_type::f32: return "f32";
    case stored_type::f16: return "f16";
    case stored_type::i8: return "i8";
    case stored_type::u8: return "u8";
    case stored_type::i32: return "i32";
    case stored_type::i64: return "i64";
  }
  return "";
}

std::optional<std::int64_t> checked_end(std::int64_t begin, std::int64_t rows, std::int64_t dim,
                                        std::int64_t element_bytes) {
  std::int64_t row_bytes = 0;
  std::int64_t bytes = 0;
  std::int64_t end = 0;
  // A row is checked by itself: it must not overflow where there are no rows either.
  if (__builtin_mul_overflow(dim, element_bytes, &row_bytes) || __builtin_mul_overflow(rows, row_bytes, &bytes) ||
      __builtin_add_overflow(begin, bytes, &end)) {
    return std::nullopt;
  }
  return end;
}

void throw_corrupt(const input_file& file, const std::string& problem) {
  throw corrupt_file(fmt::format("'{}': {}", file.path().string(), problem));
}

namespace {

vector_layout any_layout(const input_file& file, vector_format format) {
  switch (format) {
    case vector_format::fvecs: return vecs_layout(file, stored_type::f32);
    case vector_format::bvecs: return vecs_layout(file, stored_type::u8);
    case vector_format::ivecs: return vecs_layout(file, stored_type::i32);
    case vector_format::fbin: return bin_layout(file, stored_type::f32);
    case vector_format::u8bin: return bin_layout(file, stored_type::u8);
    case vector_format::i8bin: return bin_layout(file, stored_type::i8);
    case vector_format::ibin: return bin_layout(file, stored_type::i32);
    case vector_format::npy: return npy_layout(file);
  }
  throw invalid_argument(
      fmt::format("format is {}; allowed are the values of vector_format", static_cast<int>(format)));
}

}  // namespace

vector_layout layout_of(const input_file& file, vector_format format) {
  const vector_layout layout = any_layout(file, format);
  if (layout.rows == 0 && layout.dim > kMaxDimWithoutRows) {
    throw_corrupt(file,
                  fmt::format("dim is {}; allowed in a file without rows is 1 to {}", layout.dim, kMaxDimWithoutRows));
  }
  return layout;
}

}  // namespace io

namespace {

struct named_format {
  std::string_view name;
  vector_format format;
};
constexpr named_format kFormats[] = {{"fvecs", vector_format::fvecs}, {"bvecs", vector_format::bvecs},
                                     {"ivecs", vector_format::ivecs}, {"fbin", vector_format::fbin},
                                     {"u8bin", vector_format::u8bin}, {"i8bin", vector_format::i8bin},
                                     {"ibin", vector_format::ibin},   {"npy", vector_format::npy}};
constexpr std::string_view kExtensions = ".fvecs, .bvecs, .ivecs, .fbin, .u8bin, .i8bin, .ibin or .npy";
constexpr std::string_view kCutExtension = ".crop_nb_";  // base.1B.fbin.crop_nb_10000000: the first rows of a file

constexpr std::int64_t kBufferBytes = std::int64_t{4} << 20;  // of one conversion step: large enough for the disk

element_type vector_type(const io::input_file& file, io::stored_type type) {
  switch (type) {
    case io::stored_type::f32: return element_type::f32;
    case io::stored_type::f16: return element_type::f16;
    case io::stored_type::i8: return element_type::i8;
    case io::stored_type::u8: return element_type::u8;
    case io::stored_type::i32:
    case io::stored_type::i64: break;
  }
  throw unsupported(fmt::format("'{}' holds {}, which is for ids; vectors are f32, f16, i8 or u8", file.path().string(),
                                io::to_string(type)));
}

}  // namespace

std::string_view to_string(vector_format format) {
  for (const named_format& known : kFormats) {
    if (known.format == format) return known.name;
  }
  throw invalid_argument(
      fmt::format("format is {}; allowed are the values of vector_format", static_cast<int>(format)));
}

vector_format format_of(const std::filesystem::path& path) {
  const std::string extension = path.extension().string();
  const bool is_cut = extension.starts_with(kCutExtension);
  const std::string named = is_cut ? path.stem().extension().string() : extension;
  for (const named_format& known : kFormats) {
    if (!named.empty() && named.substr(1) == known.name) return known.format;
  }
  throw invalid_argument(
      fmt::format("the extension of '{}' is '{}'; allowed is {}", path.string(), extension, kExtensions));
}

struct vector_file::impl {
  io::input_file file;
  io::vector_layout layout;
};

vector_file::vector_file(const std::filesystem::path& path) : vector_file(path, format_of(path)) {}

vector_file::vector_file(const std::filesystem::path& path, vector_format format) {
  io::input_file file(path);
  const io::vector_layout layout = io::layout_of(file, format);
  impl_ = std::make_unique<impl>(impl{std::move(file), layout});
}

vector_file::~vector_file() = default;
vector_file::vector_file(vector_file&&) noexcept = default;
vector_file& vector_file::operator=(vector_file&&) noexcept = default;

std::int64_t vector_file::rows() const noexcept { return impl_->layout.rows; }
std::int64_t vector_file::dim() const noexcept { return impl_->layout.dim; }
element_type vector_file::type() const { return vector_type(impl_->file, impl_->layout.type); }

void vector_file::read(std::int64_t first, std::int64_t count, void* out) {
  static_cast<void>(type());
  if (first < 0 || count < 0 || first > rows() || count > rows() - first) {
    throw invalid_argument(fmt::format("first is {} and count {}; allowed are rows [0, {}) of '{}'", first, count,
                                       rows(), impl_->file.path().string()));
  }
  if (count == 0) return;
  if (out == nullptr) throw invalid_argument(fmt::format("out is null; allowed is memory for {} rows", count));
  io::read_rows(impl_->file, impl_->layout, first, count, out);
}

vectors read_vectors(const std::filesystem::path& path) { return read_vectors(path, format_of(path)); }

vectors read_vectors(const std::filesystem::path& path, vector_format format) {
  vector_file file(path, format);
  vectors all{file.rows(), file.dim(), file.type(), {}};
  all.data = io::allocate<std::byte>(path, all.rows * all.dim * size_bytes(all.type));
  file.read(0, all.rows, all.data.data());
  return all;
}

id_table read_ids(const std::filesystem::path& path) { return read_ids(path, format_of(path)); }

id_table read_ids(const std::filesystem::path& path, vector_format format) {
  const io::input_file file(path);
  const io::vector_layout layout = io::layout_of(file, format);
  if (layout.type != io::stored_type::i32 && layout.type != io::stored_type::i64) {
    throw unsupported(
        fmt::format("'{}' holds {}; ids are i32 or i64", file.path().string(), io::to_string(layout.type)));
  }
  id_table table{layout.rows, layout.dim, io::allocate<std::int64_t>(path, layout.rows * layout.dim)};
  if (layout.rows == 0) return table;
  if (layout.type == io::stored_type::i64) {
    io::read_rows(file, layout, 0, layout.rows, table.data.data());
    return table;
  }
  const std::int64_t rows_at_once =
      std::min(layout.rows, std::max(std::int64_t{1}, kBufferBytes / layout.data_bytes()));
  auto narrow = io::allocate<std::int32_t>(path, rows_at_once * layout.dim);
  for (std::int64_t first = 0; first < layout.rows; first += rows_at_once) {
    const std::int64_t rows = std::min(rows_at_once, layout.rows - first);
    io::read_rows(file, layout, first, rows, narrow.data());
    std::copy_n(narrow.begin(), rows * layout.dim, table.data.begin() + first * layout.dim);
  }
  return table;
}

namespace {

constexpr std::int64_t kBinHeaderBytes = 8;

template <class Source>
void check_view(std::string_view name, const matrix_view<const Source>& view) {
  constexpr std::int64_t kMost = std::numeric_limits<std::uint32_t>::max();
  const auto check = [&](std::string_view field, std::int64_t value, std::int64_t least, std::int64_t most) {
    if (value < least || value > most) {
      throw invalid_argument(fmt::format("{}.{} is {}; allowed is {} to {}", name, field, value, least, most));
    }
  };
  check("rows", view.rows, 0, kMost);
  check("cols", view.cols, 1, view.rows == 0 ? io::kMaxDimWithoutRows : kMost);
  if (view.row_stride < view.cols) {
    throw invalid_argument(fmt::format("{}.row_stride is {}; allowed is {} or more", name, view.row_stride, view.cols));
  }
  if (view.rows > 0 && view.data == nullptr) {
    throw invalid_argument(fmt::format("{}.data is null; allowed is memory of {} rows", name, view.rows));
  }
}

// Converts and writes in pieces of a fixed size, whatever the shape.
template <class Stored, class Source, class Convert>
void write_bin(const std::filesystem::path& path, const matrix_view<const Source>& view, const Convert& convert) {
  io::output_file file(path);
  const std::uint32_t header[2] = {static_cast<std::uint32_t>(view.rows), static_cast<std::uint32_t>(view.cols)};
  file.write(0, header, kBinHeaderBytes);
  constexpr std::size_t kPiece = static_cast<std::size_t>(kBufferBytes) / sizeof(Stored);
  std::vector<Stored> piece;
  piece.reserve(std::min(kPiece, static_cast<std::size_t>(view.rows) * static_cast<std::size_t>(view.cols)));
  std::int64_t offset = kBinHeaderBytes;
  const auto flush = [&] {
    const auto bytes = static_cast<std::int64_t>(piece.size() * sizeof(Stored));
    file.write(offset, piece.data(), bytes);
    offset += bytes;
    piece.clear();
  };
  for (std::int64_t row = 0; row < view.rows; ++row) {
    const Source* values = view.data + row * view.row_stride;
    for (std::int64_t col = 0; col < view.cols; ++col) {
      piece.push_back(convert(values[col], row, col));
      if (piece.size() == kPiece) flush();
    }
  }
  flush();
  file.commit();
}

}  // namespace

void write_ibin(const std::filesystem::path& path, matrix_view<const std::int64_t> ids) {
  check_view("ids", ids);
  write_bin<std::int32_t>(path, ids, [](std::int64_t id, std::int64_t row, std::int64_t col) {
    using limits = std::numeric_limits<std::int32_t>;
    if (id < limits::min() || id > limits::max()) {
      throw invalid_argument(fmt::format("ids[{}, {}] is {}; allowed in an ibin file is {} to {}", row, col, id,
                                         limits::min(), limits::max()));
    }
    return static_cast<std::int32_t>(id);
  });
}

void write_fbin(const std::filesystem::path& path, matrix_view<const float> data) {
  check_view("data", data);
  write_bin<float>(path, data, [](float value, std::int64_t, std::int64_t) { return value; });
}

}  // namespace shortlist
