// See top_k_cases.hpp.
#include "conformance/top_k_cases.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "conformance/harness.hpp"
#include "conformance/top_k_values.hpp"

namespace shortlist::conformance {
namespace {

constexpr std::int64_t kHalf = -1;
constexpr std::int64_t kAllButOne = -2;
constexpr std::int64_t kAll = -3;
constexpr std::int64_t kKs[] = {1, 2, 16, 31, 32, 33, 64, 128, kHalf, kAllButOne, kAll};
constexpr std::int64_t kRowGaps[] = {0, 1, 37};
constexpr std::string_view kData[] = {"normal", "ties_90", "nan_anywhere", "all_equal", "ascending"};  // by turns
constexpr std::int64_t kColStrides[] = {1, 1, 1, 2, 3};  // most cases have the stride that has kernels of its own

enum factor : std::size_t {
  type_,
  rows_,
  cols_,
  k_,
  order_,
  sorted_,
  mode_,
  outputs_,
  row_gap_,
  col_stride_,
  ragged_,
  distribution_,
  kFactors
};
using choice = std::array<std::size_t, kFactors>;  // an index of each factor's values

choice counts() {
  return {std::size(kTypes),
          std::size(kRows),
          std::size(kCols),
          std::size(kKs),
          2,
          2,
          std::size(kModes),
          std::size(kOutputs),
          std::size(kRowGaps),
          std::size(kColStrides),
          std::size(kRagged),
          row_distributions().size()};
}

top_k_case case_of(const choice& at) {
  top_k_case what;
  what.type = kTypes[at[type_]];
  what.rows = kRows[at[rows_]];
  what.cols = kCols[at[cols_]];
  what.k = kKs[at[k_]];
  if (what.k == kHalf) what.k = std::max<std::int64_t>(what.cols / 2, 1);
  if (what.k == kAllButOne) what.k = what.cols - 1;
  if (what.k == kAll) what.k = what.cols;
  what.order = at[order_] == 0 ? order::largest : order::smallest;
  what.sorted = at[sorted_] != 0;
  what.mode = kModes[at[mode_]].name;
  what.outputs = kOutputs[at[outputs_]].name;
  what.row_gap = kRowGaps[at[row_gap_]];
  what.col_stride = kColStrides[at[col_stride_]];
  what.ragged = kRagged[at[ragged_]].name;
  what.distribution = row_distributions()[at[distribution_]];
  return what;
}

/// Cases that have every pair of values of any two factors that is allowed: of random completions of a pair that is
/// still open, the one that closes most others, and of those the cheapest.
class chooser {
 public:
  chooser(std::int64_t max_elements, std::uint64_t seed)
      : max_elements_(max_elements), random_(seed), counts_(counts()) {
    std::size_t values = 0;
    for (std::size_t f = 0; f < kFactors; ++f) {
      start_[f] = values;
      values += counts_[f];
    }
    values_ = values;
    is_open_.assign(values * values, 0);
    for (std::size_t a = 0; a < kFactors; ++a) {
      for (std::size_t b = a + 1; b < kFactors; ++b) {
        for (std::size_t i = 0; i < counts_[a]; ++i) {
          for (std::size_t j = 0; j < counts_[b]; ++j) {
            open_.push_back({a, i, b, j});
            is_open(a, i, b, j) = 1;
          }
        }
      }
    }
    for (std::size_t i = open_.size(); i > 1; --i) {
      std::swap(open_[i - 1], open_[static_cast<std::size_t>(random_.below(static_cast<std::int64_t>(i)))]);
    }
  }

  std::vector<top_k_case> choose() {
    std::vector<top_k_case> cases;
    for (const open_pair& pair : open_) {
      choice best{};
      if (!is_open(pair.a, pair.i, pair.b, pair.j) || !best_choice(pair, best)) continue;
      close(best);
      top_k_case what = case_of(best);
      what.seed = random_.bits() % 1000000;
      cases.push_back(what);
    }
    return cases;
  }

 private:
  struct open_pair {
    std::size_t a, i, b, j;
  };

  char& is_open(std::size_t a, std::size_t i, std::size_t b, std::size_t j) {
    return is_open_[(start_[a] + i) * values_ + start_[b] + j];
  }

  std::int64_t open_pairs_of(const choice& at) {
    std::int64_t count = 0;
    for (std::size_t a = 0; a < kFactors; ++a) {
      for (std::size_t b = a + 1; b < kFactors; ++b) count += is_open(a, at[a], b, at[b]);
    }
    return count;
  }

  void close(const choice& at) {
    for (std::size_t a = 0; a < kFactors; ++a) {
      for (std::size_t b = a + 1; b < kFactors; ++b) is_open(a, at[a], b, at[b]) = 0;
    }
  }

  bool best_choice(const open_pair& pair, choice& best) {
    constexpr int kTries = 400;
    constexpr int kCandidates = 40;
    std::int64_t best_count = -1;
    std::int64_t best_elements = 0;
    int candidates = 0;
    for (int attempt = 0; attempt < kTries && candidates < kCandidates; ++attempt) {
      choice at{};
      for (std::size_t f = 0; f < kFactors; ++f) {
        at[f] = static_cast<std::size_t>(random_.below(static_cast<std::int64_t>(counts_[f])));
      }
      at[pair.a] = pair.i;
      at[pair.b] = pair.j;
      const top_k_case what = case_of(at);
      if (!is_allowed(what, max_elements_)) continue;
      ++candidates;
      const std::int64_t count = open_pairs_of(at);
      const std::int64_t elements = what.rows * what.cols;
      if (count < best_count || (count == best_count && elements >= best_elements)) continue;
      best = at;
      best_count = count;
      best_elements = elements;
    }
    return candidates > 0;
  }

  std::int64_t max_elements_;
  random_numbers random_;
  choice counts_;
  choice start_{};
  std::size_t values_ = 0;
  std::vector<char> is_open_;
  std::vector<open_pair> open_;
};

std::string_view known_distribution(std::string_view name) {
  for (const std::string_view known : row_distributions()) {
    if (known == name) return known;
  }
  throw std::invalid_argument("no distribution is named " + std::string(name));
}

}  // namespace

std::string describe(const top_k_case& what, const top_k_way& how) {
  return fmt::format(
      "op=top_k device={} isa={} algorithm={} type={} rows={} cols={} k={} order={} sorted={} mode={} outputs={} "
      "row_gap={} col_stride={} ragged={} distribution={} seed={}",
      how.where.name(), how.isa, how.algorithm, to_string(what.type), what.rows, what.cols, what.k,
      what.order == order::largest ? "largest" : "smallest", what.sorted ? 1 : 0, what.mode, what.outputs, what.row_gap,
      what.col_stride, what.ragged, what.distribution, what.seed);
}

std::pair<top_k_case, top_k_way> parse_top_k_case(const std::string& line) {
  const replay_line fields(line);
  const auto field = [&](const char* name) -> const std::string& { return fields[name]; };
  const auto number = [&](const char* name) { return std::stoll(field(name)); };
  top_k_case what;
  what.type = parse_value_type(field("type"));
  what.rows = number("rows");
  what.cols = number("cols");
  what.k = number("k");
  what.order = field("order") == "largest" ? order::largest : order::smallest;
  what.sorted = number("sorted") != 0;
  what.mode = named(kModes, field("mode")).name;
  what.outputs = named(kOutputs, field("outputs")).name;
  what.row_gap = number("row_gap");
  what.col_stride = number("col_stride");
  what.ragged = named(kRagged, field("ragged")).name;
  what.distribution = known_distribution(field("distribution"));
  what.seed = std::stoull(field("seed"));
  return {what, {device::parse(field("device")), field("isa"), field("algorithm")}};
}

bool is_allowed(const top_k_case& what, std::int64_t max_elements) {
  return what.k >= 1 && what.k <= what.cols && what.rows * what.cols <= max_elements &&
         (what.type != value_type::f64 || what.mode == "exact");
}

top_k_case case_of_turn(std::uint64_t turn, std::int64_t rows, std::int64_t cols, std::int64_t k,
                        std::string_view distribution) {
  constexpr value_type kStored[] = {value_type::f32, value_type::bf16, value_type::f16};
  return {.type = kStored[turn % 3],
          .rows = rows,
          .cols = cols,
          .k = k,
          .order = turn % 5 == 0 ? order::smallest : order::largest,
          .sorted = turn % 2 == 0,
          .outputs = "values+i32",
          .distribution = distribution,
          .seed = turn};
}

std::vector<top_k_case> covering_top_k_cases(std::int64_t max_elements, std::uint64_t seed) {
  return chooser(max_elements, seed).choose();
}

std::vector<top_k_case> border_top_k_cases() {
  std::vector<top_k_case> cases;
  const auto add = [&](top_k_case what) {
    what.seed = 100 + cases.size();
    cases.push_back(what);
  };
  // Borders in columns, each type and each kind of output; the data change from case to case.
  for (const std::int64_t border : {64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768}) {
    for (const std::int64_t cols : {border - 1, border, border + 1}) {
      for (const value_type type : {value_type::f32, value_type::f16, value_type::bf16}) {
        const std::size_t turn = cases.size();
        add({.type = type,
             .rows = 7,
             .cols = cols,
             .k = std::min<std::int64_t>(turn % 3 == 0 ? 64 : cols / 3, cols),
             .order = turn % 2 == 0 ? order::largest : order::smallest,
             .sorted = turn % 4 == 1,
             .outputs = kOutputs[turn % std::size(kOutputs)].name,
             .distribution = kData[turn % std::size(kData)]});
      }
    }
  }
  // Rows of whole 16 bytes, which a copy engine can fetch, and as many that it cannot; more of them than a GPU holds.
  for (const std::int64_t cols : {32, 33, 256, 1024, 1025, 4096}) {
    add({.rows = 2'000'000 / cols, .cols = cols, .k = 16, .outputs = "values+i32"});
  }
  add({.rows = 1'000'000, .cols = 3, .k = 2, .sorted = true});
  add({.type = value_type::f16, .rows = 1'000'000, .cols = 8, .k = 3, .outputs = "i32", .distribution = "ties_90"});
  add({.rows = 20'000, .cols = 256, .k = 255, .sorted = true});
  add({.rows = 20'000, .cols = 256, .k = 256, .outputs = "values+i32"});
  // Sorted: so many entries as are sorted by a few lanes, by a warp, and in memory; keys that one sort tells apart, and
  // keys that it does not.
  constexpr std::pair<std::int64_t, std::int64_t> kSortedShapes[] = {
      {256, 32},  {256, 200},   {511, 300},  {1000, 100}, {1536, 1200},
      {2048, 60}, {2048, 1500}, {3000, 100}, {4096, 512}, {8192, 4000}};
  for (const auto& [cols, k] : kSortedShapes) {
    for (const value_type type : {value_type::f32, value_type::f16, value_type::bf16}) {
      for (const std::string_view distribution : {"normal", "outliers", "any_exponent", "ties_90"}) {
        add({.type = type,
             .rows = 70,
             .cols = cols,
             .k = k,
             .order = cases.size() % 2 == 0 ? order::largest : order::smallest,
             .sorted = true,
             .outputs = "values+i32",
             .distribution = distribution});
      }
    }
  }
  // Rows that fill what some lanes hold, or nearly, and begin anywhere: behind each other, and apart.
  for (const std::int64_t held :
       {64, 128, 192, 256, 320, 384, 512, 640, 768, 1024, 1280, 1536, 2048, 2560, 3072, 3584, 4096, 5120, 6144, 8192}) {
    for (const std::int64_t missing : {0, 1, 3, 7}) {
      for (const value_type type : {value_type::f32, value_type::f16, value_type::bf16}) {
        const std::size_t turn = cases.size();
        add({.type = type,
             .rows = 70,
             .cols = held - missing,
             .k = turn % 4 == 0 ? held - missing - 1 : held / 8,
             .order = turn % 2 == 0 ? order::largest : order::smallest,
             .sorted = turn % 5 == 1,
             .mode = turn % 7 == 3 ? "max_iter_4" : "exact",
             .outputs = turn % 11 == 5 ? "mask" : "values+i32",
             .row_gap = turn % 3 == 2 ? 5 : 0,
             .distribution = kData[turn % std::size(kData)]});
      }
    }
  }
  // Long rows: few, as many as there are blocks, and a few more; k on both sides of what a list holds.
  for (const std::int64_t k : {1, 100, 2047, 2048, 2049, 40'000}) {
    for (const bool sorted : {false, true}) {
      add({.rows = 3, .cols = 50'000, .k = k, .sorted = sorted, .distribution = k == 100 ? "ties_90" : "normal"});
      add({.type = value_type::bf16, .rows = 2, .cols = 128'256, .k = k, .sorted = sorted, .outputs = "values+i32"});
    }
  }
  for (const std::string_view distribution :
       {"normal", "ties_90", "all_equal", "ascending", "descending", "nan_anywhere"}) {
    add({.rows = 1, .cols = 1'000'000, .k = 100, .distribution = distribution});
    add({.rows = 1, .cols = 1'000'003, .k = 2048, .outputs = "values+i32", .distribution = distribution});
    add({.rows = 3, .cols = 150'001, .k = 1024, .sorted = true, .distribution = distribution});
    add({.type = value_type::f16,
         .rows = 3,
         .cols = 50'000,
         .k = 4096,
         .outputs = "i32",
         .distribution = distribution});
  }
  add({.type = value_type::f16, .rows = 300, .cols = 33'000, .k = 50, .outputs = "values+i32"});
  add({.type = value_type::bf16, .rows = 300, .cols = 33'000, .k = 2048, .outputs = "values+i32"});
  // What only the most general kernel serves.
  for (const std::int64_t cols : {1, 33, 1025, 32'769, 200'000}) {
    const std::int64_t k = (cols + 2) / 3;
    add({.type = value_type::f64, .rows = 5, .cols = cols, .k = k, .sorted = cols % 2 == 0});
    add({.rows = 5, .cols = cols, .k = k, .sorted = cols % 2 != 0, .col_stride = 3});
    add({.type = value_type::f16, .rows = 5, .cols = cols, .k = k, .outputs = "mask", .col_stride = 2});
    add({.rows = 5, .cols = cols, .k = k, .mode = "eps_1e-4", .ragged = "borders"});
    add({.type = value_type::bf16, .rows = 5, .cols = cols, .k = k, .mode = "max_iter_4", .ragged = "lengths"});
    add({.rows = 5, .cols = cols, .k = k, .outputs = "mask", .ragged = "begins", .distribution = "ties_90"});
  }
  // All of a row, or all but one, and early stops, where rows of whole 16 bytes fit a warp and others fit it no more.
  for (const std::int64_t cols : {1536, 1537, 1540, 1544, 2047, 2048}) {
    for (const value_type type : {value_type::f32, value_type::f16, value_type::bf16}) {
      for (const std::string_view mode : {"exact", "eps_1e-2", "max_iter_4"}) {
        for (const std::int64_t k : {cols, cols - 1}) {
          const std::size_t turn = cases.size();
          add({.type = type,
               .rows = 7,
               .cols = cols,
               .k = k,
               .order = turn % 3 == 0 ? order::smallest : order::largest,
               .mode = mode,
               .outputs = turn % 5 == 0 ? "mask" : "values+i32",
               .distribution = kData[turn % std::size(kData)]});
        }
      }
    }
  }
  // Outputs that do not fit beside a row in shared memory.
  for (const bool sorted : {false, true}) {
    add({.rows = 3, .cols = 32'768, .k = 8193, .sorted = sorted});
    add({.rows = 3, .cols = 32'768, .k = 32'768, .sorted = sorted, .outputs = "i64"});
    add({.type = value_type::f16, .rows = 3, .cols = 32'768, .k = 20'000, .sorted = sorted, .outputs = "values"});
  }
  return cases;
}

std::vector<top_k_case> many_rows_top_k_cases() {
  // Blocks learn from their first rows what they do with others. The data change from case to case.
  constexpr std::pair<std::int64_t, std::int64_t> kShapes[] = {{1500, 2049}, {1500, 3000},  {3000, 4096},
                                                               {1500, 8192}, {800, 16'000}, {300, 32'768}};
  std::vector<top_k_case> cases;
  for (const auto& [rows, cols] : kShapes) {
    for (const value_type type : {value_type::f32, value_type::f16, value_type::bf16}) {
      for (const std::string_view mode : {"eps_1e-4", "max_iter_4", "max_iter_8"}) {
        const std::size_t turn = cases.size();
        cases.push_back({.type = type,
                         .rows = rows,
                         .cols = cols,
                         .k = turn % 3 == 0 ? 1 : 64,
                         .order = turn % 2 == 0 ? order::largest : order::smallest,
                         .mode = mode,
                         .outputs = "values+i32",
                         .row_gap = turn % 4 == 3 ? 5 : 0,
                         .distribution = kData[turn % std::size(kData)],
                         .seed = 500 + turn});
      }
    }
  }
  // Short rows, whose early stops are told by 16-bit numbers, as many as warps learn from.
  for (const std::int64_t cols : {60, 200, 256, 500, 770, 1024, 1400, 2000}) {
    for (const value_type type : {value_type::f32, value_type::f16, value_type::bf16}) {
      for (const std::string_view mode : {"eps_0", "eps_1e-4", "eps_0.5", "max_iter_8", "max_iter_64"}) {
        const std::size_t turn = cases.size();
        cases.push_back({.type = type,
                         .rows = 4000,
                         .cols = cols,
                         .k = turn % 4 == 0   ? cols / 3
                              : turn % 7 == 0 ? 1
                                              : cols / 8,
                         .order = turn % 2 == 0 ? order::largest : order::smallest,
                         .sorted = turn % 9 == 4,
                         .mode = mode,
                         .outputs = turn % 11 == 5 ? "mask" : "values+i32",
                         .row_gap = turn % 3 == 2 ? 5 : 0,
                         .distribution = kData[turn % std::size(kData)],
                         .seed = 500 + turn});
      }
    }
  }
  return cases;
}

std::vector<top_k_case> large_top_k_cases() {
  // More entries than are sorted at once; a row of more columns than 24 bits count.
  return {
      {.type = value_type::f64, .rows = 400'000, .cols = 128, .k = 112, .sorted = true, .outputs = "i32", .seed = 1},
      {.rows = 1, .cols = 20'000'000, .k = 100, .outputs = "values+i32", .distribution = "ties_90", .seed = 2},
      {.type = value_type::f16, .rows = 2, .cols = 20'000'000, .k = 10'000'000, .outputs = "i32", .seed = 3}};
}

}  // namespace shortlist::conformance
