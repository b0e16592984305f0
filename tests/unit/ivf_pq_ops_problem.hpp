// A random IVF-PQ model with its rows and queries, twice: as the CPU backend has them and as the reference does.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "core/ivf_pq.hpp"
#include "cpu/backend.hpp"
#include "cpu/isa.hpp"
#include "reference/ivf_pq.hpp"

namespace shortlist::unit {

/// What rows and queries are like.
enum class ivf_pq_data { normal, ties, all_equal, huge, denormal, zero_rows, far_from_zero, odd_queries };
inline constexpr ivf_pq_data kIvfPqData[] = {
    ivf_pq_data::normal,   ivf_pq_data::ties,      ivf_pq_data::all_equal,     ivf_pq_data::huge,
    ivf_pq_data::denormal, ivf_pq_data::zero_rows, ivf_pq_data::far_from_zero, ivf_pq_data::odd_queries};
inline constexpr const char* kIvfPqDataNames[] = {"normal",   "ties",      "all_equal",     "huge",
                                                  "denormal", "zero_rows", "far_from_zero", "odd_queries"};

struct ivf_pq_case {
  std::int64_t dim = 24;
  std::int64_t pieces = 12;
  int bits = 8;
  bool uniform = false;  ///< pieces and piece_dim follow dim
  encoded encodes = encoded::residual;
  metric by = metric::l2;
  bool rotated = false;
  std::int64_t nlist = 7;
  std::int64_t rows = 500;
  std::int64_t queries = 3;
  element_type type = element_type::f32;  ///< of the rows kept
  ivf_pq_data data = ivf_pq_data::normal;
  std::uint32_t seed = 1;
};

inline std::string describe(const ivf_pq_case& of) {
  std::ostringstream out;
  out << "isa=" << cpu::to_string(cpu::current_isa()) << " dim=" << of.dim << " pieces=" << of.pieces
      << " bits=" << of.bits << " uniform=" << of.uniform
      << " encodes=" << (of.encodes == encoded::row ? "row" : "residual") << " metric=" << to_string(of.by)
      << " rotated=" << of.rotated << " nlist=" << of.nlist << " rows=" << of.rows << " queries=" << of.queries
      << " type=" << to_string(of.type) << " data=" << kIvfPqDataNames[static_cast<int>(of.data)]
      << " seed=" << of.seed;
  return out.str();
}

inline std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }

/// Memory of the CPU backend.
template <class T>
class backend_array {
 public:
  backend_array() = default;
  explicit backend_array(std::int64_t size)
      : memory_(cpu::cpu_backend().allocate(std::max<std::int64_t>(size, 1) * static_cast<std::int64_t>(sizeof(T)))) {
    std::fill_n(reinterpret_cast<std::byte*>(memory_.get()), size * static_cast<std::int64_t>(sizeof(T)), std::byte{0});
  }
  T* get() const { return static_cast<T*>(memory_.get()); }

 private:
  struct releaser {
    void operator()(void* memory) const { cpu::cpu_backend().release(memory); }
  };
  std::unique_ptr<void, releaser> memory_;
};

/// A corpus of dense fp32 rows, padded as the backend asks.
struct padded_corpus {
  padded_corpus() = default;
  padded_corpus(const std::vector<float>& rows, std::int64_t dim, metric by) {
    const std::int64_t count = static_cast<std::int64_t>(rows.size()) / dim;
    const std::int64_t stride = (dim + 15) / 16 * 16;
    memory = backend_array<float>(count * stride);
    norms = backend_array<float>(count);
    for (std::int64_t row = 0; row < count; ++row) {
      std::copy_n(rows.data() + row * dim, dim, memory.get() + row * stride);
    }
    corpus = {.rows = memory.get(), .row_stride_bytes = stride * 4, .metric = by, .count = count, .dim = dim};
    if (by == metric::cosine) {
      cpu::cpu_backend().inverse_norms(nullptr, corpus, 0, count, norms.get());
      corpus.inverse_norms = norms.get();
    }
  }
  backend_array<float> memory, norms;
  core::flat_corpus corpus;
};

/// The model and the rows; lists are built by the backend's ops from the reference's lists and codes.
class ivf_pq_problem {
 public:
  explicit ivf_pq_problem(const ivf_pq_case& of) : of_(of), random_(of.seed) {
    make_model();
    make_rows();
    fill_lists();
  }

  const ivf_pq_case& what() const { return of_; }
  const reference::ivf_pq_model& oracle() const { return oracle_; }
  const core::ivf_pq_model& model() const { return model_; }
  const core::ivf_pq_lists& lists() const { return lists_; }
  const std::vector<reference::ivf_pq_row>& coded() const { return coded_; }
  const std::vector<std::int64_t>& list_starts() const { return list_starts_; }
  any_matrix_view rows() const { return matrix_view<const float>(rows_.data(), of_.rows, of_.dim); }
  const float* query(std::int64_t q) const { return queries_.data() + q * query_stride(); }
  std::int64_t query_stride() const { return of_.dim + 3; }

  std::vector<reference::hit> expected(std::int64_t q, std::int64_t k, std::int64_t nprobe, std::int64_t ratio) const {
    return reference::ivf_pq_search(oracle_, coded_, rows(), query(q), k, nprobe, ratio);
  }

 private:
  float normal(float scale = 1.0f) { return std::normal_distribution<float>(0.0f, scale)(random_); }

  float element(std::int64_t row, std::int64_t column) {
    switch (of_.data) {
      case ivf_pq_data::ties: return row % 11 == 0 ? normal() : static_cast<float>((row % 3 + column) % 4);
      case ivf_pq_data::all_equal: return 0.75f - static_cast<float>(column % 3);
      case ivf_pq_data::huge: return normal() * (column % 5 == 0 ? 1e19f : 1.0f) * (row % 7 == 0 ? 1e18f : 1.0f);
      case ivf_pq_data::denormal: return normal() * 1e-39f;
      case ivf_pq_data::zero_rows: return row % 3 == 0 ? 0.0f : row % 3 == 1 ? normal() * 1e-25f : normal();
      case ivf_pq_data::far_from_zero: return 5000.0f + normal();
      case ivf_pq_data::normal:
      case ivf_pq_data::odd_queries: break;
    }
    return normal();
  }

  void make_model() {
    const std::int64_t piece_dim = of_.uniform ? 1 : (of_.dim + of_.pieces - 1) / of_.pieces;
    if (of_.uniform) of_.pieces = of_.dim;
    oracle_ = {.dim = of_.dim,
               .by = of_.by,
               .encodes = of_.encodes,
               .nlist = of_.nlist,
               .pieces = of_.pieces,
               .piece_dim = piece_dim,
               .bits = of_.bits};
    // Codewords are halves, and some are the same.
    std::vector<float> steps(static_cast<std::size_t>(of_.dim));
    for (float& step : steps) step = std::fabs(normal(of_.bits == 8 ? 0.02f : 0.3f));
    if (of_.uniform) {
      oracle_.codebook = reference::scalar_codebook(steps, of_.bits);
    } else {
      oracle_.codebook.resize(static_cast<std::size_t>((of_.pieces * piece_dim) << of_.bits));
      for (float& word : oracle_.codebook) {
        word = static_cast<float>(static_cast<int>(random_() % 2047) - 1023) / 512.0f;
      }
      for (std::size_t i = 0; i < oracle_.codebook.size(); ++i) {
        const auto in_padding = static_cast<std::int64_t>(i) / (piece_dim << of_.bits) * piece_dim +
                                static_cast<std::int64_t>(i) % piece_dim;
        if (in_padding >= of_.dim) oracle_.codebook[i] = 0.0f;
      }
      std::copy_n(oracle_.codebook.begin(), piece_dim, oracle_.codebook.begin() + 5 * piece_dim);
    }
    if (of_.data == ivf_pq_data::huge) {
      for (float& word : oracle_.codebook) word *= 0x1p62f;
    }
    oracle_.centroids.resize(static_cast<std::size_t>(of_.nlist * of_.dim));
    for (std::size_t i = 0; i < oracle_.centroids.size(); ++i) {
      const auto row = static_cast<std::int64_t>(i) / of_.dim;
      oracle_.centroids[i] = element(row + 1, static_cast<std::int64_t>(i) % of_.dim);
    }
    // Two lists with one centroid.
    if (of_.nlist > 2) std::copy_n(oracle_.centroids.begin(), of_.dim, oracle_.centroids.begin() + 2 * of_.dim);
    if (of_.rotated) {
      oracle_.rotation.resize(static_cast<std::size_t>(of_.dim * of_.dim));
      for (float& value : oracle_.rotation) value = normal(1.0f / std::sqrt(static_cast<float>(of_.dim)));
    }

    probes_ = padded_corpus(oracle_.centroids, of_.dim, of_.by);
    assigns_ = padded_corpus(oracle_.centroids, of_.dim, metric::l2);
    model_.shape = {.dim = of_.dim,
                    .nlist = of_.nlist,
                    .pieces = of_.pieces,
                    .piece_dim = piece_dim,
                    .bits = of_.bits,
                    .uniform = of_.uniform,
                    .encodes = of_.encodes,
                    .metric = of_.by};
    model_.probes = probes_.corpus;
    model_.assigns = assigns_.corpus;
    model_.codebook = oracle_.codebook.data();
    steps_ = steps;
    if (of_.uniform) model_.steps = steps_.data();
    if (of_.rotated) model_.rotation = oracle_.rotation.data();
    core::ivf_pq_ops& ops = cpu::cpu_backend().ivf_pq();
    prepared_ = backend_array<std::byte>(ops.prepared_bytes(model_.shape));
    ops.prepare(nullptr, model_, prepared_.get());
    model_.prepared = prepared_.get();
  }

  void make_rows() {
    rows_.resize(static_cast<std::size_t>(of_.rows * of_.dim));
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      rows_[i] = element(static_cast<std::int64_t>(i) / of_.dim, static_cast<std::int64_t>(i) % of_.dim);
    }
    // Some rows are there twice.
    for (std::int64_t row = 3; row + 40 < of_.rows; row += 50) {
      std::copy_n(rows_.begin() + row * of_.dim, of_.dim, rows_.begin() + (row + 40) * of_.dim);
    }
    queries_.resize(static_cast<std::size_t>(of_.queries * query_stride()), std::numeric_limits<float>::quiet_NaN());
    for (std::int64_t q = 0; q < of_.queries; ++q) {
      float* query = queries_.data() + q * query_stride();
      for (std::int64_t i = 0; i < of_.dim; ++i) query[i] = element(q + 1, i);
      if (of_.data != ivf_pq_data::odd_queries) continue;
      const float odd[] = {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), 3e38f};
      if (q % 4 < 3) query[of_.dim / 2] = odd[q % 4];
      if (q % 4 == 3) std::fill_n(query, of_.dim, 0.0f);
    }
    for (std::int64_t row = 0; row < of_.rows; ++row) {
      const std::vector<float> taken = reference::take_row(oracle_, rows(), row);
      reference::ivf_pq_row coded;
      coded.list = reference::assign(oracle_, taken);
      coded.codes = reference::encode(oracle_, reference::to_encode(oracle_, taken, coded.list));
      coded_.push_back(std::move(coded));
    }
    kept_ = padded_corpus(rows_, of_.dim, of_.by);
  }

  /// Writes the rows in three calls, into pages whose numbers are scattered.
  void fill_lists() {
    core::ivf_pq_ops& ops = cpu::cpu_backend().ivf_pq();
    const auto nlist = static_cast<std::size_t>(of_.nlist);
    sizes_.assign(nlist, 0);
    for (const reference::ivf_pq_row& row : coded_) ++sizes_[static_cast<std::size_t>(row.list)];
    first_.assign(nlist + 1, 0);
    list_starts_.assign(nlist + 1, 0);
    for (std::size_t list = 0; list < nlist; ++list) {
      first_[list + 1] = first_[list] + sizes_[list] / static_cast<std::uint32_t>(core::kPageRows) + 1;
      list_starts_[list + 1] = list_starts_[list] + sizes_[list];
    }
    table_.resize(first_.back());
    std::iota(table_.begin(), table_.end(), 0u);
    std::shuffle(table_.begin(), table_.end(), random_);
    const auto pages = static_cast<std::int64_t>(table_.size());
    pages_ = backend_array<std::byte>(pages * ops.page_bytes(model_.shape));
    ops.clear_pages(nullptr, model_.shape, pages_.get(), 0, pages);
    lists_ = {.pages = pages_.get(),
              .table = table_.data(),
              .first = first_.data(),
              .sizes = sizes_.data(),
              .largest = &largest_,
              .rows = of_.rows,
              .longest = *std::max_element(sizes_.begin(), sizes_.end()),
              .kept = kept_.corpus};

    std::vector<std::uint32_t> before(nlist, 0);
    const std::int64_t ends[] = {0, of_.rows / 3, std::min(of_.rows / 3 + 1, of_.rows), of_.rows};
    for (int call = 0; call < 3; ++call) {
      const std::int64_t begin = ends[call];
      const std::int64_t n = ends[call + 1] - begin;
      std::vector<std::int64_t> to(static_cast<std::size_t>(n));
      std::vector<std::uint8_t> codes;
      std::vector<std::uint32_t> positions(static_cast<std::size_t>(n)), places(static_cast<std::size_t>(n));
      for (std::int64_t i = 0; i < n; ++i) {
        const reference::ivf_pq_row& row = coded_[static_cast<std::size_t>(begin + i)];
        to[static_cast<std::size_t>(i)] = row.list;
        codes.insert(codes.end(), row.codes.begin(), row.codes.end());
        positions[static_cast<std::size_t>(i)] = static_cast<std::uint32_t>(begin + i);
      }
      std::vector<std::uint32_t> counts(nlist, 77);
      ops.place_rows(nullptr, to.data(), n, of_.nlist, counts.data(), places.data());
      ops.write_rows(nullptr, model_, lists_, before.data(), to.data(), places.data(), codes.data(), n, begin,
                     call == 0 ? positions.data() : nullptr);
      for (std::size_t list = 0; list < nlist; ++list) before[list] += counts[list];
    }
  }

  ivf_pq_case of_;
  std::mt19937 random_;
  reference::ivf_pq_model oracle_;
  core::ivf_pq_model model_;
  core::ivf_pq_lists lists_;
  padded_corpus probes_, assigns_, kept_;
  std::vector<float> rows_, queries_, steps_;
  std::vector<reference::ivf_pq_row> coded_;
  std::vector<std::uint32_t> sizes_, first_, table_;
  std::vector<std::int64_t> list_starts_;
  backend_array<std::byte> pages_, prepared_;
  float largest_ = 0.0f;
};

}  // namespace shortlist::unit
