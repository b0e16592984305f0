// Rows in the pages of lists on a GPU: where they go, what stands beside them, and that they come out again.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "conformance/cuda/ivf_pq_arrays.hpp"
#include "conformance/either_device.hpp"
#include "cuda/ivf_pq/page_layout.hpp"
#include "cuda/ivf_pq/prepared.hpp"

namespace shortlist::conformance {
namespace {

constexpr float kInverseUnit = 128.0f;

struct pages_case {
  core::ivf_pq_shape shape;
  std::vector<std::int64_t> adds;  ///< rows of each
  std::int64_t spare_pages = 0;    ///< that come first and are not used
  std::uint32_t seed = 1;
};

std::string describe(const pages_case& what) {
  const core::ivf_pq_shape& s = what.shape;
  return "dim=" + std::to_string(s.dim) + " nlist=" + std::to_string(s.nlist) + " pieces=" + std::to_string(s.pieces) +
         " piece_dim=" + std::to_string(s.piece_dim) + " bits=" + std::to_string(s.bits) +
         (s.uniform ? " uniform" : "") + " " + std::string(to_string(s.metric)) + " " +
         (s.encodes == encoded::row ? "rows" : "residuals") + " seed=" + std::to_string(what.seed);
}

/// The rows of a list in the order in which they were added.
struct row_there {
  std::uint32_t position;
  std::vector<std::uint8_t> codes;
};

/// Lists that grow by adds, on the GPU and, as plain vectors, on the host.
class growing_lists {
 public:
  growing_lists(ivf_pq_pair& pair, const pages_case& what)
      : pair_(pair),
        what_(what),
        shape_(what.shape),
        layout_(what.shape),
        random_(what.seed),
        stride_((shape_.dim + 3) / 4 * 4),
        expected_(static_cast<std::size_t>(shape_.nlist)),
        pages_of_(static_cast<std::size_t>(shape_.nlist)) {
    make_model();
    const std::int64_t rows = std::accumulate(what.adds.begin(), what.adds.end(), std::int64_t{0});
    max_pages_ =
        what.spare_pages + rows / core::kPageRows + shape_.nlist * static_cast<std::int64_t>(what.adds.size()) + 1;
    pages_.emplace(pair.gpu, max_pages_ * layout_.page_bytes());
    largest_.emplace(pair, std::vector<float>(1));
    free_.resize(static_cast<std::size_t>(max_pages_ - what.spare_pages));
    std::iota(free_.begin(), free_.end(), static_cast<std::uint32_t>(what.spare_pages));
    std::shuffle(free_.begin(), free_.end(), random_);
    pair.ops.clear_pages(pair.on.native(), shape_, pages(), what.spare_pages, max_pages_ - what.spare_pages);
  }

  void add(std::int64_t n) {
    std::vector<std::int64_t> lists(static_cast<std::size_t>(n));
    for (std::int64_t& list : lists) {  // of every three lists one is always empty, and one gets half of the rows
      list = random_() % 2 ? 0 : static_cast<std::int64_t>(random_()) % shape_.nlist;
      if (list % 3 == 1) list -= 1;
    }
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(n * shape_.pieces));
    for (std::uint8_t& code : codes)
      code = static_cast<std::uint8_t>(static_cast<std::int64_t>(random_()) % shape_.codewords());
    std::vector<std::uint32_t> positions(static_cast<std::size_t>(n));
    std::iota(positions.begin(), positions.end(), static_cast<std::uint32_t>(rows_));
    const bool in_order = random_() % 2;
    if (!in_order) std::shuffle(positions.begin(), positions.end(), random_);

    std::vector<std::uint32_t> sizes;
    for (const auto& list : expected_) sizes.push_back(static_cast<std::uint32_t>(list.size()));
    gpu_array<std::uint32_t> sizes_before(pair_, sizes);
    gpu_array<std::int64_t> lists_there(pair_, lists);
    gpu_array<std::uint8_t> codes_there(pair_, codes);
    gpu_array<std::uint32_t> positions_there(pair_, positions);
    gpu_array<std::uint32_t> counts(pair_, std::vector<std::uint32_t>(sizes.size(), 77));
    gpu_array<std::uint32_t> places(pair_, std::vector<std::uint32_t>(static_cast<std::size_t>(n), 77));
    pair_.ops.place_rows(pair_.on.native(), lists_there.get(), n, shape_.nlist, counts.get(), places.get());
    check_places(lists, counts.values(), places.values());

    for (std::int64_t row = 0; row < n; ++row) {
      const auto at = static_cast<std::size_t>(row);
      const auto begin = codes.begin() + row * shape_.pieces;
      expected_[static_cast<std::size_t>(lists[at])].push_back({positions[at], {begin, begin + shape_.pieces}});
    }
    make_table();
    pair_.ops.write_rows(pair_.on.native(), model_, lists_of(), sizes_before.get(), lists_there.get(), places.get(),
                         codes_there.get(), n, in_order ? rows_ : 0, in_order ? nullptr : positions_there.get());
    pair_.on.synchronize();
    rows_ += n;
  }

  /// All rows come out again, from any place on.
  void check_reading() {
    std::vector<std::int64_t> starts = {0};
    std::vector<std::uint8_t> codes;
    std::vector<std::uint32_t> positions;
    for (const auto& list : expected_) {
      starts.push_back(starts.back() + static_cast<std::int64_t>(list.size()));
      for (const row_there& row : list) {
        codes.insert(codes.end(), row.codes.begin(), row.codes.end());
        positions.push_back(row.position);
      }
    }
    gpu_array<std::int64_t> starts_there(pair_, starts);
    for (const std::int64_t first : {std::int64_t{0}, rows_ / 3, rows_}) {
      const std::int64_t n = first == 0 ? rows_ : (rows_ - first) / 2;
      gpu_array<std::uint8_t> read_codes(pair_, std::vector<std::uint8_t>(static_cast<std::size_t>(n * shape_.pieces)));
      gpu_array<std::uint32_t> read_positions(pair_, std::vector<std::uint32_t>(static_cast<std::size_t>(n)));
      pair_.ops.read_rows(pair_.on.native(), shape_, lists_of(), starts_there.get(), first, n, read_codes.get(),
                          read_positions.get());
      const auto code = codes.begin() + first * shape_.pieces;
      const auto position = positions.begin() + first;
      expect_same_bits(read_codes.values(), {code, code + n * shape_.pieces}, "a code that was read");
      expect_same_bits(read_positions.values(), {position, position + n}, "a position that was read");
    }
  }

  /// Every byte of every page is what page_layout.hpp and prepared.hpp say.
  void check_pages() {
    const std::int64_t bytes = (max_pages_ - what_.spare_pages) * layout_.page_bytes();
    std::vector<std::byte> all(static_cast<std::size_t>(bytes));
    core::backend_of(pair_.gpu).copy_rows(pair_.on.native(), core::copy_kind::device_to_host, all.data(), bytes,
                                          pages() + what_.spare_pages * layout_.page_bytes(), bytes, bytes, 1);
    double largest = 0.0;
    for (std::int64_t list = 0; list < shape_.nlist; ++list) {
      const auto& rows = expected_[static_cast<std::size_t>(list)];
      const auto& numbers = pages_of_[static_cast<std::size_t>(list)];
      for (std::size_t p = 0; p < numbers.size(); ++p) {
        const std::byte* page = all.data() + (numbers[p] - what_.spare_pages) * layout_.page_bytes();
        ASSERT_EQ(word_of(page, layout_.list_at()), list) << "the list of a page";
        for (std::int64_t r = 0; r < core::kPageRows; ++r) {
          const std::size_t place = p * core::kPageRows + static_cast<std::size_t>(r);
          largest = std::max(largest, check_row(page, r, list, place < rows.size() ? &rows[place] : nullptr));
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
    for (const std::uint32_t number : free_) {
      const std::byte* page = all.data() + (number - what_.spare_pages) * layout_.page_bytes();
      for (std::int64_t r = 0; r < core::kPageRows; ++r) check_row(page, r, 0, nullptr);
    }
    const double found = largest_->values()[0];
    EXPECT_GE(found, largest);
    EXPECT_LE(found, largest * (1 + 0x1p-22));
  }

 private:
  void make_model() {
    codebook_ = make_values(ivf_pq_values::normal, shape_.codebook_size(), random_);
    for (std::int64_t i = 0; i < shape_.codebook_size(); ++i) {
      const std::int64_t codeword = i / shape_.piece_dim;
      const std::int64_t element = codeword / shape_.codewords() * shape_.piece_dim + i % shape_.piece_dim;
      float& value = codebook_[static_cast<std::size_t>(i)];
      if (shape_.uniform) value = multiple_of(codeword % shape_.codewords()) * (0.01f + 0.001f * element);
      if (element >= shape_.dim) value = 0.0f;
    }
    centroids_ = make_values(ivf_pq_values::normal, shape_.nlist * stride_, random_);
    codebook_there_.emplace(pair_, codebook_);
    centroids_there_.emplace(pair_, centroids_);
    std::vector<std::byte> header(cuda::kPreparedTableAt);
    const cuda::prepared_header numbers{.query_scale = 1.0f,
                                        .unit = 1 / kInverseUnit,
                                        .inverse_unit = kInverseUnit,
                                        .largest_centroid = 1.0f,
                                        .largest_step = 1.0f};
    std::memcpy(header.data(), &numbers, sizeof(numbers));
    prepared_.emplace(pair_, header);
    model_.shape = shape_;
    model_.assigns = {.rows = centroids_there_->get(),
                      .row_stride_bytes = stride_ * 4,
                      .metric = metric::l2,
                      .count = shape_.nlist,
                      .dim = shape_.dim};
    model_.probes = model_.assigns;
    model_.codebook = codebook_there_->get();
    model_.prepared = prepared_->get();
  }

  float multiple_of(std::int64_t code) const {
    return static_cast<float>(code) - static_cast<float>(shape_.codewords() - 1) / 2.0f;
  }

  void check_places(const std::vector<std::int64_t>& lists, const std::vector<std::uint32_t>& counts,
                    const std::vector<std::uint32_t>& places) const {
    std::vector<std::uint32_t> expected_counts(static_cast<std::size_t>(shape_.nlist));
    std::vector<std::uint32_t> expected_places;
    for (const std::int64_t list : lists) expected_places.push_back(expected_counts[static_cast<std::size_t>(list)]++);
    expect_same_bits(counts, expected_counts, "a count");
    expect_same_bits(places, expected_places, "a place");
  }

  void make_table() {
    std::vector<std::uint32_t> table;
    std::vector<std::uint32_t> first;
    for (std::size_t list = 0; list < expected_.size(); ++list) {
      auto& numbers = pages_of_[list];
      while (numbers.size() * core::kPageRows < expected_[list].size()) {
        numbers.push_back(free_.back());
        free_.pop_back();
      }
      first.push_back(static_cast<std::uint32_t>(table.size()));
      table.insert(table.end(), numbers.begin(), numbers.end());
    }
    first.push_back(static_cast<std::uint32_t>(table.size()));
    table_.emplace(pair_, table);
    first_.emplace(pair_, first);
  }

  core::ivf_pq_lists lists_of() {
    core::ivf_pq_lists lists;
    lists.pages = pages();
    lists.table = table_->get();
    lists.first = first_->get();
    lists.largest = largest_->get();
    return lists;
  }
  std::byte* pages() { return static_cast<std::byte*>(pages_->data()); }

  static std::uint32_t word_of(const std::byte* page, std::int64_t at) {
    std::uint32_t word = 0;
    std::memcpy(&word, page + at, sizeof(word));
    return word;
  }

  /// A place of a page, with a row or without. Returns how large the row is.
  double check_row(const std::byte* page, std::int64_t r, std::int64_t list, const row_there* row) const {
    double term = 0.0;
    double magnitude = 0.0;  // of the terms added up, for the error of their rounding
    double squares = 0.0;
    for (std::int64_t piece = 0; piece < layout_.padded_pieces(); ++piece) {
      const cuda::page_layout::place at = layout_.place_of(r, piece);
      const auto byte = static_cast<std::uint32_t>(page[at.byte]);
      const std::uint32_t code = layout_.code_bits == 8 ? byte : byte >> at.shift & 0xFu;
      const bool is_code = row && piece < shape_.pieces;
      const std::uint32_t expected = is_code ? row->codes[static_cast<std::size_t>(piece)] : 0u;
      EXPECT_EQ(code, expected) << "row " << r << " of a page of list " << list << ", piece " << piece;
      if (!is_code) continue;
      for (std::int64_t i = 0; i < shape_.piece_dim; ++i) {
        const std::int64_t element = piece * shape_.piece_dim + i;
        if (element >= shape_.dim) break;
        const double w =
            codebook_[static_cast<std::size_t>((piece * shape_.codewords() + code) * shape_.piece_dim + i)];
        const double c =
            shape_.encodes == encoded::row ? 0.0 : centroids_[static_cast<std::size_t>(list * stride_ + element)];
        term += c * w + w * w / 2;
        magnitude += std::fabs(c * w) + w * w / 2;
        squares += shape_.uniform ? std::pow(multiple_of(code), 2) : w * w;
      }
    }
    const std::uint32_t position = word_of(page, layout_.positions_at() + 4 * r);
    const std::uint32_t term_bits = word_of(page, layout_.terms_at() + 4 * r);
    float found = 0.0f;
    std::memcpy(&found, &term_bits, sizeof(found));
    EXPECT_EQ(position, row ? row->position : core::kNoPosition);
    if (!row) {
      EXPECT_EQ(found, std::numeric_limits<float>::infinity());
    } else if (shape_.metric == metric::l2) {  // one rounding to fp32, and the sums of fp64 in another order
      EXPECT_NEAR(found, term * kInverseUnit,
                  (std::fabs(term) * 0x1p-24 + magnitude * 0x1p-44) * static_cast<double>(kInverseUnit));
    } else {
      EXPECT_EQ(found, 0.0f);
    }
    return std::sqrt(squares);
  }

  ivf_pq_pair& pair_;
  const pages_case& what_;
  core::ivf_pq_shape shape_;
  cuda::page_layout layout_;
  std::mt19937 random_;
  std::int64_t stride_;
  std::int64_t rows_ = 0;
  std::int64_t max_pages_ = 0;
  std::vector<std::vector<row_there>> expected_;
  std::vector<std::vector<std::uint32_t>> pages_of_;
  std::vector<std::uint32_t> free_;
  std::vector<float> codebook_;
  std::vector<float> centroids_;
  core::ivf_pq_model model_;
  std::optional<gpu_array<float>> codebook_there_;
  std::optional<gpu_array<float>> centroids_there_;
  std::optional<gpu_array<float>> largest_;
  std::optional<gpu_array<std::byte>> prepared_;
  std::optional<gpu_array<std::uint32_t>> table_;
  std::optional<gpu_array<std::uint32_t>> first_;
  std::optional<buffer> pages_;
};

class IvfPqPagesOnGpu : public testing::Test {
 protected:
  void SetUp() override {
    const std::optional<device> found = first_device("cuda");
    if (!found) GTEST_SKIP() << "no GPU";
    pair.emplace(*found);
  }
  void run(const pages_case& what) {
    SCOPED_TRACE(describe(what));
    growing_lists lists(*pair, what);
    for (const std::int64_t n : what.adds) {
      lists.add(n);
      if (HasFatalFailure()) return;
      lists.check_reading();
      if (HasFatalFailure()) return;
    }
    lists.check_pages();
  }
  std::optional<ivf_pq_pair> pair;
};

TEST_F(IvfPqPagesOnGpu, RowsComeOutAsTheyWentIn) {
  constexpr metric kMetrics[] = {metric::l2, metric::inner_product, metric::cosine};
  std::uint32_t seed = 0;
  for (const std::int64_t pieces : {1, 2, 3, 7, 12, 16, 33, 48, 96, 128}) {
    for (const std::int64_t piece_dim : {1, 2, 3, 4, 8, 12}) {
      for (const int bits : {4, 5, 8}) {
        ++seed;
        pages_case what{.shape = {.dim = pieces * piece_dim - seed % piece_dim,
                                  .nlist = seed % 4 == 0   ? 1
                                           : seed % 4 == 1 ? 300
                                                           : 17,
                                  .pieces = pieces,
                                  .piece_dim = piece_dim,
                                  .bits = bits,
                                  .uniform = piece_dim == 1 && bits != 5 && seed % 2 == 0,
                                  .encodes = seed % 5 == 0 ? encoded::row : encoded::residual,
                                  .metric = kMetrics[seed % 3]},
                        .adds = {900, 0, 1, 700},
                        .seed = seed};
        run(what);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(IvfPqPagesOnGpu, ManyListsAndRows) {
  run({.shape = {.dim = 32, .nlist = 70'000, .pieces = 16, .piece_dim = 2, .bits = 4},
       .adds = {200'000, 50'000},
       .seed = 9});
}

TEST_F(IvfPqPagesOnGpu, PagesBeyond4GiB) {
  run({.shape = {.dim = 96, .nlist = 5, .pieces = 96, .piece_dim = 1, .bits = 8},
       .adds = {3000},
       .spare_pages = 1'700'000,
       .seed = 10});
}

}  // namespace
}  // namespace shortlist::conformance
