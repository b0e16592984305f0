// Scratch for searches of an IVF-PQ index: any number of threads take a slot each and give it back.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "core/ivf_pq.hpp"
#include "shortlist/device.hpp"

namespace shortlist::index {

/// What one search at a time needs. Work queued on a caller's stream with this scratch is ordered before `own`.
struct ivf_pq_slot {
  explicit ivf_pq_slot(device where) : own(where) {}

  stream own;
  core::ivf_pq_limits limits;
  std::int64_t rows = 0;     ///< of lists that the scratch serves
  std::int64_t longest = 0;  ///< the same
  std::unique_ptr<core::scratch> scratch;
  std::vector<float> widened;  ///< host queries of other types than fp32, as fp32
};

class ivf_pq_slots {
 public:
  explicit ivf_pq_slots(core::backend& backend) : backend_(backend) {}
  ~ivf_pq_slots() { clear(); }
  ivf_pq_slots(const ivf_pq_slots&) = delete;
  ivf_pq_slots& operator=(const ivf_pq_slots&) = delete;

  class lease {
   public:
    lease(ivf_pq_slots& pool, std::unique_ptr<ivf_pq_slot> taken) noexcept : pool_(pool), slot_(std::move(taken)) {}
    lease(const lease&) = delete;
    lease& operator=(const lease&) = delete;
    ~lease() { pool_.give_back(std::move(slot_)); }
    ivf_pq_slot* operator->() const noexcept { return slot_.get(); }

   private:
    ivf_pq_slots& pool_;
    std::unique_ptr<ivf_pq_slot> slot_;
  };

  /// A slot for searches of these limits, but of no more queries at once than limits.max_queries of the slot; if its
  /// scratch must be made, it serves lists of `room_for_rows` rows.
  lease take(const core::ivf_pq_model& model, const core::ivf_pq_lists& lists, const core::ivf_pq_limits& needed,
             std::int64_t room_for_rows);
  /// Waits for work that was queued, and forgets all scratch: that of another model serves no more.
  void clear() noexcept;
  std::int64_t bytes() const;

 private:
  std::unique_ptr<ivf_pq_slot> take_free(const core::ivf_pq_lists& lists, const core::ivf_pq_limits& needed);
  void give_back(std::unique_ptr<ivf_pq_slot> returned) noexcept;

  core::backend& backend_;
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<ivf_pq_slot>> free_;
  std::size_t made_ = 0;
  std::int64_t bytes_ = 0;  ///< of slots that are free
};

}  // namespace shortlist::index
