// Additions to IVF-PQ indexes on every device: in whatever pieces and from wherever rows come, the file that is saved
// is the same, byte for byte.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "conformance/either_device.hpp"
#include "shortlist/shortlist.hpp"
#include "unit/core_environment.hpp"

namespace shortlist::conformance {
namespace {

constexpr std::int64_t kDim = 40;
constexpr std::int64_t kRows = 3000;

class IvfPqAdds : public EitherDevice {
 protected:
  IvfPqAdds() : rows_(static_cast<std::size_t>(kRows * kDim)), ids_(static_cast<std::size_t>(kRows)) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    for (float& value : rows_) value = normal(random) + static_cast<float>(random() % 3);
    std::iota(ids_.rbegin(), ids_.rend(), 50);
  }
  ~IvfPqAdds() override { std::filesystem::remove(file_); }

  ivf_pq_index trained(device where, const ivf_pq_options& options) const {
    ivf_pq_index index(where, options);
    index.train(part(0, kRows), {.iterations = 4});
    return index;
  }
  matrix_view<const float> part(std::int64_t first, std::int64_t count) const {
    return {rows_.data() + first * kDim, count, kDim};
  }
  std::span<const std::int64_t> ids(std::int64_t first, std::int64_t count) const {
    return std::span(ids_).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
  }
  std::string saved(const ivf_pq_index& index) const {
    index.save(file_);
    std::ifstream in(file_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }

  std::vector<float> rows_;
  std::vector<std::int64_t> ids_;
  std::filesystem::path file_ =
      std::filesystem::temp_directory_path() / ("shortlist-adds-" + std::to_string(std::random_device()()));
};

INSTANTIATE_TEST_SUITE_P(Devices, IvfPqAdds, testing::Values("cpu", "cuda"),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(IvfPqAdds, InPiecesFromTheHostAndTheDeviceMakeOneFile) {
  for (const metric by : {metric::inner_product, metric::cosine, metric::l2}) {
    for (const code_kind code : {code_kind::pq, code_kind::sq4, code_kind::sq8}) {
      const ivf_pq_options options = {.dim = kDim,
                                      .metric = by,
                                      .nlist = 20,
                                      .code = code,
                                      .pq_bits = 5,
                                      .rotation = code == code_kind::sq8 ? rotation::random : rotation::none,
                                      .rows = kept_rows::host};
      ivf_pq_index at_once = trained(device::cpu(), options);
      at_once.add(part(0, kRows), ids(0, kRows));
      ivf_pq_index grown = trained(where_, options);
      const stream s(where_);
      bool from_device = false;
      for (std::int64_t first = 0, count = 1; first < kRows; first += count, count = count * 3 / 2 + 1) {
        count = std::min(count, kRows - first);
        if (from_device) {
          buffer rows(where_, count * kDim * static_cast<std::int64_t>(sizeof(float)));
          rows.upload(s, part(first, count).data);
          grown.add(s, {rows.data(), element_type::f32, count, kDim, kDim}, ids(first, count));
        } else {
          grown.add(part(first, count), ids(first, count));
        }
        from_device = !from_device;
      }
      EXPECT_EQ(saved(grown), saved(at_once)) << to_string(by) << " " << to_string(code) << " on " << where_.name();
    }
  }
}

TEST_P(IvfPqAdds, ThatFindNoMemoryChangeNothing) {
  if (where_.kind() == device_kind::cpu) GTEST_SKIP() << "the budget is that of a GPU; unit tests fail on the CPU";
  ivf_pq_index index = trained(where_, {.dim = kDim, .metric = metric::l2, .nlist = 20, .rows = kept_rows::device});
  index.add(part(0, 1000));
  const std::string before = saved(index);
  int failures = 0;
  for (std::int64_t budget = 1024;; budget *= 2) {  // from the first allocation on, then in the middle
    bool failed = false;
    try {
      const test::environment_value limited("SHORTLIST_DEVICE_BUDGET", std::to_string(budget).c_str());
      index.add(part(1000, 2000));
    } catch (const out_of_memory&) {
      failed = true;
    }
    if (!failed) break;
    ++failures;
    ASSERT_EQ(saved(index), before) << "a budget of " << budget;
  }
  EXPECT_GE(failures, 3);
  EXPECT_EQ(index.rows(), kRows);
}

TEST_P(IvfPqAdds, AreSearchedInSmallerBatchesWhereMemoryIsShort) {
  if (where_.kind() == device_kind::cpu) GTEST_SKIP() << "the budget is that of a GPU";
  const ivf_pq_options options{.dim = kDim, .metric = metric::l2, .nlist = 20, .rows = kept_rows::device};
  const ivf_pq_search_options wanted{.k = 100, .nprobe = 20, .refine_ratio = 4};
  const auto filled = [&] {
    ivf_pq_index index = trained(where_, options);
    index.add(part(0, kRows));
    return index;
  };
  const ivf_pq_index roomy = filled();
  const ivf_pq_result expected = roomy.search(part(0, kRows), wanted);
  const ivf_pq_index index = filled();
  constexpr std::int64_t kStep = std::int64_t{16} << 20;
  int failures = 0;
  for (std::int64_t budget = kStep;; budget += kStep) {
    ASSERT_LT(budget, std::int64_t{1} << 36) << "no budget is enough";
    const test::environment_value limited("SHORTLIST_DEVICE_BUDGET", std::to_string(budget).c_str());
    ivf_pq_result found;
    try {
      found = index.search(part(0, kRows), wanted);
    } catch (const out_of_memory&) {
      ++failures;
    }
    if (found.ids.empty()) continue;
    EXPECT_EQ(found.ids, expected.ids);
    EXPECT_EQ(found.scores, expected.scores);
    break;
  }
  EXPECT_GE(failures, 1);
  EXPECT_LT(index.memory().workspaces_bytes, roomy.memory().workspaces_bytes);
}

}  // namespace
}  // namespace shortlist::conformance
