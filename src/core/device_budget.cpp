#include "core/device_budget.hpp"

#include <charconv>
#include <cstdlib>
#include <limits>
#include <string_view>

#include "core/message.hpp"

namespace shortlist::core {
namespace {

struct byte_unit {
  std::string_view name;
  std::int64_t bytes;
};
constexpr byte_unit kUnits[] = {
    {"", 1}, {"KiB", std::int64_t{1} << 10}, {"MiB", std::int64_t{1} << 20}, {"GiB", std::int64_t{1} << 30}};

}  // namespace

std::optional<std::int64_t> device_budget_bytes() {
  const char* given = std::getenv(kDeviceBudget);
  if (!given || !*given) return std::nullopt;
  const std::string_view text(given);
  std::int64_t count = 0;
  const auto [parsed, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error == std::errc() && count >= 0) {
    const std::string_view unit = text.substr(static_cast<std::size_t>(parsed - text.data()));
    for (const auto& [name, bytes] : kUnits) {
      if (unit == name && count <= std::numeric_limits<std::int64_t>::max() / bytes) return count * bytes;
    }
  }
  throw_invalid(kDeviceBudget, text, "a whole number of bytes, or one with KiB, MiB or GiB");
}

}  // namespace shortlist::core
