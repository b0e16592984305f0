// The conformance tests' own flags, beside GoogleTest's.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>

#include "conformance/harness.hpp"

namespace {

constexpr const char* kUsage =
    "  --full           larger shapes and more combinations (also SHORTLIST_TEST_FULL=1)\n"
    "  --max_seconds S  time for the sampled cases; what is left is reported (also SHORTLIST_TEST_SECONDS)\n"
    "  --max_cases N    the same as a number of cases of each element type and metric\n"
    "  --seed N         of the sample of cases\n"
    "  --replay LINE    run the one case that a failure printed\n";

int run(int argc, char** argv) {
  shortlist::conformance::settings& settings = shortlist::conformance::run_settings();
  if (const char* full = std::getenv("SHORTLIST_TEST_FULL")) settings.full = std::string_view(full) != "0";
  if (const char* seconds = std::getenv("SHORTLIST_TEST_SECONDS")) settings.max_seconds = std::stod(seconds);
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    if (flag == "--full") {
      settings.full = true;
      continue;
    }
    const bool takes_value = flag == "--max_seconds" || flag == "--max_cases" || flag == "--seed" || flag == "--replay";
    if (!takes_value || i + 1 == argc) {
      fmt::print(stderr, "unknown flag or missing value: {}\n{}", flag, kUsage);
      return 2;
    }
    const std::string value = argv[++i];
    if (flag == "--max_seconds") settings.max_seconds = std::stod(value);
    if (flag == "--max_cases") settings.max_cases = std::stoll(value);
    if (flag == "--seed") settings.seed = std::stoull(value);
    if (flag == "--replay") return shortlist::conformance::replay(value);
  }
  return RUN_ALL_TESTS();
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (testing::GTEST_FLAG(list_tests)) return RUN_ALL_TESTS();
  try {
    return run(argc, argv);
  } catch (const std::exception& failure) {
    fmt::print(stderr, "{}\n", failure.what());
    return 2;
  }
}
