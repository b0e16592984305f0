// What the tests of row-wise top k on a GPU alone share: a case by what the plan chooses, or by one kernel.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "conformance/either_device.hpp"
#include "conformance/top_k_harness.hpp"
#include "conformance/top_k_values.hpp"

namespace shortlist::conformance {

/// By what the plan chooses there.
inline void expect_equal_on(const device& where, const top_k_case& what) {
  const matrix_data data = make_data(what);
  EXPECT_TRUE(run_on_device(what, data, where) == expected_bytes(what, data))
      << describe(what, {.where = where, .algorithm = "plan"});
}

/// By an algorithm, which must be one that can take the shape; or by what the plan chooses, if it is "plan".
inline void expect_equal_by(std::string_view algorithm, const device& where, const top_k_case& what) {
  const top_k_way how{where, "-", std::string(algorithm)};
  EXPECT_TRUE(takes(how, what)) << describe(what, how);
  const matrix_data data = make_data(what);
  const std::string failure = run_way(what, how, data, expected_bytes(what, data));
  EXPECT_TRUE(failure.empty()) << failure;
}

/// A shape that tests go through by turns.
struct many_rows {
  std::int64_t rows;
  std::int64_t cols;
  std::int64_t k = 1;
  bool sorted = false;
  std::string_view ragged = "no";
};

inline constexpr value_type kAnyType[] = {value_type::f32, value_type::bf16, value_type::f32, value_type::f16};

}  // namespace shortlist::conformance
