// The ids of rows: none until one is given; then one for every row, each 0 or more and no two the same.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_set>
#include <vector>

namespace shortlist::index {

/// While ids only ever ascend, a comparison with the last one proves a new one to be new. The first that does not
/// ascend makes a hash set of all.
class labels {
 public:
  /// Ids that were appended, and that vanish again unless they are kept.
  class pending {
   public:
    pending(labels& owner, std::size_t size_before) noexcept : owner_(&owner), size_before_(size_before) {}
    pending(const pending&) = delete;
    pending& operator=(const pending&) = delete;
    ~pending() {
      if (owner_) owner_->shrink_to(size_before_);
    }
    void keep() noexcept { owner_ = nullptr; }

   private:
    labels* owner_;
    std::size_t size_before_;
  };

  /// The ids of rows [first, first + count): `ids`, or their positions if it is empty.
  /// @throws invalid_argument that names the id and its index; nothing has changed then.
  [[nodiscard]] pending append(std::int64_t first, std::int64_t count, std::span<const std::int64_t> ids);

  bool given() const noexcept { return !ids_.empty(); }
  /// One for every row, or empty if none was ever given.
  std::span<const std::int64_t> all() const noexcept { return ids_; }
  std::int64_t bytes() const noexcept;

 private:
  void insert(std::span<const std::int64_t> ids, bool positions);
  void shrink_to(std::size_t size) noexcept;

  std::vector<std::int64_t> ids_;
  std::optional<std::unordered_set<std::int64_t>> seen_;
};

}  // namespace shortlist::index
