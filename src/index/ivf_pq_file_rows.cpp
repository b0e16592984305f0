// What the files of IVF-PQ indexes hold: models and rows, written and read.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>

#include "index/file_parts.hpp"
#include "index/ivf_pq_codes.hpp"
#include "index/ivf_pq_encode.hpp"
#include "index/ivf_pq_file.hpp"
#include "shortlist/error.hpp"

namespace shortlist::index::ivf_pq_file {
namespace {

constexpr std::int64_t kPositionBytes = sizeof(std::uint32_t);
// Of a trained number: sums of two are finite then.
constexpr float kMostMagnitude = 0x1p126f;

template <class T>
void write_values(io::safetensors_writer& out, const char* name, std::span<const T> values) {
  out.write(name, values.data(), static_cast<std::int64_t>(values.size_bytes()));
}

std::int64_t rows_per_chunk(std::int64_t row_bytes) { return std::max<std::int64_t>(1, kFileChunkBytes / row_bytes); }

std::vector<float> read_floats(const io::safetensors_file& file, const char* name, verify checks) {
  std::vector<float> values(static_cast<std::size_t>(file.tensor(name).bytes) / sizeof(float));
  read_tensor(file, name, checks, values.data());
  const auto wrong =
      std::find_if(values.begin(), values.end(), [](float x) { return !(std::abs(x) < kMostMagnitude); });
  if (wrong != values.end()) {
    throw_corrupt(file.path(), fmt::format("{} holds {}; allowed are numbers below 2^126", name, *wrong));
  }
  return values;
}

/// Sizes of the lists, which must add up to the rows.
std::vector<std::uint32_t> read_sizes(const io::safetensors_file& file, const description& found, verify checks) {
  std::vector<std::uint32_t> sizes(static_cast<std::size_t>(found.options.nlist));
  read_tensor(file, kSizes, checks, sizes.data());
  const auto sum = std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0});
  if (sum != static_cast<std::uint64_t>(found.rows)) {
    throw_corrupt(file.path(),
                  fmt::format("the sizes of the lists add up to {}; the file has {} rows", sum, found.rows));
  }
  return sizes;
}

/// Positions of a file's rows: each below the number of rows, none twice.
class position_check {
 public:
  position_check(const std::filesystem::path& file, std::int64_t rows)
      : file_(file), seen_(static_cast<std::size_t>(rows)) {}
  void take(std::span<const std::uint32_t> positions) {
    for (const std::uint32_t position : positions) {
      if (position >= seen_.size()) {
        throw_corrupt(file_, fmt::format("a position is {}; the file has {} rows", position, seen_.size()));
      }
      if (seen_[position]) throw_corrupt(file_, fmt::format("two rows have the position {}", position));
      seen_[position] = true;
    }
  }

 private:
  const std::filesystem::path& file_;
  std::vector<bool> seen_;
};

/// Rows of a file on their way into the lists: chunks of codes, with lists and positions.
class row_reader {
 public:
  row_reader(core::backend& backend, void* stream, const io::safetensors_file& file, const description& found,
             verify checks)
      : backend_(backend),
        stream_(stream),
        file_(file),
        shape_(shape_of(found.options)),
        sizes_(read_sizes(file, found, checks)),
        seen_(file.path(), found.rows) {
    if (checks == verify::full) file.verify(kPositions);
  }

  /// Rows [first, ...) in the order of the lists, from their packed codes.
  void take(std::int64_t first, std::span<const std::byte> packed, std::int64_t position_base,
            const core::ivf_pq_model& model, ivf_pq_store::addition& to) {
    const auto n = static_cast<std::int64_t>(packed.size()) / packed_bytes(shape_);
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(n * shape_.pieces));
    if (!unpack_codes(shape_, reinterpret_cast<const std::uint8_t*>(packed.data()), n, codes.data())) {
      throw_corrupt(file_.path(), "codes holds bits behind a row's last code");
    }
    std::vector<std::uint32_t> positions(static_cast<std::size_t>(n));
    file_.read(kPositions, first * kPositionBytes, n * kPositionBytes, positions.data());
    seen_.take(positions);
    for (std::uint32_t& position : positions) position += static_cast<std::uint32_t>(position_base);
    std::vector<std::int64_t> lists(static_cast<std::size_t>(n));
    for (std::int64_t& list : lists) list = next_list();
    const auto upload = [&](const auto& values) {
      return uploaded(backend_, stream_, values.data(), static_cast<std::int64_t>(values.size() * sizeof(values[0])));
    };
    const device_memory on_device[] = {upload(lists), upload(codes), upload(positions)};
    to.write(stream_, model,
             {.n = n,
              .lists = on_device[0].as<const std::int64_t>(),
              .codes = on_device[1].as<const std::uint8_t>(),
              .positions = on_device[2].as<const std::uint32_t>()});
  }

 private:
  std::int64_t next_list() {
    while (of_list_ == sizes_[static_cast<std::size_t>(list_)]) {
      ++list_;
      of_list_ = 0;
    }
    ++of_list_;
    return list_;
  }

  core::backend& backend_;
  void* stream_;
  const io::safetensors_file& file_;
  core::ivf_pq_shape shape_;
  std::vector<std::uint32_t> sizes_;
  position_check seen_;
  std::int64_t list_ = 0;
  std::uint32_t of_list_ = 0;
};

/// Kept rows and ids of a file.
void load_kept(flat_store& rows, core::backend& backend, void* stream, const io::safetensors_file& file,
               const description& found, verify checks, mapped in_file) {
  const std::vector<std::int64_t> ids = read_ids(file, found, checks);
  const auto ids_of = [&](std::int64_t first, std::int64_t count) {
    return found.has_ids ? std::span<const std::int64_t>(ids).subspan(static_cast<std::size_t>(first),
                                                                      static_cast<std::size_t>(count))
                         : std::span<const std::int64_t>();
  };
  const ivf_pq_options& options = found.options;
  const auto take = [&](std::int64_t first, const auto& rows_from) {
    try {
      rows_from();
    } catch (const invalid_argument& failure) {
      throw_corrupt(file.path(), fmt::format("{} (counted from row {})", failure.what(), first));
    }
  };
  const auto append = [&](const any_matrix_view& view, std::int64_t first) {
    rows.append(stream, core::copy_kind::host_to_device, view, ids_of(first, view.rows));
  };
  const auto view_of = [&](const void* data, std::int64_t count) {
    return any_matrix_view(data, options.type, count, options.dim, options.dim);
  };
  if (options.rows == kept_rows::none) return take(0, [&] { append(view_of(nullptr, found.rows), 0); });
  const bool maps = in_file == mapped::rows;
  const std::int64_t row_bytes = options.dim * size_bytes(options.type);
  const auto take_chunk = [&](std::int64_t offset, std::span<const std::byte> data) {
    const std::int64_t first = offset / row_bytes;
    const any_matrix_view view = view_of(data.data(), static_cast<std::int64_t>(data.size()) / row_bytes);
    take(first, [&] {
      check_finite(backend, stream, core::copy_kind::host_to_device, view);
      if (!maps) append(view, first);
    });
  };
  if (!maps || checks == verify::full) {
    stream_tensor(file, kVectors, rows_per_chunk(row_bytes) * row_bytes, checks, take_chunk);
  }
  if (maps) take(0, [&] { rows.map(stream, file.map(kVectors), found.rows, ids_of(0, found.rows)); });
}

}  // namespace

void write_model(io::safetensors_writer& out, const ivf_pq_arrays& arrays) {
  write_values<float>(out, kCentroids, arrays.centroids);
  if (arrays.steps.empty()) {
    write_values<float>(out, kCodebook, arrays.codebook);
  } else {
    write_values<float>(out, kSteps, arrays.steps);
  }
  if (!arrays.rotation.empty()) write_values<float>(out, kRotation, arrays.rotation);
}

void write_rows(io::safetensors_writer& out, const ivf_pq_rows& from, void* stream, const ivf_pq_options& options) {
  const core::ivf_pq_shape shape = shape_of(options);
  const std::int64_t count = from.count();
  write_values<std::uint32_t>(out, kSizes, from.codes.sizes());
  const std::int64_t step = rows_per_chunk(shape.pieces);
  std::vector<std::uint8_t> codes, packed;
  std::vector<std::uint32_t> positions;
  const auto read_from = [&](std::int64_t first) {
    const std::int64_t n = std::min(step, count - first);
    codes.resize(static_cast<std::size_t>(n * shape.pieces));
    positions.resize(static_cast<std::size_t>(n));
    from.codes.read(stream, first, n, codes.data(), positions.data());
    return n;
  };
  for (std::int64_t first = 0; first < count; first += step) {
    const std::int64_t n = read_from(first);
    packed.resize(static_cast<std::size_t>(n * packed_bytes(shape)));
    pack_codes(shape, codes.data(), n, packed.data());
    write_values<std::uint8_t>(out, kCodes, packed);
  }
  for (std::int64_t first = 0; first < count; first += step) {  // read again: a file has one tensor after the other
    read_from(first);
    write_values<std::uint32_t>(out, kPositions, positions);
  }
  write_values<std::int64_t>(out, kIds, from.kept.ids().all());
  if (options.rows == kept_rows::none) return;
  const std::int64_t row_bytes = options.dim * size_bytes(options.type);
  const std::int64_t kept_step = rows_per_chunk(row_bytes);
  std::vector<std::byte> chunk(static_cast<std::size_t>(std::min(kept_step, count) * row_bytes));
  for (std::int64_t first = 0; first < count; first += kept_step) {
    const std::int64_t n = std::min(kept_step, count - first);
    from.kept.read(stream, first, n, chunk.data());
    out.write(kVectors, chunk.data(), n * row_bytes);
  }
}

void write_no_rows(io::safetensors_writer& out, const ivf_pq_options& options) {
  const std::vector<std::uint32_t> no_sizes(static_cast<std::size_t>(options.nlist));
  write_values<std::uint32_t>(out, kSizes, no_sizes);
}

ivf_pq_arrays read_model(const io::safetensors_file& file, const description& found, verify checks) {
  const core::ivf_pq_shape shape = shape_of(found.options);
  ivf_pq_arrays arrays;
  arrays.exponent = found.exponent;
  arrays.centroids = read_floats(file, kCentroids, checks);
  if (found.options.rotation != rotation::none) arrays.rotation = read_floats(file, kRotation, checks);
  if (shape.uniform) {
    arrays.steps = read_floats(file, kSteps, checks);
    if (!std::all_of(arrays.steps.begin(), arrays.steps.end(), [](float step) { return step > 0.0f; })) {
      throw_corrupt(file.path(), "steps holds one that is not above 0");
    }
    arrays.codebook = codebook_of(shape, arrays.steps);
  } else {
    arrays.codebook = read_floats(file, kCodebook, checks);
    if (!is_rounded(arrays.codebook, arrays.exponent)) {
      throw_corrupt(file.path(), fmt::format("codebook holds numbers that are no halves times 2^{}", arrays.exponent));
    }
  }
  return arrays;
}

std::vector<std::int64_t> read_ids(const io::safetensors_file& file, const description& found, verify checks) {
  std::vector<std::int64_t> ids;
  if (!found.has_ids) return ids;
  ids.resize(static_cast<std::size_t>(found.rows));
  read_tensor(file, kIds, checks, ids.data());
  return ids;
}

void read_rows(ivf_pq_rows& into, void* stream, const core::ivf_pq_model& model, const io::safetensors_file& file,
               const description& found, verify checks, mapped in_file) {
  if (found.rows == 0) return;
  const std::int64_t position_base = into.count();
  row_reader reader(into.backend, stream, file, found, checks);
  ivf_pq_store::addition added(into.codes);
  const std::int64_t row_bytes = packed_bytes(model.shape);
  stream_tensor(file, kCodes, rows_per_chunk(row_bytes) * row_bytes, checks,
                [&](std::int64_t offset, std::span<const std::byte> data) {
                  reader.take(offset / row_bytes, data, position_base, model, added);
                });
  added.prepare_commit(stream);
  load_kept(into.kept, into.backend, stream, file, found, checks, in_file);
  added.commit();
}

}  // namespace shortlist::index::ivf_pq_file
