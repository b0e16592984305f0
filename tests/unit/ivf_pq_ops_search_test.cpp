// The CPU's search of lists of codes against the reference, to the bit, on every instruction set of this machine.
#include <gtest/gtest.h>
#include <tbb/global_control.h>
#include <tbb/task_arena.h>

#include <cfenv>
#include <vector>

#include "unit/ivf_pq_ops_problem.hpp"

namespace shortlist::unit {
namespace {

core::ivf_pq_ops& ops() { return cpu::cpu_backend().ivf_pq(); }

class IvfPqOpsSearch : public testing::Test {
 protected:
  void TearDown() override { cpu::force_isa(usual_); }
  const std::string usual_{cpu::to_string(cpu::current_isa())};
};

struct asked {
  std::int64_t k = 10;
  std::int64_t nprobe = 3;
  std::int64_t ratio = 0;
};

struct answer {
  std::vector<float> scores;
  std::vector<std::int64_t> ids;
};

answer search(const ivf_pq_problem& of, const asked& what, core::scratch& memory, ivf_pq_stats* stats = nullptr) {
  const auto size = static_cast<std::size_t>(of.what().queries * what.k);
  answer found{std::vector<float>(size, 7.0f), std::vector<std::int64_t>(size, 7)};
  ops().search(nullptr, memory, of.model(), of.lists(),
               {.queries = of.query(0),
                .query_stride = of.query_stride(),
                .query_count = of.what().queries,
                .k = what.k,
                .nprobe = what.nprobe,
                .refine_ratio = what.ratio,
                .scores = found.scores.data(),
                .ids = found.ids.data(),
                .stats = stats});
  return found;
}

using hits = std::vector<std::vector<reference::hit>>;

/// What the reference finds for each query.
hits expected_of(const ivf_pq_problem& of, const asked& what) {
  hits all;
  for (std::int64_t q = 0; q < of.what().queries; ++q) all.push_back(of.expected(q, what.k, what.nprobe, what.ratio));
  return all;
}

testing::AssertionResult equals(const ivf_pq_problem& of, const asked& what, const answer& found, const hits& all) {
  const float worst =
      of.what().by == metric::l2 ? std::numeric_limits<float>::infinity() : -std::numeric_limits<float>::infinity();
  for (std::int64_t q = 0; q < of.what().queries; ++q) {
    const std::vector<reference::hit>& expected = all[static_cast<std::size_t>(q)];
    for (std::int64_t i = 0; i < what.k; ++i) {
      const bool is_there = i < static_cast<std::int64_t>(expected.size());
      const reference::hit hit = is_there ? expected[static_cast<std::size_t>(i)] : reference::hit{worst, -1};
      const auto at = static_cast<std::size_t>(q * what.k + i);
      if (found.ids[at] == hit.position && bits_of(found.scores[at]) == bits_of(hit.score)) continue;
      return testing::AssertionFailure() << describe(of.what()) << " k=" << what.k << " nprobe=" << what.nprobe
                                         << " ratio=" << what.ratio << " query " << q << " place " << i << ": found "
                                         << found.ids[at] << " " << found.scores[at] << ", expected " << hit.position
                                         << " " << hit.score;
    }
  }
  return testing::AssertionSuccess();
}

testing::AssertionResult equals_reference(const ivf_pq_problem& of, const asked& what, const answer& found) {
  return equals(of, what, found, expected_of(of, what));
}

std::unique_ptr<core::scratch> scratch_of(const ivf_pq_problem& of) {
  return ops().make_scratch(of.model(), of.lists(),
                            {.max_queries = of.what().queries, .max_k = 10, .max_nprobe = 3, .max_refine_ratio = 1});
}

/// Every asked-for search of the problem, on every instruction set.
void check(const ivf_pq_case& of, const std::vector<asked>& searches) {
  const ivf_pq_problem problem(of);
  const auto memory = scratch_of(problem);
  for (const asked& what : searches) {
    const hits expected = expected_of(problem, what);
    for (const std::string_view isa : cpu::available_isas()) {
      cpu::force_isa(isa);
      ASSERT_TRUE(equals(problem, what, search(problem, what, *memory), expected));
    }
  }
}

TEST_F(IvfPqOpsSearch, EveryKindOfCodeAndDataEqualsTheReference) {
  std::uint32_t seed = 100;
  for (const metric by : {metric::l2, metric::inner_product, metric::cosine}) {
    for (const ivf_pq_data data : kIvfPqData) {
      for (const int bits : {4, 5, 6, 7, 8}) {
        ++seed;
        ivf_pq_case of{.dim = 24, .pieces = 12, .bits = bits, .by = by, .queries = 5, .data = data, .seed = seed};
        of.encodes = seed % 3 == 0 ? encoded::row : encoded::residual;
        of.rotated = seed % 4 == 0;
        of.uniform = (bits == 4 || bits == 8) && seed % 2 == 0;
        check(of, {{.k = 10}, {.k = 1, .nprobe = 1}, {.k = 10, .nprobe = 7, .ratio = 3}});
      }
    }
  }
}

TEST_F(IvfPqOpsSearch, EveryShapeEqualsTheReference) {
  std::uint32_t seed = 500;
  for (const std::int64_t dim : {1, 2, 3, 15, 16, 17, 64, 96, 127, 128, 129, 300}) {
    for (const std::int64_t piece_dim : {1, 2, 3, 4, 8}) {
      ++seed;
      const std::int64_t pieces = (dim + piece_dim - 1) / piece_dim;
      ivf_pq_case of{.dim = dim, .pieces = pieces, .bits = seed % 2 == 0 ? 4 : 8, .rows = 300, .seed = seed};
      of.by = seed % 3 == 0 ? metric::inner_product : metric::l2;
      check(of, {{.k = 5}, {.k = 5, .ratio = 2}});
    }
  }
}

TEST_F(IvfPqOpsSearch, AnyKAndRatioBeyondWhatListsHold) {
  for (const metric by : {metric::l2, metric::cosine}) {
    for (const int bits : {4, 8}) {
      check({.bits = bits, .by = by, .nlist = 5, .rows = 900, .data = ivf_pq_data::ties, .seed = 31},
            {{.k = 1, .nprobe = 5},
             {.k = 33, .nprobe = 1},
             {.k = 100, .nprobe = 5, .ratio = 4},
             {.k = 899, .nprobe = 5},
             {.k = 900, .nprobe = 5, .ratio = 1},
             {.k = 2000, .nprobe = 5},
             {.k = 2000, .nprobe = 2, .ratio = std::numeric_limits<std::int64_t>::max() / 4000}});
    }
  }
}

TEST_F(IvfPqOpsSearch, EmptyListsAndNoRowsArePadding) {
  check({.nlist = 40, .rows = 12, .seed = 41}, {{.k = 10, .nprobe = 1}, {.k = 13, .nprobe = 40, .ratio = 2}});
  check({.nlist = 3, .rows = 0, .seed = 42}, {{.k = 3, .nprobe = 3}, {.k = 3, .nprobe = 2, .ratio = 5}});
}

TEST_F(IvfPqOpsSearch, ManyRowsEqualTheReference) {
  // Candidates fill their room again and again, and there are more queries than cores.
  for (const ivf_pq_data data : {ivf_pq_data::normal, ivf_pq_data::ties, ivf_pq_data::all_equal}) {
    for (const int bits : {4, 8}) {
      ivf_pq_case of{.dim = 8, .pieces = 4, .bits = bits, .nlist = 20, .rows = 6000, .queries = 9, .data = data};
      check(of, {{.k = 10, .nprobe = 20}, {.k = 700, .nprobe = 11}, {.k = 20, .nprobe = 20, .ratio = 10}});
    }
  }
}

TEST_F(IvfPqOpsSearch, BatchesOverManyListsEqualTheReference) {
  // Lists by estimates of all centroids' scores, and parts of a batch of which nothing is known.
  for (const metric by : {metric::l2, metric::inner_product, metric::cosine}) {
    for (const ivf_pq_data data : {ivf_pq_data::normal, ivf_pq_data::ties, ivf_pq_data::far_from_zero,
                                   ivf_pq_data::denormal, ivf_pq_data::huge, ivf_pq_data::odd_queries}) {
      ivf_pq_case of{.dim = 10, .pieces = 5, .bits = 4, .by = by, .nlist = 203, .rows = 500, .queries = 30};
      of.data = data;
      of.seed = static_cast<std::uint32_t>(data) + 90;
      check(of, {{.k = 10, .nprobe = 9}, {.k = 3, .nprobe = 203, .ratio = 2}, {.k = 1, .nprobe = 1}});
    }
  }
}

TEST_F(IvfPqOpsSearch, EveryThreadCountGivesTheSameList) {
  for (const std::int64_t queries : {1, 7}) {
    const ivf_pq_problem problem({.bits = 4, .nlist = 30, .rows = 5000, .queries = queries, .seed = 51});
    const auto memory = scratch_of(problem);
    for (const asked& what : {asked{.k = 10, .nprobe = 20}, asked{.k = 50, .nprobe = 30, .ratio = 4}}) {
      const hits expected = expected_of(problem, what);
      for (const std::size_t threads : {1u, 2u, 3u, 8u}) {
        const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, threads);
        tbb::task_arena arena(static_cast<int>(threads));
        arena.execute([&] {
          EXPECT_TRUE(equals(problem, what, search(problem, what, *memory), expected)) << threads << " threads";
        });
      }
    }
  }
}

TEST_F(IvfPqOpsSearch, LabelsReplacePositions) {
  const ivf_pq_problem problem({.rows = 200, .queries = 2, .seed = 61});
  std::vector<std::int64_t> labels(200);
  for (std::size_t i = 0; i < labels.size(); ++i) labels[i] = 1'000'000'000'000 - 7 * static_cast<std::int64_t>(i);
  core::ivf_pq_lists lists = problem.lists();
  lists.ids = labels.data();
  std::vector<float> scores(20);
  std::vector<std::int64_t> ids(20);
  const auto memory = scratch_of(problem);
  ops().search_host(nullptr, *memory, problem.model(), lists,
                    {.queries = problem.query(0),
                     .query_stride = problem.query_stride(),
                     .query_count = 2,
                     .k = 10,
                     .nprobe = 3,
                     .scores = scores.data(),
                     .ids = ids.data()});
  for (std::int64_t q = 0; q < 2; ++q) {
    const std::vector<reference::hit> expected = problem.expected(q, 10, 3, 0);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(ids[static_cast<std::size_t>(q) * 10 + i], labels[static_cast<std::size_t>(expected[i].position)]);
    }
  }
}

TEST_F(IvfPqOpsSearch, ScratchServesItsLimitsWithoutAllocating) {
  for (const bool rotated : {false, true}) {
    const ivf_pq_problem problem({.rotated = rotated, .rows = 1000, .queries = 20, .seed = 71});
    const auto memory = ops().make_scratch(problem.model(), problem.lists(),
                                           {.max_queries = 20, .max_k = 30, .max_nprobe = 5, .max_refine_ratio = 4});
    const std::int64_t bytes = memory->bytes();
    const std::int64_t allocations = memory->device_allocations();
    for (const asked& what : {asked{.k = 1, .nprobe = 1}, asked{.k = 30, .nprobe = 5, .ratio = 4}}) {
      EXPECT_TRUE(equals_reference(problem, what, search(problem, what, *memory)));
    }
    EXPECT_EQ(memory->bytes(), bytes);
    EXPECT_EQ(memory->device_allocations(), allocations);
    const asked beyond{.k = 500, .nprobe = 7, .ratio = 4};
    EXPECT_TRUE(equals_reference(problem, beyond, search(problem, beyond, *memory))) << "beyond the limits it grows";
  }
}

TEST_F(IvfPqOpsSearch, TheCallersRoundingModeDoesNotMatterAndStays) {
  const ivf_pq_problem problem({.by = metric::cosine, .rotated = true, .seed = 81});
  const auto memory = scratch_of(problem);
  ASSERT_EQ(std::fesetround(FE_UPWARD), 0);
  const answer found = search(problem, {.k = 10, .ratio = 2}, *memory);
  EXPECT_EQ(std::fegetround(), FE_UPWARD);
  std::fesetround(FE_TONEAREST);
  EXPECT_TRUE(equals_reference(problem, {.k = 10, .ratio = 2}, found));
}

}  // namespace
}  // namespace shortlist::unit
