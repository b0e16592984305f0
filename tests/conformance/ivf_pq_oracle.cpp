#include "conformance/ivf_pq_oracle.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <limits>

#include "io/safetensors.hpp"

namespace shortlist::conformance {
namespace {

namespace fs = std::filesystem;

/// A path for one file, which is removed at the end.
class temporary_file {
 public:
  temporary_file()
      : path_(fs::temp_directory_path() / fmt::format("shortlist_oracle_{}_{}", getpid(), static_cast<void*>(this))) {}
  ~temporary_file() {
    std::error_code ignored;
    fs::remove(path_, ignored);
  }
  temporary_file(const temporary_file&) = delete;
  temporary_file& operator=(const temporary_file&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

template <class T>
std::vector<T> tensor(const io::safetensors_file& file, const char* name) {
  std::vector<T> values(static_cast<std::size_t>(file.tensor(name).bytes) / sizeof(T));
  file.read_checked(name, values.data());
  return values;
}

/// Code `piece` of a row that is packed at `bytes`.
std::uint8_t code_at(const std::uint8_t* bytes, std::int64_t piece, int bits) {
  int code = 0;
  for (int bit = 0; bit < bits; ++bit) {
    const std::int64_t at = piece * bits + bit;
    code |= (bytes[at / 8] >> (at % 8) & 1) << bit;
  }
  return static_cast<std::uint8_t>(code);
}

}  // namespace

ivf_pq_oracle oracle_of(const ivf_pq_index& index) {
  const temporary_file saved;
  index.save(saved.path());
  const io::safetensors_file file(saved.path());
  const ivf_pq_options& options = index.options();
  const bool is_scalar = options.code != code_kind::pq;
  ivf_pq_oracle oracle;
  reference::ivf_pq_model& model = oracle.model;
  model = {.dim = options.dim,
           .by = options.metric,
           .encodes = options.encodes,
           .nlist = options.nlist,
           .pieces = is_scalar ? options.dim : options.pq_dim,
           .piece_dim = is_scalar ? 1 : (options.dim + options.pq_dim - 1) / options.pq_dim,
           .bits = options.code == code_kind::pq    ? options.pq_bits
                   : options.code == code_kind::sq4 ? 4
                                                    : 8};
  model.centroids = tensor<float>(file, "centroids");
  model.codebook = is_scalar ? reference::scalar_codebook(tensor<float>(file, "steps"), model.bits)
                             : tensor<float>(file, "codebook");
  if (options.rotation != rotation::none) model.rotation = tensor<float>(file, "rotation");

  const std::vector<std::uint32_t> sizes = tensor<std::uint32_t>(file, "sizes");
  const std::vector<std::uint32_t> positions = tensor<std::uint32_t>(file, "positions");
  const std::vector<std::uint8_t> packed = tensor<std::uint8_t>(file, "codes");
  const std::int64_t row_bytes = (model.pieces * model.bits + 7) / 8;
  oracle.rows.resize(positions.size());
  std::size_t next = 0;
  for (std::size_t list = 0; list < sizes.size(); ++list) {
    for (std::uint32_t i = 0; i < sizes[list]; ++i, ++next) {
      reference::ivf_pq_row& row = oracle.rows.at(positions[next]);
      row.list = static_cast<std::int64_t>(list);
      for (std::int64_t piece = 0; piece < model.pieces; ++piece) {
        row.codes.push_back(code_at(packed.data() + static_cast<std::int64_t>(next) * row_bytes, piece, model.bits));
      }
    }
  }
  return oracle;
}

ivf_pq_result ivf_pq_oracle::expected(any_matrix_view kept, matrix_view<const float> queries,
                                      const ivf_pq_search_options& options) const {
  const float worst =
      model.by == metric::l2 ? std::numeric_limits<float>::infinity() : -std::numeric_limits<float>::infinity();
  ivf_pq_result result;
  result.queries = queries.rows;
  result.k = options.k;
  for (std::int64_t q = 0; q < queries.rows; ++q) {
    std::vector<reference::hit> hits = reference::ivf_pq_search(
        model, rows, kept, queries.data + q * queries.row_stride, options.k, options.nprobe, options.refine_ratio);
    result.k_found.push_back(static_cast<std::int64_t>(hits.size()));
    hits.resize(static_cast<std::size_t>(options.k), {worst, -1});
    for (const reference::hit& hit : hits) {
      result.scores.push_back(hit.score);
      result.ids.push_back(hit.position);
    }
  }
  return result;
}

std::string first_difference(const ivf_pq_result& found, const ivf_pq_result& expected) {
  if (found.ids.size() != expected.ids.size() || found.scores.size() != expected.scores.size()) return "sizes differ";
  for (std::size_t i = 0; i < expected.ids.size(); ++i) {
    const auto found_bits = std::bit_cast<std::uint32_t>(found.scores[i]);
    const auto expected_bits = std::bit_cast<std::uint32_t>(expected.scores[i]);
    if (found.ids[i] == expected.ids[i] && found_bits == expected_bits) continue;
    return fmt::format("query {} place {}: found {} with {} ({:08x}), expected {} with {} ({:08x})",
                       static_cast<std::int64_t>(i) / expected.k, static_cast<std::int64_t>(i) % expected.k,
                       found.ids[i], found.scores[i], found_bits, expected.ids[i], expected.scores[i], expected_bits);
  }
  for (std::size_t q = 0; q < expected.k_found.size(); ++q) {
    if (found.k_found.at(q) == expected.k_found[q]) continue;
    return fmt::format("query {}: k_found {}, expected {}", q, found.k_found[q], expected.k_found[q]);
  }
  return "";
}

}  // namespace shortlist::conformance
