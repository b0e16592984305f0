// The CPU backend's flat search against a double loop over the definition: every instruction set that this machine
// runs, element type, metric, algorithm and number of threads; scores compared as bits, ids exactly.
#include <gtest/gtest.h>
#include <tbb/global_control.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <bit>
#include <cfenv>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "cpu/backend.hpp"
#include "cpu/flat/search.hpp"
#include "cpu/isa.hpp"
#include "shortlist/error.hpp"

namespace {

using namespace shortlist;
using core::flat_algorithm;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr element_type kTypes[] = {element_type::f32, element_type::f16, element_type::bf16, element_type::i8,
                                   element_type::u8};
constexpr metric kMetrics[] = {metric::inner_product, metric::cosine, metric::l2};
constexpr flat_algorithm kAlgorithms[] = {flat_algorithm::scan, flat_algorithm::tiles};
constexpr const char* kTypeNames[] = {"f32", "f16", "bf16", "i8", "u8"};
constexpr const char* kMetricNames[] = {"inner_product", "cosine", "l2"};

enum class distribution { normal, all_equal, ties, ascending, infinities, nans, denormals, zero_vectors, huge };
constexpr distribution kDistributions[] = {distribution::normal,    distribution::all_equal,    distribution::ties,
                                           distribution::ascending, distribution::infinities,   distribution::nans,
                                           distribution::denormals, distribution::zero_vectors, distribution::huge};
constexpr const char* kDistributionNames[] = {"normal", "all_equal", "ties",         "ascending", "infinities",
                                              "nans",   "denormals", "zero_vectors", "huge"};

std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }

/// The fp16 whose value is nearest below in magnitude: conversion may truncate, these are only inputs.
std::uint16_t to_f16_bits(float value) {
  const std::uint32_t bits = bits_of(value);
  const std::uint16_t sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000u);
  if (std::isnan(value)) return static_cast<std::uint16_t>(sign | 0x7E01u);
  const float magnitude = std::fabs(value);
  if (magnitude >= 65536.0f) return static_cast<std::uint16_t>(sign | 0x7C00u);
  if (magnitude < 6.103515625e-5f)
    return static_cast<std::uint16_t>(sign | static_cast<std::uint16_t>(magnitude * 16777216.0f));
  return static_cast<std::uint16_t>(sign | (((bits >> 13) - (112u << 10)) & 0x7FFFu));
}

float from_f16_bits(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const int fraction = bits & 1023;
  float magnitude = 0.0f;
  if (exponent == 31) {
    magnitude = fraction != 0 ? kNan : kInf;
  } else if (exponent == 0) {
    magnitude = std::ldexp(static_cast<float>(fraction), -24);
  } else {
    magnitude = std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
  }
  return std::copysign(magnitude, (bits & 0x8000) != 0 ? -1.0f : 1.0f);
}

/// Writes `value` as an element of `type`; returns the fp32 value of what was written.
float store_element(std::byte* to, element_type type, float value) {
  switch (type) {
    case element_type::f32: std::memcpy(to, &value, 4); return value;
    case element_type::f16: {
      const std::uint16_t bits = to_f16_bits(value);
      std::memcpy(to, &bits, 2);
      return from_f16_bits(bits);
    }
    case element_type::bf16: {
      const std::uint16_t bits = static_cast<std::uint16_t>(std::isnan(value) ? 0x7FC1u : bits_of(value) >> 16);
      std::memcpy(to, &bits, 2);
      return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
    }
    case element_type::i8: {
      const float whole = std::isnan(value) ? 0.0f : std::nearbyint(std::clamp(value * 40.0f, -128.0f, 127.0f));
      const std::int8_t element = static_cast<std::int8_t>(whole);
      std::memcpy(to, &element, 1);
      return static_cast<float>(element);
    }
    case element_type::u8: {
      const float whole = std::isnan(value) ? 0.0f : std::nearbyint(std::clamp(value * 40.0f + 100.0f, 0.0f, 255.0f));
      const std::uint8_t element = static_cast<std::uint8_t>(whole);
      std::memcpy(to, &element, 1);
      return static_cast<float>(element);
    }
  }
  return 0.0f;
}

/// The element of row `row` (or of a query, row < 0) before it is stored.
float draw(distribution d, std::int64_t row, std::int64_t rows, std::int64_t column, std::mt19937& random) {
  std::normal_distribution<float> normal;
  switch (d) {
    case distribution::normal: return normal(random);
    case distribution::all_equal: return 0.25f * static_cast<float>(column % 5) - 0.4f;
    case distribution::ties:
      return row >= 0 && row % 10 == 3 ? normal(random) : 0.5f * static_cast<float>((column + row % 2) % 3) - 0.5f;
    case distribution::ascending: return row < 0 ? 1.0f : static_cast<float>(row) / static_cast<float>(rows);
    case distribution::infinities:
      if (random() % 400 == 0) return random() % 2 == 0 ? kInf : -kInf;
      return normal(random);
    case distribution::nans: return random() % 300 == 0 ? kNan : normal(random);
    case distribution::denormals: return normal(random) * (row < 0 ? 1e-3f : (column % 2 == 0 ? 1e-39f : 1e-6f));
    case distribution::zero_vectors:
      if (row == -1 || (row >= 0 && row % 3 == 0)) return row % 2 == 0 ? 0.0f : -0.0f;
      return normal(random);
    case distribution::huge: return normal(random) * (column % 7 == 0 ? 3e37f : 1.0f);
  }
  return 0.0f;
}

// ---- the definition, written a second time

float definition_sum(const float* q, const float* x, std::int64_t dim, metric by) {
  float p[128];
  for (float& sum : p) sum = 0.0f;
  for (std::int64_t i = 0; i < dim; ++i) {
    const float d = q[i] - x[i];
    p[i % 128] = by == metric::l2 ? std::fma(d, d, p[i % 128]) : std::fma(q[i], x[i], p[i % 128]);
  }
  for (int s = 64; s >= 1; s /= 2) {
    for (int j = 0; j < s; ++j) p[j] += p[j + s];
  }
  return p[0];
}

float definition_score(const float* q, const float* x, std::int64_t dim, metric by) {
  float score = definition_sum(q, x, dim, by);
  if (by == metric::cosine) {
    const float qq = definition_sum(q, q, dim, by);
    const float xx = definition_sum(x, x, dim, by);
    score = qq == 0.0f || xx == 0.0f ? -kInf : score * (1.0f / std::sqrt(qq)) * (1.0f / std::sqrt(xx));
  }
  if (std::isnan(score)) return std::bit_cast<float>(0x7FC00000u);
  return score == 0.0f ? 0.0f : score;
}

/// Rows on the CPU backend, their values as fp32, queries, and every score by the definition.
struct problem {
  problem(element_type of_type, metric by, std::int64_t of_dim, std::int64_t of_rows, std::int64_t of_queries,
          distribution of, std::uint32_t of_seed)
      : type(of_type), metric_(by), dim(of_dim), rows(of_rows), queries(of_queries), kind(of), seed(of_seed) {
    std::mt19937 random(seed);
    core::backend& backend = cpu::cpu_backend();
    stride_bytes = (dim * size_bytes(type) + 63) / 64 * 64;
    memory.reset(static_cast<std::byte*>(backend.allocate(rows * stride_bytes)));
    backend.zero(nullptr, memory.get(), rows * stride_bytes);
    std::vector<float> wide(static_cast<std::size_t>(rows * dim));
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < dim; ++c) {
        std::byte* to = memory.get() + r * stride_bytes + c * size_bytes(type);
        wide[static_cast<std::size_t>(r * dim + c)] = store_element(to, type, draw(kind, r, rows, c, random));
      }
    }
    query_values.resize(static_cast<std::size_t>(queries * dim));
    for (std::int64_t q = 0; q < queries; ++q) {
      for (std::int64_t c = 0; c < dim; ++c) {
        query_values[static_cast<std::size_t>(q * dim + c)] = draw(kind, -1 - q, rows, c, random);
      }
    }
    for (std::int64_t q = 0; q < queries; ++q) {
      for (std::int64_t r = 0; r < rows; ++r) {
        scores.push_back(definition_score(&query_values[static_cast<std::size_t>(q * dim)],
                                          &wide[static_cast<std::size_t>(r * dim)], dim, metric_));
      }
    }
    norms.resize(static_cast<std::size_t>(rows));
  }

  /// The first `count` of the rows.
  core::flat_corpus corpus(std::int64_t count) const {
    return {.rows = memory.get(),
            .row_stride_bytes = stride_bytes,
            .type = type,
            .metric = metric_,
            .count = count,
            .dim = dim,
            .inverse_norms = metric_ == metric::cosine ? norms.data() : nullptr};
  }

  void compute_norms() {
    if (metric_ == metric::cosine) cpu::inverse_norms(corpus(rows), 0, rows, norms.data());
  }

  /// Positions of the first `count` rows, best first.
  std::vector<std::int64_t> ranking(std::int64_t query, std::int64_t count) const {
    const float* s = &scores[static_cast<std::size_t>(query * rows)];
    std::vector<std::int64_t> order(static_cast<std::size_t>(count));
    std::iota(order.begin(), order.end(), std::int64_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
      if (std::isnan(s[a]) || std::isnan(s[b])) return !std::isnan(s[a]) && std::isnan(s[b]);
      return metric_ == metric::l2 ? s[a] < s[b] : s[a] > s[b];
    });
    return order;
  }

  std::string describe() const {
    std::ostringstream out;
    out << kTypeNames[static_cast<int>(type)] << ' ' << kMetricNames[static_cast<int>(metric_)] << " dim " << dim << ' '
        << kDistributionNames[static_cast<int>(kind)] << " seed " << seed;
    return out.str();
  }

  struct release {
    void operator()(std::byte* block) const { cpu::cpu_backend().release(block); }
  };
  element_type type;
  metric metric_;
  std::int64_t dim, rows, queries;
  distribution kind;
  std::uint32_t seed;
  std::int64_t stride_bytes = 0;
  std::unique_ptr<std::byte, release> memory;
  std::vector<float> query_values;
  std::vector<float> scores;  // [queries, rows]
  std::vector<float> norms;
};

struct answer {
  std::vector<float> scores;
  std::vector<std::int64_t> ids;
};

answer search(const problem& of, flat_algorithm algorithm, std::int64_t count, std::int64_t k, core::scratch& memory) {
  const std::size_t size = static_cast<std::size_t>(of.queries * k);
  answer found{std::vector<float>(size, 7.0f), std::vector<std::int64_t>(size, -7)};
  const core::flat_corpus corpus = of.corpus(count);
  cpu::flat_search(algorithm, memory, corpus,
                   {.queries = of.query_values.data(),
                    .query_stride = of.dim,
                    .query_count = of.queries,
                    .k = k,
                    .scores = found.scores.data(),
                    .ids = found.ids.data()});
  return found;
}

/// The first difference between an answer and the definition's, or success.
testing::AssertionResult equals_definition(const problem& of, std::int64_t count, std::int64_t k, const answer& found) {
  const float worst = of.metric_ == metric::l2 ? kInf : -kInf;
  for (std::int64_t q = 0; q < of.queries; ++q) {
    const std::vector<std::int64_t> order = of.ranking(q, count);
    for (std::int64_t i = 0; i < k; ++i) {
      const std::int64_t id = i < count ? order[static_cast<std::size_t>(i)] : -1;
      const float score = i < count ? of.scores[static_cast<std::size_t>(q * of.rows + id)] : worst;
      const std::size_t at = static_cast<std::size_t>(q * k + i);
      if (found.ids[at] != id || bits_of(found.scores[at]) != bits_of(score)) {
        return testing::AssertionFailure()
               << of.describe() << " rows " << count << " k " << k << ": query " << q << " differs first at " << i
               << ": id " << found.ids[at] << " score " << found.scores[at] << std::hex << " ("
               << bits_of(found.scores[at]) << "), expected id " << std::dec << id << " score " << score << std::hex
               << " (" << bits_of(score) << ')';
      }
    }
  }
  return testing::AssertionSuccess();
}

testing::AssertionResult matches(const problem& of, flat_algorithm algorithm, std::int64_t count, std::int64_t k,
                                 core::scratch& memory) {
  testing::AssertionResult result = equals_definition(of, count, k, search(of, algorithm, count, k, memory));
  return result << (algorithm == flat_algorithm::scan ? " (scan, " : " (tiles, ") << to_string(cpu::current_isa())
                << ')';
}

/// Restores the instruction set that the process chose.
class CpuFlat : public testing::Test {
 protected:
  ~CpuFlat() override { cpu::force_isa(initial_); }

 private:
  std::string initial_{to_string(cpu::current_isa())};
};

std::unique_ptr<core::scratch> small_scratch() { return cpu::make_flat_scratch({}, 1, storage::int8_and_full); }

// ---- tests

TEST_F(CpuFlat, EveryIsaTypeMetricDimAndShapeEqualsTheDefinition) {
  const std::int64_t dims[] = {1, 2, 7, 8, 15, 16, 17, 31, 33, 100, 127, 128, 129, 255, 384, 768, 1024, 1537};
  const std::int64_t counts[] = {1, 2, 7, 8, 9, 31, 32, 33, 100, 1003};
  const auto memory = small_scratch();
  std::uint32_t seed = 0;
  for (const element_type type : kTypes) {
    for (const metric by : kMetrics) {
      for (const std::int64_t dim : dims) {
        ++seed;
        problem of(type, by, dim, 1003, 5, kDistributions[(seed + seed / std::size(dims)) % std::size(kDistributions)],
                   seed);
        for (const std::string_view isa : cpu::available_isas()) {
          cpu::force_isa(isa);
          of.compute_norms();
          std::int64_t turn = seed;
          for (const std::int64_t count : counts) {
            const std::int64_t ks[] = {1, 2, 10, 100, count, count + 3};
            // All k where that is cheap; else one after the other.
            const std::size_t checked = count <= 33 && dim <= 129 ? std::size(ks) : 1;
            for (std::size_t i = 0; i < checked; ++i, ++turn) {
              const std::int64_t k = ks[turn % static_cast<std::int64_t>(std::size(ks))];
              for (const flat_algorithm algorithm : kAlgorithms) {
                ASSERT_TRUE(matches(of, algorithm, count, k, *memory));
              }
            }
          }
        }
      }
    }
  }
}

TEST_F(CpuFlat, EveryDistributionAndKEqualsTheDefinition) {
  const auto memory = small_scratch();
  for (const distribution kind : kDistributions) {
    for (const element_type type : {element_type::f32, element_type::f16, element_type::i8}) {
      for (const metric by : kMetrics) {
        problem of(type, by, 33, 1003, 9, kind, 77);
        for (const std::string_view isa : cpu::available_isas()) {
          cpu::force_isa(isa);
          of.compute_norms();
          for (const std::int64_t k : {1, 2, 10, 100, 500, 1000, 1003, 1010}) {
            for (const flat_algorithm algorithm : kAlgorithms) ASSERT_TRUE(matches(of, algorithm, 1003, k, *memory));
          }
        }
      }
    }
  }
}

TEST_F(CpuFlat, ManyRowsAndAnyKEqualTheDefinition) {
  // Many cuts of the candidates, several chunks for each thread, and lists long enough to be sorted by all cores.
  const auto memory = small_scratch();
  for (const distribution kind : {distribution::normal, distribution::ascending, distribution::ties}) {
    for (const metric by : {metric::inner_product, metric::l2}) {
      problem of(element_type::f32, by, 8, 40000, 3, kind, 5);
      for (const std::int64_t k : {1, 10, 257, 4096, 20000, 39999, 40000}) {
        for (const flat_algorithm algorithm : kAlgorithms) ASSERT_TRUE(matches(of, algorithm, 40000, k, *memory));
      }
    }
  }
}

TEST_F(CpuFlat, GroupsOfQueriesEqualTheDefinition) {
  // More queries than a group holds, and fewer rows than keep the threads busy.
  const auto memory = small_scratch();
  problem of(element_type::f32, metric::cosine, 20, 70, 601, distribution::normal, 9);
  of.compute_norms();
  for (const std::int64_t count : {1, 47, 48, 49, 70}) {
    ASSERT_TRUE(matches(of, flat_algorithm::tiles, count, 10, *memory));
  }
}

TEST_F(CpuFlat, EveryThreadCountGivesTheSameList) {
  const auto memory = small_scratch();
  problem of(element_type::f32, metric::inner_product, 64, 20000, 6, distribution::ties, 3);
  for (const std::size_t threads : {1u, 2u, 3u, 8u}) {
    const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, threads);
    tbb::task_arena arena(static_cast<int>(threads));
    for (const flat_algorithm algorithm : kAlgorithms) {
      arena.execute([&] { EXPECT_TRUE(matches(of, algorithm, 20000, 100, *memory)) << threads << " threads"; });
    }
  }
}

TEST_F(CpuFlat, ConcurrentAndNestedSearchesAreRight) {
  problem of(element_type::f32, metric::l2, 48, 20000, 4, distribution::normal, 4);
  std::vector<std::thread> callers;
  std::vector<testing::AssertionResult> results(8, testing::AssertionSuccess());
  for (std::size_t caller = 0; caller < results.size(); ++caller) {
    callers.emplace_back([&, caller] {
      const auto memory = small_scratch();
      for (int repeat = 0; repeat < 5 && results[caller]; ++repeat) {
        results[caller] = matches(of, kAlgorithms[caller % 2], 20000, 50, *memory);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (const testing::AssertionResult& result : results) EXPECT_TRUE(result);

  std::vector<testing::AssertionResult> nested(16, testing::AssertionSuccess());
  tbb::parallel_for(std::size_t{0}, nested.size(), [&](std::size_t i) {
    const auto memory = small_scratch();
    nested[i] = matches(of, kAlgorithms[i % 2], 20000, 50, *memory);
  });
  for (const testing::AssertionResult& result : nested) EXPECT_TRUE(result);
}

TEST_F(CpuFlat, LabelsReplacePositionsAndPaddingHasNone) {
  problem of(element_type::u8, metric::l2, 12, 40, 2, distribution::normal, 6);
  std::vector<std::int64_t> labels(40);
  for (std::size_t i = 0; i < labels.size(); ++i) labels[i] = 1000000000000 - static_cast<std::int64_t>(i) * 7;
  core::flat_corpus corpus = of.corpus(40);
  corpus.ids = labels.data();
  std::vector<float> scores(2 * 43);
  std::vector<std::int64_t> ids(2 * 43);
  const auto memory = small_scratch();
  cpu::flat_search(flat_algorithm::scan, *memory, corpus,
                   {.queries = of.query_values.data(),
                    .query_stride = 12,
                    .query_count = 2,
                    .k = 43,
                    .scores = scores.data(),
                    .ids = ids.data()});
  const std::vector<std::int64_t> order = of.ranking(1, 40);
  for (std::size_t i = 0; i < 40; ++i) EXPECT_EQ(ids[43 + i], labels[static_cast<std::size_t>(order[i])]);
  for (std::size_t i = 40; i < 43; ++i) {
    EXPECT_EQ(ids[43 + i], -1);
    EXPECT_EQ(scores[43 + i], kInf);
  }
}

TEST_F(CpuFlat, ScratchServesItsLimitsWithoutAllocating) {
  problem of(element_type::f32, metric::cosine, 40, 3000, 70, distribution::normal, 8);
  of.compute_norms();
  for (const std::int64_t max_dim : {40, 0}) {
    const auto memory =
        cpu::make_flat_scratch({.max_rows = 3000, .max_queries = 70, .max_k = 900}, max_dim, storage::int8_and_full);
    const std::int64_t allocations = memory->device_allocations();
    const std::int64_t bytes = memory->bytes();
    for (const std::int64_t count : {1, 100, 3000}) {
      for (const std::int64_t k : {1, 30, 900}) {
        for (const flat_algorithm algorithm : kAlgorithms) search(of, algorithm, count, k, *memory);
      }
    }
    EXPECT_EQ(memory->device_allocations(), allocations);
    EXPECT_EQ(memory->bytes(), bytes);
    EXPECT_TRUE(matches(of, flat_algorithm::tiles, 3000, 2500, *memory)) << "beyond the limits it grows";
    EXPECT_GT(memory->device_allocations(), allocations);
  }
}

TEST_F(CpuFlat, TheCallersRoundingModeDoesNotMatterAndStays) {
  const auto memory = small_scratch();
  problem of(element_type::f32, metric::cosine, 100, 9000, 3, distribution::normal, 11);
  ASSERT_EQ(std::fesetround(FE_UPWARD), 0);
  of.compute_norms();
  std::vector<answer> found;
  for (const flat_algorithm algorithm : kAlgorithms) found.push_back(search(of, algorithm, 9000, 10, *memory));
  EXPECT_EQ(std::fegetround(), FE_UPWARD);
  std::fesetround(FE_TONEAREST);
  for (const answer& one : found) EXPECT_TRUE(equals_definition(of, 9000, 10, one));
}

TEST_F(CpuFlat, AnUnknownInstructionSetIsAnErrorThatListsTheKnown) {
  const std::string before(to_string(cpu::current_isa()));
  try {
    cpu::force_isa("sse9");
    FAIL() << "no error";
  } catch (const invalid_argument& error) {
    const std::string message = error.what();
    for (const char* part : {"sse9", "amx", "avx512_vnni", "avx512", "avx2", "neon_dotprod", "neon", "scalar"}) {
      EXPECT_NE(message.find(part), std::string::npos) << message;
    }
  }
  EXPECT_EQ(to_string(cpu::current_isa()), before);
  EXPECT_EQ(cpu::available_isas().back(), "scalar");
}

TEST(CpuBackend, MemoryIsAlignedAndTooMuchIsAnError) {
  core::backend& backend = cpu::cpu_backend();
  EXPECT_EQ(backend.row_alignment_bytes(), 64);
  for (const std::int64_t bytes : {0, 1, 64, 1000, 5 << 20}) {
    void* memory = backend.allocate(bytes);
    EXPECT_EQ(std::bit_cast<std::uintptr_t>(memory) % 64, 0u);
    backend.zero(nullptr, memory, bytes);
    backend.release(memory);
  }
  for (const std::int64_t bytes : {std::int64_t{1} << 50, std::numeric_limits<std::int64_t>::max()}) {
    EXPECT_THROW(backend.allocate(bytes), out_of_memory);
  }
}

TEST(CpuBackend, CopiesRowsBetweenStrides) {
  core::backend& backend = cpu::cpu_backend();
  for (const std::int64_t rows : {1, 5, 3000000}) {
    std::vector<std::uint8_t> from(static_cast<std::size_t>(rows * 5));
    for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::uint8_t>(i * 7 + i / 251);
    std::vector<std::uint8_t> to(static_cast<std::size_t>(rows * 8), 9);
    backend.copy_rows(nullptr, core::copy_kind::host_to_device, to.data(), 8, from.data(), 5, 3, rows);
    for (std::size_t row = 0; row < static_cast<std::size_t>(rows); ++row) {
      ASSERT_EQ(std::memcmp(&to[row * 8], &from[row * 5], 3), 0) << "row " << row << " of " << rows;
      ASSERT_EQ(to[row * 8 + 3], 9) << "row " << row << " of " << rows;
    }
  }
}

TEST(CpuBackend, DescribesProcessorCoresAndInstructionSet) {
  const std::string text = cpu::cpu_backend().description();
  EXPECT_NE(text.find(" core"), std::string::npos) << text;
  EXPECT_NE(text.find(to_string(cpu::current_isa())), std::string::npos) << text;
}

}  // namespace
