// How much of what is near IVF-PQ indexes find: floors of recall@10 on real data and on clusters.
//
// Indexes are the same to the bit on every device, so that what is found here is what is found everywhere; floors are
// a little below it, for those who change the training.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "conformance/either_device.hpp"
#include "conformance/harness.hpp"
#include "conformance/real_data.hpp"
#include "shortlist/ivf_pq_index.hpp"

namespace shortlist::conformance {
namespace {

constexpr std::int64_t kNeighbours = 10;

class IvfPqRecall : public EitherDevice {};

INSTANTIATE_TEST_SUITE_P(Devices, IvfPqRecall, testing::Values("cpu", "cuda"),
                         [](const auto& test) { return std::string(test.param); });

/// One kind of codes, and the least recall that is allowed by its codes alone and with 4 x 10 rows refined.
struct floor_of {
  code_kind code;
  std::int64_t pq_dim;
  int pq_bits;
  double by_code, refined;
};

/// `truth` holds truth_stride ids a query, best first.
void check_recall(device where, any_matrix_view base, any_matrix_view queries, const std::vector<std::int64_t>& truth,
                  std::int64_t truth_stride, std::int64_t nlist, std::int64_t nprobe,
                  const std::vector<floor_of>& floors) {
  for (const floor_of& line : floors) {
    ivf_pq_index index(where, {.dim = base.cols,
                               .type = base.type,
                               .nlist = nlist,
                               .code = line.code,
                               .pq_dim = line.pq_dim,
                               .pq_bits = line.pq_bits,
                               .rows = kept_rows::device});
    index.train(base);
    index.add(base);
    for (const std::int64_t ratio : {0, 4}) {
      const ivf_pq_result found = index.search(queries, {.k = kNeighbours, .nprobe = nprobe, .refine_ratio = ratio});
      std::int64_t hits = 0;
      for (std::int64_t q = 0; q < queries.rows; ++q) {
        const auto best = truth.begin() + q * truth_stride;
        for (const std::int64_t id : found.ids_of(q)) hits += std::count(best, best + kNeighbours, id);
      }
      const double recall = static_cast<double>(hits) / static_cast<double>(queries.rows * kNeighbours);
      EXPECT_GE(recall, ratio == 0 ? line.by_code : line.refined)
          << where.name() << " " << to_string(line.code) << " bits=" << line.pq_bits << " refine_ratio=" << ratio;
      testing::Test::RecordProperty(
          std::string(to_string(line.code)) + std::to_string(line.pq_bits) + "_refine" + std::to_string(ratio),
          std::to_string(recall));
    }
  }
}

TEST_P(IvfPqRecall, OfClusters) {
  constexpr std::int64_t kDim = 32, kRows = 20'000, kQueries = 200, kCentres = 150;
  std::mt19937 random(17);
  std::normal_distribution<float> normal;
  std::vector<float> centres(kCentres * kDim);
  for (float& value : centres) value = normal(random);
  const auto draw = [&](std::int64_t count) {
    std::vector<float> rows;
    for (std::int64_t row = 0; row < count; ++row) {
      const std::int64_t centre = static_cast<std::int64_t>(random() % kCentres) * kDim;
      for (std::int64_t i = 0; i < kDim; ++i) {
        rows.push_back(centres[static_cast<std::size_t>(centre + i)] + 0.6f * normal(random));
      }
    }
    return rows;
  };
  const std::vector<float> rows = draw(kRows), queries = draw(kQueries);
  const matrix_view<const float> base(rows.data(), kRows, kDim), asked(queries.data(), kQueries, kDim);
  flat_index flat(where_, {.dim = kDim, .metric = metric::l2});
  flat.add(base);
  check_recall(where_, base, asked, flat.search(asked, {.k = kNeighbours}).ids, kNeighbours, 128, 16,
               {{code_kind::pq, 16, 8, 0.86, 0.99},
                {code_kind::pq, 16, 4, 0.63, 0.97},
                {code_kind::sq4, 0, 8, 0.84, 0.99},
                {code_kind::sq8, 0, 8, 0.97, 0.99}});
}

TEST_P(IvfPqRecall, OfBigann10k) {
  const std::optional<byte_set> set = bigann10k();
  if (!set) GTEST_SKIP() << kNoBigann10k;
  check_recall(
      where_, set->base.view(), set->queries.view(), set->truth.data, set->truth.dim, 64, 12,
      {{code_kind::pq, 64, 8, 0.88, 0.96}, {code_kind::pq, 64, 4, 0.76, 0.96}, {code_kind::sq8, 0, 8, 0.96, 0.96}});
}

TEST_P(IvfPqRecall, OfFashionMnist) {
  const std::optional<byte_set> set = fashion_mnist();
  if (!set) GTEST_SKIP() << kNoFashionMnist;
  if (!run_settings().full) GTEST_SKIP() << "trains for a minute on two cores: --full";
  check_recall(where_, set->base.view(), set->queries.view(), set->truth.data, set->truth.dim, 128, 16,
               {{code_kind::pq, 98, 8, 0.79, 0.98}, {code_kind::pq, 196, 4, 0.72, 0.97}});
}

}  // namespace
}  // namespace shortlist::conformance
