// Error messages in one manner, and sizes for people.
#include "core/message.hpp"

#include <fmt/format.h>

namespace shortlist::core {

std::string wrong_value(std::string_view argument, std::string_view value, std::string_view allowed) {
  return fmt::format("{} is {}; allowed is {}", argument, value.empty() ? "empty" : value, allowed);
}

std::string wrong_value(std::string_view argument, std::int64_t value, std::string_view allowed) {
  return fmt::format("{} is {}; allowed is {}", argument, value, allowed);
}

std::string readable_bytes(std::int64_t bytes) {
  constexpr std::int64_t kStep = 1024;
  if (bytes < kStep) return fmt::format("{} {}", bytes, bytes == 1 ? "byte" : "bytes");
  auto amount = static_cast<double>(bytes);
  std::string_view unit = "bytes";
  for (const std::string_view larger : {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}) {
    if (amount < static_cast<double>(kStep)) break;
    amount /= static_cast<double>(kStep);
    unit = larger;
  }
  return fmt::format("{:.1f} {}", amount, unit);
}

}  // namespace shortlist::core
