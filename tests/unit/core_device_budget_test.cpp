// SHORTLIST_DEVICE_BUDGET: what it may say.
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>

#include "core/device_budget.hpp"
#include "core_environment.hpp"
#include "shortlist/error.hpp"

namespace shortlist::core {
namespace {

using test::environment_value;

std::optional<std::int64_t> budget(const char* text) {
  const environment_value given(kDeviceBudget, text);
  return device_budget_bytes();
}

TEST(device_budget, is_bytes_or_bytes_with_a_unit) {
  EXPECT_EQ(budget(nullptr), std::nullopt);
  EXPECT_EQ(budget(""), std::nullopt);
  EXPECT_EQ(budget("0"), 0);
  EXPECT_EQ(budget("123456789012"), 123456789012);
  EXPECT_EQ(budget("3KiB"), 3 * 1024);
  EXPECT_EQ(budget("7MiB"), 7 * 1024 * 1024);
  EXPECT_EQ(budget("20GiB"), std::int64_t{20} << 30);
  EXPECT_EQ(budget("8589934591GiB"), std::int64_t{8589934591} << 30);  // the last whole one below 2^63 bytes
}

TEST(device_budget, that_is_anything_else_is_an_error) {
  for (const char* wrong : {"-1", "x", "GiB", "20 GiB", "20GB", "20gib", "1.5GiB", "+3", "9223372036854775808",
                            "8589934592GiB", "20GiB "}) {
    try {
      budget(wrong);
      ADD_FAILURE() << wrong << " was accepted";
    } catch (const invalid_argument& failure) {
      EXPECT_EQ(std::string(failure.what()), "SHORTLIST_DEVICE_BUDGET is " + std::string(wrong) +
                                                 "; allowed is a whole number of bytes, or one with KiB, MiB or GiB");
    }
  }
}

}  // namespace
}  // namespace shortlist::core
