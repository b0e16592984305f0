// The ids of rows.
#include "index/labels.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "core/message.hpp"

namespace shortlist::index {
namespace {

/// Room for `more` entries behind those that are there, growing geometrically.
void make_room(std::vector<std::int64_t>& values, std::size_t more) {
  const std::size_t needed = values.size() + more;
  if (needed > values.capacity()) values.reserve(std::max(needed, values.capacity() + values.capacity() / 2));
}

void append_positions(std::vector<std::int64_t>& values, std::int64_t first, std::int64_t count) {
  const std::size_t old_size = values.size();
  values.resize(old_size + static_cast<std::size_t>(count));
  std::iota(values.begin() + static_cast<std::ptrdiff_t>(old_size), values.end(), first);
}

bool strictly_ascending(std::span<const std::int64_t> ids) {
  return std::adjacent_find(ids.begin(), ids.end(), std::greater_equal<>()) == ids.end();
}

[[noreturn]] void throw_taken(std::int64_t id, std::size_t index, bool position) {
  if (position) {
    core::throw_invalid("ids", "empty",
                        fmt::format("ids that no other row has, since the position {} is an id already", id));
  }
  core::throw_invalid(fmt::format("ids[{}]", index), id, "an id that no other row has");
}

}  // namespace

labels::pending labels::append(std::int64_t first, std::int64_t count, std::span<const std::int64_t> ids) {
  if (!ids.empty() && ids.size() != static_cast<std::size_t>(count)) {
    core::throw_invalid("ids.size()", static_cast<std::int64_t>(ids.size()),
                        fmt::format("0, or {}: one for each vector", count));
  }
  const auto negative = std::find_if(ids.begin(), ids.end(), [](std::int64_t id) { return id < 0; });
  if (negative != ids.end())
    core::throw_invalid(fmt::format("ids[{}]", negative - ids.begin()), *negative, "0 or more");

  const std::size_t size_before = ids_.size();
  if (count == 0 || (ids.empty() && !given())) return {*this, size_before};

  pending added(*this, size_before);  // undoes what follows if any of it throws
  if (!given()) append_positions(ids_, 0, first);
  const std::size_t old_rows = ids_.size();
  make_room(ids_, static_cast<std::size_t>(count));
  const bool positions = ids.empty();
  if (positions) {
    append_positions(ids_, first, count);
  } else {
    ids_.insert(ids_.end(), ids.begin(), ids.end());
  }
  const auto fresh = std::span<const std::int64_t>(ids_).subspan(old_rows);
  const bool ascends = strictly_ascending(fresh) && (old_rows == 0 || fresh.front() > ids_[old_rows - 1]);
  if (seen_ || !ascends) insert(fresh, positions);
  added.keep();
  return {*this, size_before};
}

void labels::insert(std::span<const std::int64_t> fresh, bool positions) {
  if (!seen_) {
    std::unordered_set<std::int64_t> before;
    before.reserve(ids_.size());
    before.insert(ids_.begin(), ids_.end() - static_cast<std::ptrdiff_t>(fresh.size()));
    seen_ = std::move(before);
  }
  std::size_t index = 0;
  const auto forget = [&] {
    for (const std::int64_t id : fresh.first(index)) seen_->erase(id);
    // Now, so that `shrink_to` does not erase an id from `seen_` that belongs to an older row.
    ids_.resize(ids_.size() - fresh.size());
  };
  try {
    for (; index < fresh.size(); ++index) {
      if (!seen_->insert(fresh[index]).second) break;
    }
  } catch (...) {
    forget();
    throw;
  }
  if (index == fresh.size()) return;
  const std::int64_t taken = fresh[index];
  forget();
  throw_taken(taken, index, positions);
}

void labels::shrink_to(std::size_t size) noexcept {
  if (seen_) {
    for (std::size_t at = size; at < ids_.size(); ++at) seen_->erase(ids_[at]);
  }
  if (ids_.size() > size) ids_.resize(size);
}

std::int64_t labels::bytes() const noexcept {
  std::int64_t total = static_cast<std::int64_t>(ids_.capacity() * sizeof(std::int64_t));
  if (seen_) {
    constexpr std::size_t kNodeBytes = sizeof(void*) + sizeof(std::int64_t);
    total += static_cast<std::int64_t>(seen_->size() * kNodeBytes + seen_->bucket_count() * sizeof(void*));
  }
  return total;
}

}  // namespace shortlist::index
