// The public top_k at its border: every bad argument gets one clear error and leaves the outputs as they were.
#include "shortlist/top_k.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "core_environment.hpp"
#include "shortlist/error.hpp"

namespace shortlist {
namespace {

using test::environment_value;

constexpr const char* kForceTopK = "SHORTLIST_FORCE_TOP_K";
constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kRows = 2;
constexpr std::int64_t kCols = 4;
const float kValues[] = {1, 4, 2, 3, 8, 5, 6, 7};
const value_matrix kMatrix(kValues, value_type::f32, kRows, kCols, kCols);

top_k_options options_of(std::int64_t k) {
  top_k_options options;
  options.k = k;
  return options;
}
top_k_options with_eps(float eps) {
  top_k_options options = options_of(2);
  options.eps = eps;
  return options;
}
top_k_options with_max_iter(int max_iter) {
  top_k_options options = options_of(2);
  options.max_iter = max_iter;
  return options;
}

/// Room for every output, filled with a pattern that must stay.
class room {
 public:
  room() {
    std::memset(values_, kPattern, sizeof(values_));
    std::memset(indices_, kPattern, sizeof(indices_));
    std::memset(mask_, kPattern, sizeof(mask_));
  }
  top_k_output lists(index_type type = index_type::i64) {
    top_k_output out;
    out.values = values_;
    out.indices = indices_;
    out.indices_as = type;
    return out;
  }
  top_k_output mask() {
    top_k_output out;
    out.mask = mask_;
    return out;
  }
  bool is_untouched() const {
    return holds_pattern(values_, sizeof(values_)) && holds_pattern(indices_, sizeof(indices_)) &&
           holds_pattern(mask_, sizeof(mask_));
  }

 private:
  static constexpr unsigned char kPattern = 0xA5;
  static bool holds_pattern(const void* memory, std::size_t bytes) {
    const std::string_view all(static_cast<const char*>(memory), bytes);
    return all.find_first_not_of(static_cast<char>(kPattern)) == std::string_view::npos;
  }
  double values_[kRows * kCols];
  std::int64_t indices_[kRows * kCols];
  std::uint8_t mask_[kRows * kCols];
};

/// The call throws invalid_argument, its message has the part, and nothing was written.
void refuses(const value_matrix& matrix, const top_k_options& options, const top_k_output& out,
             const ragged_rows& ragged, const room& memory, std::string_view part) {
  SCOPED_TRACE(part);
  try {
    top_k(stream(device::cpu()), matrix, options, out, ragged);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const invalid_argument& refusal) {
    const std::string_view message = refusal.what();
    EXPECT_NE(message.find(part), std::string_view::npos) << message;
    EXPECT_NE(message.find("; allowed is "), std::string_view::npos) << message;
  }
  EXPECT_TRUE(memory.is_untouched());
}

void refuses(const value_matrix& matrix, const top_k_options& options, std::string_view part) {
  room memory;
  refuses(matrix, options, memory.lists(), {}, memory, part);
  refuses(matrix, options, memory.mask(), {}, memory, part);
}

value_matrix strided(std::int64_t rows, std::int64_t cols, std::int64_t row_stride, std::int64_t col_stride = 1) {
  return {kValues, value_type::f32, rows, cols, row_stride, col_stride};
}

TEST(TopK, RefusesAWrongK) {
  refuses(kMatrix, options_of(0), "k is 0; allowed is 1 to cols, which is 4");
  refuses(kMatrix, options_of(-3), "k is -3; allowed is 1 to cols, which is 4");
  refuses(kMatrix, options_of(5), "k is 5; allowed is 1 to cols, which is 4");
  refuses(strided(2, 0, 4), options_of(1), "k is 1; allowed is 1 to cols, which is 0");
  refuses(strided(2, 0, 4), options_of(0), "k is 0; allowed is 1 to cols, which is 0");
  refuses(strided(0, 4, 4), options_of(5), "k is 5; allowed is 1 to cols, which is 4");
}

TEST(TopK, RefusesAWrongMatrix) {
  const top_k_options two = options_of(2);
  refuses(strided(-1, 4, 4), two, "matrix.rows is -1; allowed is 0 or more");
  refuses(strided(2, -4, 4), two, "matrix.cols is -4; allowed is 0 or more");
  refuses(strided(2, 4, 0), two, "matrix.row_stride is 0; allowed is 1 or more");
  refuses(strided(2, 4, -4), two, "matrix.row_stride is -4; allowed is 1 or more");
  refuses(strided(2, 4, 4, 0), two, "matrix.col_stride is 0; allowed is 1 or more");
  refuses(strided(2, 4, 4, -1), two, "matrix.col_stride is -1; allowed is 1 or more");
  refuses({nullptr, value_type::f32, 2, 4, 4}, two, "matrix.data is null; allowed is ");
  refuses({kValues, static_cast<value_type>(99), 2, 4, 4}, two, "matrix.type is 99; allowed is f32, f16, bf16 or f64");
}

TEST(TopK, RefusesWhatNoMemoryHolds) {
  const top_k_options two = options_of(2);
  refuses(strided(std::int64_t{1} << 31, (std::int64_t{1} << 32) - 1, 4), two, "matrix is 2147483648 x 4294967295");
  refuses(strided(kHuge, 4, 4), two, "matrix is 9223372036854775807 x 4");
  refuses(strided(2, 4, kHuge), two, "matrix is 2 x 4 with strides 9223372036854775807 and 1");
  refuses(strided(2, 4, 4, kHuge), two, "matrix is 2 x 4 with strides 4 and 9223372036854775807");
  refuses(strided(1, kHuge, 4), two, "matrix.cols is 9223372036854775807");
}

TEST(TopK, RefusesAWrongEarlyStop) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  refuses(kMatrix, with_eps(-0.5f), "eps is -0.5; allowed is 0 or more, and finite");
  refuses(kMatrix, with_eps(kInf), "eps is inf; allowed is 0 or more, and finite");
  refuses(kMatrix, with_eps(-kInf), "eps is -inf; allowed is 0 or more, and finite");
  refuses(kMatrix, with_eps(std::numeric_limits<float>::quiet_NaN()), "eps is nan; allowed is 0 or more, and finite");
  refuses(kMatrix, with_max_iter(0), "max_iter is 0; allowed is 1 to 64");
  refuses(kMatrix, with_max_iter(-1), "max_iter is -1; allowed is 1 to 64");
  refuses(kMatrix, with_max_iter(65), "max_iter is 65; allowed is 1 to 64");
  top_k_options both = with_eps(0.5f);
  both.max_iter = 4;
  refuses(kMatrix, both, "eps and max_iter is given together; allowed is one of them");
  const double doubles[] = {1, 2, 3, 4};
  const value_matrix matrix(doubles, value_type::f64, 1, 4, 4);
  refuses(matrix, with_eps(0.0f), "eps is given for f64; allowed is f32, f16 or bf16");
  refuses(matrix, with_max_iter(4), "max_iter is given for f64; allowed is f32, f16 or bf16");
}

TEST(TopK, RefusesAWrongOrder) {
  top_k_options options = options_of(2);
  options.order = static_cast<order>(7);
  refuses(kMatrix, options, "order is 7; allowed is largest or smallest");
}

TEST(TopK, RefusesOutputsThatAreNoneOfItsCombinations) {
  room memory;
  refuses(kMatrix, options_of(2), {}, {}, memory, "out is without any array; allowed is");
  for (const bool with_values : {false, true}) {
    top_k_output both = memory.lists();
    both.mask = memory.mask().mask;
    (with_values ? both.indices : both.values) = nullptr;
    refuses(kMatrix, options_of(2), both, {}, memory, "out.mask is given beside other arrays; allowed is");
  }
  refuses(kMatrix, options_of(2), memory.lists(static_cast<index_type>(9)), {}, memory,
          "out.indices_as is 9; allowed is i32 or i64");
}

TEST(TopK, RefusesColumnsThatDoNotFitTheIndices) {
  constexpr std::int64_t kFits = std::numeric_limits<std::int32_t>::max();
  room memory;
  refuses(strided(1, kFits + 1, 1), options_of(1), memory.lists(index_type::i32), {}, memory,
          "out.indices_as is i32; allowed is i64");
}

TEST(TopK, RefusesRaggedBordersOutsideOfTheMatrix) {
  struct wrong {
    std::int64_t begin, end;
    const char* part;
  };
  const wrong cases[] = {
      {-1, 4, "ragged row 1 is [-1, 4); allowed is within [0, 4)"},
      {0, 5, "ragged row 1 is [0, 5); allowed is within [0, 4)"},
      {3, 2, "ragged row 1 is [3, 2); allowed is within [0, 4)"},
      {5, 5, "ragged row 1 is [5, 5); allowed is within [0, 4)"},
      {-kHuge, kHuge, "ragged row 1 is [-9223372036854775807, 9223372036854775807); allowed is"},
  };
  for (const wrong& borders : cases) {
    const std::int64_t begins[] = {0, borders.begin};
    const std::int64_t ends[] = {4, borders.end};
    room memory;
    refuses(kMatrix, options_of(2), memory.lists(), {begins, ends}, memory, borders.part);
    refuses(kMatrix, options_of(2), memory.mask(), {begins, ends}, memory, borders.part);
  }
  const std::int64_t one_wrong[] = {0, 6};
  room memory;
  refuses(kMatrix, options_of(2), memory.lists(), {nullptr, one_wrong}, memory, "ragged row 1 is [0, 6)");
  refuses(kMatrix, options_of(2), memory.lists(), {one_wrong, nullptr}, memory, "ragged row 1 is [6, 4)");
}

TEST(TopK, RefusesAnUnknownForcedAlgorithm) {
  const environment_value forced(kForceTopK, "fastest");
  constexpr std::string_view kPart = "SHORTLIST_FORCE_TOP_K is fastest; allowed is whole_rows or split_rows";
  refuses(kMatrix, options_of(2), kPart);
  top_k_shape shape;
  shape.rows = shape.cols = 4;
  try {
    explain(device::cpu(), shape);
    FAIL() << "nothing was thrown";
  } catch (const invalid_argument& refusal) {
    EXPECT_NE(std::string_view(refusal.what()).find(kPart), std::string_view::npos) << refusal.what();
  }
}

TEST(TopK, OfNoRowsTouchesNothing) {
  room memory;
  const std::int64_t wrong[] = {77};
  top_k(stream(device::cpu()), {nullptr, value_type::f32, 0, 4, 0}, options_of(2), memory.lists());
  top_k(stream(device::cpu()), {nullptr, value_type::f16, 0, 4, 4}, options_of(4), memory.mask(), {wrong, wrong});
  EXPECT_TRUE(memory.is_untouched());
}

TEST(TopK, TakesStridesThatDoNotMatterAndRowsThatOverlap) {
  std::int64_t indices[4] = {};
  top_k_output out;
  out.indices = indices;
  const stream s(device::cpu());
  top_k(s, strided(1, 4, -9), options_of(2), out);  // one row has no stride
  EXPECT_EQ(indices[0], 1);
  EXPECT_EQ(indices[1], 3);
  top_k(s, strided(2, 1, 4, 0), options_of(1), out);  // nor has one column
  EXPECT_EQ(indices[0], 0);
  EXPECT_EQ(indices[1], 0);
  top_k(s, strided(2, 4, 1), options_of(2), out);  // 1 4 2 3, then 4 2 3 8
  EXPECT_EQ(std::vector<std::int64_t>(indices, indices + 4), (std::vector<std::int64_t>{1, 3, 0, 3}));
}

TEST(TopK, WritesOnlyTheArraysThatAreGiven) {
  float values[4] = {};
  top_k_output out;
  out.values = values;
  top_k_options options = options_of(2);
  options.sorted = true;
  top_k(stream(device::cpu()), matrix_view<const float>(kValues, 2, 4), options, out);
  EXPECT_EQ(std::vector<float>(values, values + 4), (std::vector<float>{4, 3, 8, 7}));
}

TEST(TopK, ExplainsItsAlgorithm) {
  top_k_shape shape;
  shape.cols = 4;
  for (const char* name : {"whole_rows", "split_rows"}) {
    const environment_value forced(kForceTopK, name);
    shape.rows = 4;
    const std::string text = explain(device::cpu(), shape);
    EXPECT_NE(text.find(std::string("algorithm:  ") + name), std::string::npos) << text;
    EXPECT_NE(text.find(std::string("forced by SHORTLIST_FORCE_TOP_K=") + name), std::string::npos) << text;
  }
  const environment_value planned(kForceTopK, nullptr);
  shape.rows = 1 << 16;
  shape.cols = 256;
  shape.k = 32;
  EXPECT_NE(explain(device::cpu(), shape).find("algorithm:  whole_rows"), std::string::npos);
  shape.rows = 1;
  shape.cols = 100'000'000;
  shape.k = 100;
  EXPECT_NE(explain(device::cpu(), shape).find("algorithm:  split_rows"), std::string::npos);
}

TEST(TopK, RefusesToExplainAShapeThatIsNone) {
  struct wrong {
    std::int64_t rows, cols, k;
    const char* part;
  };
  const wrong cases[] = {
      {0, 4, 1, "shape.rows is 0; allowed is 1 or more"},
      {-2, 4, 1, "shape.rows is -2; allowed is 1 or more"},
      {1, 0, 1, "shape.cols is 0; allowed is 1 or more"},
      {1, 4, 0, "shape.k is 0; allowed is 1 to cols, which is 4"},
      {1, 4, 5, "shape.k is 5; allowed is 1 to cols, which is 4"},
  };
  for (const wrong& it : cases) {
    top_k_shape shape;
    shape.rows = it.rows;
    shape.cols = it.cols;
    shape.k = it.k;
    try {
      explain(device::cpu(), shape);
      ADD_FAILURE() << "nothing was thrown for " << it.part;
    } catch (const invalid_argument& refusal) {
      EXPECT_NE(std::string_view(refusal.what()).find(it.part), std::string_view::npos) << refusal.what();
    }
  }
}

TEST(TopK, HasNamesForItsTypes) {
  for (const char* name : {"f32", "f16", "bf16", "f64"}) EXPECT_EQ(to_string(parse_value_type(name)), name);
  EXPECT_THROW(parse_value_type("i8"), invalid_argument);
  EXPECT_EQ(value_type_of<const double>(), value_type::f64);
}

}  // namespace
}  // namespace shortlist
