// Scratch for searches of an IVF-PQ index.
#include "index/ivf_pq_slots.hpp"

#include <algorithm>
#include <utility>

namespace shortlist::index {
namespace {

// The most queries that go to a backend at once: lists are then read once for many queries, and what a batch needs
// stays small beside the lists.
constexpr std::int64_t kMaxBatch = 16384;
// Of what a batch stages for its queries and candidates; larger ones are cut.
constexpr double kMaxStagingBytes = 1u << 30;
constexpr double kCandidateBytes = sizeof(float) + sizeof(std::int64_t);
constexpr double kProbeBytes = 16;
// A list may grow by so much before scratch is made anew.
constexpr std::int64_t kGrowthShare = 8;

std::int64_t batch_of(const core::ivf_pq_shape& shape, const core::ivf_pq_limits& needed) {
  const double candidates = static_cast<double>(needed.max_k) * static_cast<double>(1 + needed.max_refine_ratio);
  const double query_bytes = candidates * kCandidateBytes + static_cast<double>(shape.dim) * sizeof(float) +
                             static_cast<double>(needed.max_nprobe) * kProbeBytes;
  const auto most = static_cast<std::int64_t>(std::clamp(kMaxStagingBytes / query_bytes, 1.0, double{kMaxBatch}));
  return std::min(needed.max_queries, most);
}

bool covers(const core::ivf_pq_limits& has, const core::ivf_pq_limits& needed) {
  return has.max_queries >= needed.max_queries && has.max_k >= needed.max_k && has.max_nprobe >= needed.max_nprobe &&
         has.max_refine_ratio >= needed.max_refine_ratio;
}

core::ivf_pq_limits merged(const core::ivf_pq_limits& a, const core::ivf_pq_limits& b) {
  return {.max_queries = std::max(a.max_queries, b.max_queries),
          .max_k = std::max(a.max_k, b.max_k),
          .max_nprobe = std::max(a.max_nprobe, b.max_nprobe),
          .max_refine_ratio = std::max(a.max_refine_ratio, b.max_refine_ratio)};
}

/// Work that was queued on callers' streams may still use a slot's scratch.
void wait_for(const ivf_pq_slot& one) noexcept {
  try {
    one.own.synchronize();
  } catch (...) {  // a device that has failed has no work left
  }
}

bool serves(const ivf_pq_slot& one, const core::ivf_pq_lists& lists, const core::ivf_pq_limits& needed) {
  return one.scratch && covers(one.limits, needed) && one.rows >= lists.rows && one.longest >= lists.longest;
}

std::int64_t slot_bytes(const ivf_pq_slot& one) {
  return one.scratch->bytes() + static_cast<std::int64_t>(one.widened.capacity() * sizeof(float));
}

}  // namespace

std::unique_ptr<ivf_pq_slot> ivf_pq_slots::take_free(const core::ivf_pq_lists& lists,
                                                     const core::ivf_pq_limits& needed) {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) {
    free_.reserve(++made_);  // giving back never allocates
    return nullptr;
  }
  // From the back: the slot used last has its memory in the caches.
  auto chosen =
      std::find_if(free_.rbegin(), free_.rend(), [&](const auto& one) { return serves(*one, lists, needed); });
  if (chosen == free_.rend()) chosen = free_.rbegin();
  std::unique_ptr<ivf_pq_slot> taken = std::move(*chosen);
  free_.erase(std::next(chosen).base());
  bytes_ -= slot_bytes(*taken);
  return taken;
}

ivf_pq_slots::lease ivf_pq_slots::take(const core::ivf_pq_model& model, const core::ivf_pq_lists& lists,
                                       const core::ivf_pq_limits& wanted, std::int64_t room_for_rows) {
  core::ivf_pq_limits needed = wanted;
  needed.max_queries = batch_of(model.shape, wanted);
  std::unique_ptr<ivf_pq_slot> taken = take_free(lists, needed);
  if (!taken) taken = std::make_unique<ivf_pq_slot>(backend_.where());
  if (!serves(*taken, lists, needed)) {
    const core::ivf_pq_limits both = merged(taken->limits, needed);
    // Limits that serve earlier searches too, unless together they are too much.
    const core::ivf_pq_limits limits = batch_of(model.shape, both) == both.max_queries ? both : needed;
    core::ivf_pq_lists room = lists;
    room.rows = std::max(lists.rows, room_for_rows);
    room.longest += room.longest / kGrowthShare;
    wait_for(*taken);
    taken->scratch.reset();  // before the new one is made, so that they need not fit both
    taken->scratch = backend_.ivf_pq().make_scratch(model, room, limits);
    taken->limits = limits;
    taken->rows = room.rows;
    taken->longest = room.longest;
  }
  return {*this, std::move(taken)};
}

void ivf_pq_slots::give_back(std::unique_ptr<ivf_pq_slot> returned) noexcept {
  if (!returned || !returned->scratch) return;
  const std::lock_guard lock(mutex_);
  bytes_ += slot_bytes(*returned);
  free_.push_back(std::move(returned));
}

void ivf_pq_slots::clear() noexcept {
  const std::lock_guard lock(mutex_);
  for (const auto& one : free_) wait_for(*one);
  free_.clear();
  bytes_ = 0;
}

std::int64_t ivf_pq_slots::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

}  // namespace shortlist::index
