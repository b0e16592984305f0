// Scratch for searches whose caller brings none: any number of threads take a slot each and give it back.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "core/backend.hpp"
#include "shortlist/device.hpp"
#include "shortlist/flat_index.hpp"

namespace shortlist::index {

/// What one search at a time needs. Work that was queued on a caller's stream with this scratch is ordered before
/// `own`, so that whoever waits for `own` may use, or free, the scratch.
struct slot {
  explicit slot(device where) : own(where) {}

  search_limits limits;
  stream own;
  std::unique_ptr<core::scratch> scratch;
  std::vector<float> widened;  ///< host queries of other types than fp32, as fp32; [limits.max_queries, dim] or empty

 private:
  friend class slot_pool;
  bool reserved = false;
  // As the pool last saw them, under its mutex; the slot itself belongs to whoever has taken it.
  std::int64_t bytes = 0;
  std::int64_t device_allocations = 0;
};

class slot_pool {
 public:
  slot_pool(core::backend& backend, std::int64_t dim, storage kept);
  ~slot_pool();
  slot_pool(const slot_pool&) = delete;
  slot_pool& operator=(const slot_pool&) = delete;

  /// A slot that the caller has to itself.
  class lease {
   public:
    lease(slot_pool& pool, slot& taken) noexcept : pool_(pool), slot_(taken) {}
    lease(const lease&) = delete;
    lease& operator=(const lease&) = delete;
    ~lease() { pool_.give_back(slot_); }
    slot* operator->() const noexcept { return &slot_; }
    slot& operator*() const noexcept { return slot_; }

   private:
    slot_pool& pool_;
    slot& slot_;
  };

  /// A slot for searches of at least these rows and k, and of as many queries at once as a slot is made for: larger
  /// searches go through it in batches of limits.max_queries. If one must be made, it has room for `room_for_rows`.
  lease take(const search_limits& needed, std::int64_t room_for_rows);
  /// New slots, so that with those that are there `concurrency` searches of these limits can run at once. Both calls
  /// need exclusive access; `put_in` neither throws nor is bound to follow.
  std::vector<std::unique_ptr<slot>> make_reserved(const search_limits& limits, int concurrency);
  void put_in(std::vector<std::unique_ptr<slot>> made) noexcept;

  /// Adds workspaces_bytes and the allocations made here.
  void add_to(memory_use& use) const;

 private:
  bool fits(const search_limits& has, const search_limits& needed) const noexcept;
  std::int64_t batch_limit(std::int64_t k) const noexcept;
  search_limits merged(const search_limits& has, const search_limits& needed) const noexcept;
  slot* take_free(const search_limits& needed, const search_limits& to_make);
  void equip(slot& target, const search_limits& limits) const;
  void replace_scratch(slot& target, const search_limits& limits);
  slot& adopt(std::unique_ptr<slot> made);
  void make_places(std::size_t more);
  void note_use(slot& target) const noexcept;
  void give_back(slot& returned) noexcept;

  core::backend& backend_;
  std::int64_t dim_;
  storage kept_;
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<slot>> all_;
  std::vector<slot*> free_;  ///< its capacity is that of all_: giving back never allocates
  std::int64_t retired_device_allocations_ = 0;
};

}  // namespace shortlist::index
