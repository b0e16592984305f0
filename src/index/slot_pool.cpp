// Scratch for searches whose caller brings none.
#include "index/slot_pool.hpp"

#include <algorithm>
#include <utility>

namespace shortlist::index {
namespace {

// The most queries that go to a backend at once: more would gain nothing (the rows are read once for all of them, and
// their products outweigh that read long before), while staging and candidate lists grow with them.
constexpr std::int64_t kMaxBatch = 4096;
// Staging of queries and results that a slot may need before its batches become smaller.
constexpr std::int64_t kMaxStagingBytes = std::int64_t{256} << 20;
constexpr std::int64_t kResultBytes = sizeof(float) + sizeof(std::int64_t);

/// Work that was queued on callers' streams may still use a slot's scratch.
void wait_for(const slot& one) noexcept {
  try {
    one.own.synchronize();
  } catch (...) {  // a device that has failed has no work left
  }
}

}  // namespace

slot_pool::slot_pool(core::backend& backend, std::int64_t dim, storage kept)
    : backend_(backend), dim_(dim), kept_(kept) {}

slot_pool::~slot_pool() {
  for (const auto& one : all_) wait_for(*one);
}

std::int64_t slot_pool::batch_limit(std::int64_t k) const noexcept {
  // In double: k is any number, and the product need not fit.
  const double query_bytes =
      static_cast<double>(k) * kResultBytes + static_cast<double>(dim_) * static_cast<double>(sizeof(float));
  return std::clamp(static_cast<std::int64_t>(static_cast<double>(kMaxStagingBytes) / query_bytes), std::int64_t{1},
                    kMaxBatch);
}

bool slot_pool::fits(const search_limits& has, const search_limits& needed) const noexcept {
  return has.max_rows >= needed.max_rows && has.max_k >= needed.max_k &&
         has.max_queries >= std::min(needed.max_queries, batch_limit(has.max_k));
}

/// Limits that serve both, or if those are beyond a slot's budget, `needed` alone.
search_limits slot_pool::merged(const search_limits& has, const search_limits& needed) const noexcept {
  const search_limits both = {.max_rows = std::max(has.max_rows, needed.max_rows),
                              .max_queries = std::max(has.max_queries, needed.max_queries),
                              .max_k = std::max(has.max_k, needed.max_k)};
  return both.max_queries <= batch_limit(both.max_k) ? both : needed;
}

slot* slot_pool::take_free(const search_limits& needed, const search_limits& to_make) {
  const std::lock_guard lock(mutex_);
  // From the back: the slot used last has its memory in the caches.
  auto chosen = std::find_if(free_.rbegin(), free_.rend(), [&](slot* one) { return fits(one->limits, needed); });
  // A slot that is too small gets larger scratch, unless a reservation counts on what it has.
  if (chosen == free_.rend()) {
    chosen = std::find_if(free_.rbegin(), free_.rend(),
                          [&](slot* one) { return !one->reserved || fits(merged(one->limits, to_make), one->limits); });
  }
  if (chosen == free_.rend()) return nullptr;
  slot* taken = *chosen;
  free_.erase(std::next(chosen).base());
  return taken;
}

slot_pool::lease slot_pool::take(const search_limits& needed, std::int64_t room_for_rows) {
  const search_limits to_make = {.max_rows = std::max(needed.max_rows, room_for_rows),
                                 .max_queries = std::min(needed.max_queries, batch_limit(needed.max_k)),
                                 .max_k = needed.max_k};
  if (slot* taken = take_free(needed, to_make)) {
    try {
      if (!fits(taken->limits, needed)) replace_scratch(*taken, merged(taken->limits, to_make));
    } catch (...) {
      give_back(*taken);
      throw;
    }
    return {*this, *taken};
  }
  auto made = std::make_unique<slot>(backend_.where());
  equip(*made, to_make);
  return {*this, adopt(std::move(made))};
}

std::vector<std::unique_ptr<slot>> slot_pool::make_reserved(const search_limits& limits, int concurrency) {
  const search_limits each = {.max_rows = limits.max_rows,
                              .max_queries = std::min(limits.max_queries, batch_limit(limits.max_k)),
                              .max_k = limits.max_k};
  const auto widened_size = static_cast<std::size_t>(each.max_queries * dim_);
  const auto ready = std::count_if(all_.begin(), all_.end(), [&](const auto& one) {
    return one->reserved && fits(one->limits, each) && one->widened.size() >= widened_size;
  });
  std::vector<std::unique_ptr<slot>> made;
  for (auto count = ready; count < concurrency; ++count) {
    auto one = std::make_unique<slot>(backend_.where());
    equip(*one, each);
    one->widened.resize(widened_size);
    one->reserved = true;
    made.push_back(std::move(one));
  }
  make_places(made.size());
  return made;
}

void slot_pool::put_in(std::vector<std::unique_ptr<slot>> made) noexcept {
  const std::lock_guard lock(mutex_);
  for (auto& one : made) {
    note_use(*one);
    // In the place of one that it can stand in for, otherwise beside the others.
    const auto outdated = std::find_if(all_.begin(), all_.end(), [&](const auto& old) {
      return fits(one->limits, old->limits) && !(old->reserved && fits(old->limits, one->limits));
    });
    if (outdated == all_.end()) {
      free_.push_back(one.get());
      all_.push_back(std::move(one));
    } else {
      wait_for(**outdated);
      retired_device_allocations_ += (*outdated)->device_allocations;
      std::replace(free_.begin(), free_.end(), outdated->get(), one.get());
      *outdated = std::move(one);
    }
  }
}

void slot_pool::equip(slot& target, const search_limits& limits) const {
  target.scratch = backend_.make_scratch(limits, dim_, kept_);
  target.limits = limits;
}

void slot_pool::replace_scratch(slot& target, const search_limits& limits) {
  auto larger = backend_.make_scratch(limits, dim_, kept_);
  wait_for(target);
  const std::lock_guard lock(mutex_);
  retired_device_allocations_ += target.scratch->device_allocations();
  target.scratch = std::move(larger);
  target.limits = limits;
  note_use(target);
}

void slot_pool::make_places(std::size_t more) {
  all_.reserve(all_.size() + more);
  free_.reserve(all_.capacity());
}

slot& slot_pool::adopt(std::unique_ptr<slot> made) {
  const std::lock_guard lock(mutex_);
  make_places(1);
  note_use(*made);
  all_.push_back(std::move(made));
  return *all_.back();
}

void slot_pool::note_use(slot& target) const noexcept {
  target.bytes = target.scratch->bytes() + static_cast<std::int64_t>(target.widened.capacity() * sizeof(float));
  target.device_allocations = target.scratch->device_allocations();
}

void slot_pool::give_back(slot& returned) noexcept {
  const std::lock_guard lock(mutex_);
  note_use(returned);
  free_.push_back(&returned);
}

void slot_pool::add_to(memory_use& use) const {
  const std::lock_guard lock(mutex_);
  use.device_allocations += retired_device_allocations_;
  for (const auto& one : all_) {
    use.workspaces_bytes += one->bytes;
    use.device_allocations += one->device_allocations;
  }
}

}  // namespace shortlist::index
