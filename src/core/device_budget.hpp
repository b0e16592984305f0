// How much of a GPU's memory this process's indexes may take, where its user sets a bound.
#pragma once

#include <cstdint>
#include <optional>

namespace shortlist::core {

inline constexpr const char* kDeviceBudget = "SHORTLIST_DEVICE_BUDGET";

/// The bytes that the environment variable SHORTLIST_DEVICE_BUDGET allows on each GPU: a whole number, alone or with
/// KiB, MiB or GiB. Nothing if it is unset or empty. @throws invalid_argument if it is anything else.
std::optional<std::int64_t> device_budget_bytes();

}  // namespace shortlist::core
