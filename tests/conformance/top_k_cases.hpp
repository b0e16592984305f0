// The cases of row-wise top k's tests: what is asked of which matrix, as a line of text, and the choice of few cases
// out of the full product.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shortlist/shortlist.hpp"

namespace shortlist::conformance {

struct named_mode {
  std::string_view name;
  std::optional<float> eps;
  std::optional<int> max_iter;
};
inline constexpr named_mode kModes[] = {
    {"exact", {}, {}},         {"eps_0", 0.0f, {}},   {"eps_1e-4", 1e-4f, {}}, {"eps_1e-2", 1e-2f, {}},
    {"eps_2^-7", 0x1p-7f, {}}, {"eps_0.5", 0.5f, {}}, {"max_iter_1", {}, 1},   {"max_iter_3", {}, 3},
    {"max_iter_4", {}, 4},     {"max_iter_7", {}, 7}, {"max_iter_8", {}, 8},   {"max_iter_64", {}, 64},
};

struct named_outputs {
  std::string_view name;
  bool values;
  bool indices;
  index_type indices_as;
};
inline constexpr named_outputs kOutputs[] = {
    {"values+i64", true, true, index_type::i64}, {"values+i32", true, true, index_type::i32},
    {"values", true, false, index_type::i64},    {"i64", false, true, index_type::i64},
    {"i32", false, true, index_type::i32},       {"mask", false, false, index_type::i64},
};

/// Which of the arrays of ragged_rows are given.
struct named_ragged {
  std::string_view name;
  bool begins;
  bool ends;
};
inline constexpr named_ragged kRagged[] = {
    {"no", false, false}, {"borders", true, true}, {"lengths", false, true}, {"begins", true, false}};

template <class Named, std::size_t Count>
const Named& named(const Named (&table)[Count], std::string_view name) {
  for (const Named& entry : table) {
    if (entry.name == name) return entry;
  }
  throw std::invalid_argument("no choice is named " + std::string(name));
}

struct top_k_case {
  value_type type = value_type::f32;
  std::int64_t rows = 1;
  std::int64_t cols = 1;
  std::int64_t k = 1;
  shortlist::order order = order::largest;
  bool sorted = false;
  std::string_view mode = "exact";
  std::string_view outputs = "values+i64";
  std::int64_t row_gap = 0;  ///< elements between the last of a row and the first of the next
  std::int64_t col_stride = 1;
  std::string_view ragged = "no";
  std::string_view distribution = "normal";
  std::uint64_t seed = 1;

  top_k_options options() const {
    const named_mode& how = named(kModes, mode);
    return {.k = k, .order = order, .sorted = sorted, .eps = how.eps, .max_iter = how.max_iter};
  }
  std::int64_t row_stride() const { return (cols - 1) * col_stride + 1 + row_gap; }
};

struct top_k_way {
  device where = device::cpu();
  std::string isa = "-";           ///< on the CPU
  std::string algorithm = "plan";  ///< or what SHORTLIST_FORCE_TOP_K names
};

/// A case and a way as the line that every failure prints, and back. @throws std::invalid_argument on any other line.
std::string describe(const top_k_case& what, const top_k_way& how);
std::pair<top_k_case, top_k_way> parse_top_k_case(const std::string& line);

// What cases are chosen from, beside the tables above and row_distributions().
inline constexpr value_type kTypes[] = {value_type::f32, value_type::f16, value_type::bf16, value_type::f64};
inline constexpr std::int64_t kRows[] = {1, 2, 3, 7, 33, 200, 2000};
inline constexpr std::int64_t kCols[] = {1,    2,    31,   32,   33,   255,  256,  257,   511,    512,    768,
                                         1000, 1024, 1025, 4096, 8191, 8192, 8193, 50000, 128256, 1000000};

/// Bisection in fp32 does not exist for f64, and the reference bounds rows x cols.
bool is_allowed(const top_k_case& what, std::int64_t max_elements);

/// Cases by turns: another type each, every few of them in the other order, every other one sorted.
top_k_case case_of_turn(std::uint64_t turn, std::int64_t rows, std::int64_t cols, std::int64_t k,
                        std::string_view distribution);

/// Cases that have every allowed pair of values of any two factors: types, shapes, options, strides, distributions.
std::vector<top_k_case> covering_top_k_cases(std::int64_t max_elements, std::uint64_t seed);

/// Cases on both sides of each border between algorithms, in columns, rows, k, type and options, which a covering may
/// miss: of these none is left out.
std::vector<top_k_case> border_top_k_cases();
/// Early stops of more rows than a GPU holds blocks: for its kernels alone.
std::vector<top_k_case> many_rows_top_k_cases();
/// Those that take a while and some GB, for the full run.
std::vector<top_k_case> large_top_k_cases();

}  // namespace shortlist::conformance
