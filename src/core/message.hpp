// Error messages in one manner: the argument, its value, what is allowed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "shortlist/error.hpp"

namespace shortlist::core {

/// "k is 0; allowed is 1 or more".
std::string wrong_value(std::string_view argument, std::string_view value, std::string_view allowed);
std::string wrong_value(std::string_view argument, std::int64_t value, std::string_view allowed);

template <class... Args>
[[noreturn]] void throw_invalid(const Args&... args) {
  throw invalid_argument(wrong_value(args...));
}

/// "1.5 GiB", "12 bytes".
std::string readable_bytes(std::int64_t bytes);

}  // namespace shortlist::core
