// What the plans share: rules that are asked in order, algorithms that tests force, and bandwidths to explain with.
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>

#include "core/message.hpp"
#include "core/plan.hpp"

namespace shortlist::core {

inline constexpr std::int64_t kAny = std::numeric_limits<std::int64_t>::max();

/// The algorithm of a table that an environment variable asks for; an empty value counts as unset.
template <class Named>
auto forced_by(const char* variable, std::span<const Named> table) -> std::optional<decltype(Named::algorithm)> {
  const char* wanted = std::getenv(variable);
  if (!wanted || !*wanted) return std::nullopt;
  for (const auto& [name, algorithm] : table) {
    if (name == wanted) return algorithm;
  }
  std::string known;
  for (const auto& entry : table) known += (known.empty() ? "" : " or ") + std::string(entry.name);
  throw_invalid(variable, wanted, known);
}

/// The number that an environment variable gives; an empty value counts as unset.
/// @throws invalid_argument if it is none from `least` to `most`.
inline std::optional<std::int64_t> number_from(const char* variable, std::int64_t least, std::int64_t most) {
  const char* given = std::getenv(variable);
  if (!given || !*given) return std::nullopt;
  const std::string_view text(given);
  const char* const end = text.data() + text.size();
  std::int64_t value = 0;
  const auto [parsed, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || parsed != end || value < least || value > most)
    throw_invalid(variable, text, std::to_string(least) + " to " + std::to_string(most));
  return value;
}

template <class Rule, std::size_t Count, class Shape>
const Rule& first_that_holds(const Rule (&rules)[Count], const Shape& shape) {
  for (const Rule& rule : rules) {
    if (rule.holds(shape)) return rule;
  }
  return rules[Count - 1];  // holds for every shape
}

// Read bandwidths that `explain` turns bytes into a limit with, for corpora beyond the caches. Measured: `limits` of
// benchmarks/results/h200/seeds.json and cpu-2core/flat_cpu.json; a benchmark run measures its own.
inline constexpr double kH200GbPerS = 4617.0;
inline constexpr double kTwoCoresGbPerS = 76.0;

struct bandwidth {
  double gb_per_s;
  std::string_view machine;
};

constexpr bandwidth example_bandwidth(device_kind kind) {
  return kind == device_kind::cpu ? bandwidth{kTwoCoresGbPerS, "two cores of an EPYC"}
                                  : bandwidth{kH200GbPerS, "an H200"};
}

}  // namespace shortlist::core
