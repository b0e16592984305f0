// Memory for what a file holds: that it runs out is an error that names the file and how much it needs.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <new>
#include <stdexcept>
#include <vector>

#include "core/message.hpp"
#include "shortlist/error.hpp"

namespace shortlist::io {

template <class T>
std::vector<T> allocate(const std::filesystem::path& path, std::int64_t count) {
  const std::int64_t bytes = count > std::numeric_limits<std::int64_t>::max() / static_cast<std::int64_t>(sizeof(T))
                                 ? std::numeric_limits<std::int64_t>::max()
                                 : count * static_cast<std::int64_t>(sizeof(T));
  try {
    return std::vector<T>(static_cast<std::size_t>(count));
  } catch (const std::bad_alloc&) {
    throw out_of_memory(fmt::format("'{}' needs {} of memory", path.string(), core::readable_bytes(bytes)));
  } catch (const std::length_error&) {
    throw out_of_memory(fmt::format("'{}' needs {} of memory", path.string(), core::readable_bytes(bytes)));
  }
}

}  // namespace shortlist::io
