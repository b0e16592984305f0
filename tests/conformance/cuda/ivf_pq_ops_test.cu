// The parts of IVF-PQ that take in rows, encode them and sum them: a GPU's against the CPU's, by bits.
#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "conformance/cuda/ivf_pq_arrays.hpp"
#include "conformance/either_device.hpp"

namespace shortlist::conformance {
namespace {

class IvfPqOpsOnGpu : public testing::Test {
 protected:
  void SetUp() override {
    const std::optional<device> found = first_device("cuda");
    if (!found) GTEST_SKIP() << "no GPU";
    pair.emplace(*found);
  }
  std::optional<ivf_pq_pair> pair;
  std::mt19937 random{20261122};

  std::int64_t one_of(std::initializer_list<std::int64_t> values) { return values.begin()[random() % values.size()]; }
};

constexpr element_type kTypes[] = {element_type::f32, element_type::f16, element_type::bf16, element_type::i8,
                                   element_type::u8};

/// Elements of any type, all finite.
std::vector<std::byte> make_elements(element_type type, ivf_pq_values kind, std::int64_t count, std::mt19937& random) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(count * size_bytes(type)));
  if (type == element_type::f32) {
    const std::vector<float> values = make_values(kind, count, random);
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  }
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  constexpr auto kBelowTwo = static_cast<std::byte>(0xBF);  // the exponent's first bit is clear
  if (size_bytes(type) == 2)
    for (std::size_t high = 1; high < bytes.size(); high += 2) bytes[high] &= kBelowTwo;
  return bytes;
}

TEST_F(IvfPqOpsOnGpu, TakeRowsByTheBit) {
  const std::int64_t dims[] = {1, 3, 4, 31, 96, 100, 128, 129, 260};
  for (const element_type type : kTypes) {
    for (const std::int64_t dim : dims) {
      for (const std::int64_t beyond : {0, 1, 4}) {
        for (const ivf_pq_values kind : kIvfPqValues) {
          const std::int64_t n = one_of({0, 1, 5, 33, 257});
          const std::int64_t stride = dim + beyond;
          const std::int64_t offset = beyond == 1 ? 1 : 0;  // rows that no vector load could read
          std::vector<std::byte> elements = make_elements(type, kind, offset + n * stride + 1, random);
          const std::int64_t zero_row = n / 2;
          if (n > 2)
            std::fill_n(elements.begin() + (offset + zero_row * stride) * size_bytes(type), dim * size_bytes(type),
                        std::byte{0});
          std::vector<float> rotation = make_values(ivf_pq_values::normal, dim * dim, random);
          for (const metric by : {metric::l2, metric::cosine}) {
            for (const bool turned : {false, true}) {
              SCOPED_TRACE(std::string(to_string(type)) + " dim=" + std::to_string(dim) +
                           " stride=" + std::to_string(stride) + " n=" + std::to_string(n) +
                           " values=" + std::to_string(static_cast<int>(kind)) + " " + std::string(to_string(by)) +
                           (turned ? " turned" : ""));
              gpu_array<std::byte> there(*pair, elements);
              gpu_array<float> matrix(*pair, rotation);
              std::vector<float> expected(static_cast<std::size_t>(n * dim), -7.0f);
              gpu_array<float> out(*pair, expected);
              const auto view = [&](const std::byte* data) {
                return any_matrix_view(data + offset * size_bytes(type), type, n, dim, stride);
              };
              pair->ops.take_rows(pair->on.native(), by, turned ? matrix.get() : nullptr, view(there.get()), out.get());
              pair->host.take_rows(nullptr, by, turned ? rotation.data() : nullptr, view(elements.data()),
                                   expected.data());
              expect_same_bits(out.values(), expected, "a row that was taken");
              if (HasFatalFailure()) return;
            }
          }
        }
      }
    }
  }
}

TEST_F(IvfPqOpsOnGpu, RowsThatAreNotFinite) {
  constexpr std::int64_t kRows = 3000;
  constexpr std::int64_t kDim = 37;
  for (const element_type type : kTypes) {
    const std::int64_t bytes = size_bytes(type);
    std::vector<std::byte> elements = make_elements(type, ivf_pq_values::huge, kRows * kDim, random);
    std::vector<std::int64_t> planted;
    for (std::int64_t row = 2; row < kRows && bytes > 1; row += 1 + static_cast<std::int64_t>(random() % 300)) {
      planted.push_back(row);
      const std::int64_t at = (row * kDim + static_cast<std::int64_t>(random() % kDim)) * bytes;
      const std::uint32_t infinity = type == element_type::f16 ? 0x7C00u : type == element_type::bf16 ? 0x7F80u : 0u;
      const std::uint32_t bits = bytes == 4 ? 0x7F800000u + (random() % 2) * 0x80000001u : infinity + random() % 2;
      std::memcpy(elements.data() + at, &bits, static_cast<std::size_t>(bytes));
    }
    gpu_array<std::byte> there(*pair, elements);
    for (const std::int64_t limit : {1, 3, 1000}) {
      std::vector<std::int64_t> expected = planted;
      expected.resize(std::min(planted.size(), static_cast<std::size_t>(limit)));
      EXPECT_EQ(pair->ops.rows_not_finite(pair->on.native(), {there.get(), type, kRows, kDim, kDim}, limit), expected)
          << to_string(type);
    }
    const std::int64_t before = planted.empty() ? kRows : planted[0];
    EXPECT_TRUE(pair->ops.rows_not_finite(pair->on.native(), {there.get(), type, before, kDim, kDim}, 3).empty());
  }
}

/// A shape with `pieces` pieces; of the last, `missing` elements are padding.
core::ivf_pq_shape shape_of(std::int64_t pieces, std::int64_t piece_dim, int bits, std::int64_t missing = 0) {
  return {.dim = pieces * piece_dim - missing, .nlist = 19, .pieces = pieces, .piece_dim = piece_dim, .bits = bits};
}

std::string described(const core::ivf_pq_shape& shape, std::int64_t n, ivf_pq_values kind) {
  return "dim=" + std::to_string(shape.dim) + " pieces=" + std::to_string(shape.pieces) +
         " piece_dim=" + std::to_string(shape.piece_dim) + " bits=" + std::to_string(shape.bits) +
         (shape.uniform ? " uniform" : "") + " n=" + std::to_string(n) +
         " values=" + std::to_string(static_cast<int>(kind));
}

TEST_F(IvfPqOpsOnGpu, ResidualsByTheBit) {
  for (int i = 0; i < 200; ++i) {
    const std::int64_t piece_dim = one_of({1, 2, 3, 4, 8, 12});
    core::ivf_pq_shape shape = shape_of(one_of({1, 2, 7, 12, 48}), piece_dim, 8);
    shape.dim -= static_cast<std::int64_t>(random()) % piece_dim;
    shape.encodes = i % 4 == 0 ? encoded::row : encoded::residual;
    const ivf_pq_values kind = kIvfPqValues[random() % std::size(kIvfPqValues)];
    const std::int64_t n = one_of({0, 1, 33, 1000, 9000});
    const std::int64_t stride = (shape.dim + 3) / 4 * 4 + 4 * static_cast<std::int64_t>(random() % 2);
    SCOPED_TRACE(described(shape, n, kind));
    const std::vector<float> rows = make_values(kind, n * shape.dim, random);
    const std::vector<float> centroids = make_values(kind, shape.nlist * stride, random);
    std::vector<std::int64_t> lists(static_cast<std::size_t>(n));
    for (std::int64_t& list : lists) list = static_cast<std::int64_t>(random()) % shape.nlist;
    std::vector<float> expected(static_cast<std::size_t>(n * shape.padded_dim()), -7.0f);
    gpu_array<float> rows_there(*pair, rows);
    gpu_array<float> centroids_there(*pair, centroids);
    gpu_array<std::int64_t> lists_there(*pair, lists);
    gpu_array<float> out(*pair, expected);
    pair->ops.residuals(pair->on.native(), shape, rows_there.get(), n, lists_there.get(), centroids_there.get(), stride,
                        out.get());
    pair->host.residuals(nullptr, shape, rows.data(), n, lists.data(), centroids.data(), stride, expected.data());
    expect_same_bits(out.values(), expected, "a residual");
    if (HasFatalFailure()) return;
  }
}

void compare_codes(ivf_pq_pair& pair, const core::ivf_pq_shape& shape, const std::vector<float>& codebook,
                   const std::vector<float>& residuals) {
  const std::int64_t n = static_cast<std::int64_t>(residuals.size()) / shape.padded_dim();
  std::vector<std::uint8_t> expected(static_cast<std::size_t>(n * shape.pieces), 0xA5);
  gpu_array<float> codebook_there(pair, codebook);
  gpu_array<float> residuals_there(pair, residuals);
  gpu_array<std::uint8_t> codes(pair, expected);
  pair.ops.encode(pair.on.native(), shape, codebook_there.get(), residuals_there.get(), n, codes.get());
  pair.host.encode(nullptr, shape, codebook.data(), residuals.data(), n, expected.data());
  expect_same_bits(codes.values(), expected, "a code");
}

TEST_F(IvfPqOpsOnGpu, ProductCodesByTheBit) {
  for (int i = 0; i < 400; ++i) {
    const std::int64_t piece_dim = one_of({1, 2, 3, 4, 5, 6, 8, 12, 17});
    const std::int64_t pieces = one_of({1, 2, 3, 12, 48, 128});
    const core::ivf_pq_shape shape = shape_of(pieces, piece_dim, static_cast<int>(one_of({4, 5, 6, 7, 8})));
    const std::int64_t n = one_of({0, 1, 31, 300, 700, 5000}) / (pieces * piece_dim > 400 ? 8 : 1);
    const ivf_pq_values kind = kIvfPqValues[random() % std::size(kIvfPqValues)];
    SCOPED_TRACE(described(shape, n, kind));
    std::vector<float> codebook = make_values(kind, shape.codebook_size(), random);
    std::vector<float> residuals = make_values(kind, n * shape.padded_dim(), random);
    if (i % 3 == 0) {  // every residual is a codeword, up to its last bits
      for (std::int64_t at = 0; at < static_cast<std::int64_t>(residuals.size()); ++at) {
        const std::int64_t piece = at % shape.padded_dim() / piece_dim;
        const std::int64_t codeword = piece * shape.codewords() + (at / piece_dim * 7) % shape.codewords();
        const float element = codebook[static_cast<std::size_t>(codeword * piece_dim + at % piece_dim)];
        residuals[static_cast<std::size_t>(at)] = at % 5 == 0 ? std::nextafter(element, 0.0f) : element;
      }
    }
    compare_codes(*pair, shape, codebook, residuals);
    if (HasFatalFailure()) return;
  }
}

TEST_F(IvfPqOpsOnGpu, ScalarCodesByTheBit) {
  constexpr float kSteps[] = {1.0f,   0.01f,  0.3f,    7e-3f, 0.0f,  1e-45f, 3e-45f, 1e-41f, 1.5e-38f,
                              1e-31f, 1e-25f, 3.3e10f, 1e29f, 2e30f, 4e33f,  1e36f,  0.125f};
  constexpr std::int64_t kRows = 4000;
  for (const int bits : {4, 8}) {
    for (const std::int64_t dim : {1, 17, 96, 100}) {
      core::ivf_pq_shape shape = shape_of(dim, 1, bits);
      shape.uniform = true;
      SCOPED_TRACE(described(shape, kRows, ivf_pq_values::normal));
      const float middle = static_cast<float>(shape.codewords() - 1) / 2.0f;
      std::vector<float> codebook;
      std::vector<float> residuals(static_cast<std::size_t>(kRows * dim));
      for (std::int64_t element = 0; element < dim; ++element) {
        const float step = kSteps[static_cast<std::size_t>(element + dim) % std::size(kSteps)];
        for (std::int64_t code = 0; code < shape.codewords(); ++code)
          codebook.push_back((static_cast<float>(code) - middle) * step);
        std::uniform_real_distribution<float> anywhere(-1.2f * middle, 1.2f * middle);
        for (std::int64_t row = 0; row < kRows; ++row) {
          const float x = anywhere(random);
          float& residual = residuals[static_cast<std::size_t>(row * dim + element)];
          switch (random() % 8) {
            case 0: residual = std::round(x) * step; break;  // half way between two codewords
            case 1: residual = std::nextafter(std::round(x) * step, random() % 2 ? 1e38f : -1e38f); break;
            case 2: residual = x * 3e36f; break;
            case 3: residual = x < 0.0f ? -std::numeric_limits<float>::infinity() : INFINITY; break;
            case 4: residual = x * 1e-40f; break;
            default: residual = x * step;
          }
        }
      }
      compare_codes(*pair, shape, codebook, residuals);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(IvfPqOpsOnGpu, SumsAreTheSame) {
  for (int i = 0; i < 120; ++i) {
    const std::int64_t dim = one_of({1, 3, 32, 96, 129});
    const std::int64_t groups = one_of({1, 5, 300});
    const std::int64_t n = one_of({0, 1, 40, 3000});
    const ivf_pq_values kind = i % 2 ? ivf_pq_values::normal : ivf_pq_values::ties;
    SCOPED_TRACE("dim=" + std::to_string(dim) + " groups=" + std::to_string(groups) + " n=" + std::to_string(n));
    const std::vector<float> rows = make_values(kind, n * dim, random);
    std::vector<std::int64_t> group_of(static_cast<std::size_t>(n));
    for (std::int64_t& group : group_of) group = static_cast<std::int64_t>(random()) % groups;
    const int scale = static_cast<int>(one_of({-3, 2, 30, 45}));
    std::vector<std::int64_t> sums(static_cast<std::size_t>(groups * dim), 11);
    std::vector<std::int64_t> counts(static_cast<std::size_t>(groups), 3);
    gpu_array<float> rows_there(*pair, rows);
    gpu_array<std::int64_t> groups_there(*pair, group_of);
    gpu_array<std::int64_t> sums_there(*pair, sums);
    gpu_array<std::int64_t> counts_there(*pair, counts);
    pair->ops.add_to_means(pair->on.native(), rows_there.get(), n, dim, groups_there.get(), scale, sums_there.get(),
                           counts_there.get());
    pair->host.add_to_means(nullptr, rows.data(), n, dim, group_of.data(), scale, sums.data(), counts.data());
    expect_same_bits(sums_there.values(), sums, "a sum");
    expect_same_bits(counts_there.values(), counts, "a count");
    if (HasFatalFailure()) return;
  }
}

TEST_F(IvfPqOpsOnGpu, SumsOfCodewordsAreTheSame) {
  for (int i = 0; i < 120; ++i) {
    const core::ivf_pq_shape shape = shape_of(one_of({1, 3, 48, 128}), one_of({1, 2, 3, 8, 17}), 4 + i % 5);
    const std::int64_t n = one_of({0, 1, 40, 3000});
    SCOPED_TRACE(described(shape, n, ivf_pq_values::normal));
    const std::vector<float> residuals = make_values(ivf_pq_values::normal, n * shape.padded_dim(), random);
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(n * shape.pieces));
    const std::int64_t used = i % 3 == 0 ? 1 : shape.codewords();  // all to one sum
    for (std::uint8_t& code : codes) code = static_cast<std::uint8_t>(static_cast<std::int64_t>(random()) % used);
    constexpr int kScale = 40;
    std::vector<std::int64_t> sums(static_cast<std::size_t>(shape.codebook_size()), -5);
    std::vector<std::int64_t> counts(static_cast<std::size_t>(shape.pieces * shape.codewords()), 3);
    gpu_array<float> residuals_there(*pair, residuals);
    gpu_array<std::uint8_t> codes_there(*pair, codes);
    gpu_array<std::int64_t> sums_there(*pair, sums);
    gpu_array<std::int64_t> counts_there(*pair, counts);
    pair->ops.add_to_codewords(pair->on.native(), shape, residuals_there.get(), n, codes_there.get(), kScale,
                               sums_there.get(), counts_there.get());
    pair->host.add_to_codewords(nullptr, shape, residuals.data(), n, codes.data(), kScale, sums.data(), counts.data());
    expect_same_bits(sums_there.values(), sums, "a sum");
    expect_same_bits(counts_there.values(), counts, "a count");
    if (HasFatalFailure()) return;
  }
}

TEST_F(IvfPqOpsOnGpu, MoreThan2To31Elements) {
  const core::ivf_pq_shape shape = shape_of(48, 2, 8);
  constexpr std::int64_t kRows = 22'600'000;  // of 96
  constexpr std::int64_t kLast = 1000;        // that are not 0
  core::backend& backend = core::backend_of(pair->gpu);
  const std::vector<float> codebook = make_values(ivf_pq_values::normal, shape.codebook_size(), random);
  const std::vector<float> last = make_values(ivf_pq_values::normal, kLast * shape.dim, random);
  std::vector<std::uint8_t> expected(static_cast<std::size_t>(kLast * shape.pieces));
  pair->host.encode(nullptr, shape, codebook.data(), last.data(), kLast, expected.data());

  gpu_array<float> codebook_there(*pair, codebook);
  buffer residuals(pair->gpu, kRows * shape.dim * 4);
  buffer codes(pair->gpu, kRows * shape.pieces);
  float* all = static_cast<float*>(residuals.data());
  backend.zero(pair->on.native(), all, residuals.bytes());
  const std::int64_t before = kRows - kLast;
  backend.copy_rows(pair->on.native(), core::copy_kind::host_to_device, all + before * shape.dim, shape.dim * 4,
                    last.data(), shape.dim * 4, shape.dim * 4, kLast);
  pair->ops.encode(pair->on.native(), shape, codebook_there.get(), all, kRows,
                   static_cast<std::uint8_t*>(codes.data()));
  std::vector<std::uint8_t> found(expected.size());
  backend.copy_rows(pair->on.native(), core::copy_kind::device_to_host, found.data(), shape.pieces,
                    static_cast<std::uint8_t*>(codes.data()) + before * shape.pieces, shape.pieces, shape.pieces,
                    kLast);
  expect_same_bits(found, expected, "a code");

  gpu_array<std::int64_t> sums(*pair, std::vector<std::int64_t>(static_cast<std::size_t>(shape.codebook_size())));
  gpu_array<std::int64_t> counts(*pair,
                                 std::vector<std::int64_t>(static_cast<std::size_t>(shape.pieces * shape.codewords())));
  pair->ops.add_to_codewords(pair->on.native(), shape, all, kRows, static_cast<std::uint8_t*>(codes.data()), 30,
                             sums.get(), counts.get());
  std::vector<std::int64_t> expected_sums(static_cast<std::size_t>(shape.codebook_size()));
  std::vector<std::int64_t> expected_counts(static_cast<std::size_t>(shape.pieces * shape.codewords()));
  pair->host.add_to_codewords(nullptr, shape, last.data(), kLast, expected.data(), 30, expected_sums.data(),
                              expected_counts.data());
  expect_same_bits(sums.values(), expected_sums, "a sum");
  const std::vector<std::int64_t> found_counts = counts.values();
  EXPECT_EQ(std::accumulate(found_counts.begin(), found_counts.end(), std::int64_t{0}), kRows * shape.pieces);
}

}  // namespace
}  // namespace shortlist::conformance
