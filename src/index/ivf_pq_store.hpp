// The lists of an IVF-PQ index: pages of codes on the device, and the table that says which page is whose.
//
// Pages that count are never written: where an addition meets a list whose last page has room, that page's rows move to
// a new one first. So an addition that fails, at whatever step, leaves nothing behind, and lists are never rebuilt.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "core/ivf_pq.hpp"
#include "index/device_memory.hpp"

namespace shortlist::index {

/// Which pages each list has.
struct list_directory {
  std::vector<std::uint32_t> sizes;  ///< [nlist] rows
  std::vector<std::uint32_t> first;  ///< [nlist + 1] where a list's part of the table begins
  std::vector<std::uint32_t> table;  ///< numbers of pages, list after list
  device_memory device_sizes;
  device_memory device_first;
  device_memory device_table;

  std::int64_t pages_of(std::int64_t list) const noexcept { return first[list + 1] - first[list]; }
};

/// Rows in the device's memory, encoded.
struct encoded_rows {
  std::int64_t n = 0;
  const std::int64_t* lists = nullptr;       ///< [n]
  const std::uint8_t* codes = nullptr;       ///< [n, pieces]
  std::int64_t first_position = 0;           ///< of row 0, if positions are null
  const std::uint32_t* positions = nullptr;  ///< [n]
};

/// Of the i longest lists together.
using pages_of_lists = std::array<std::int64_t, core::kLongestLists + 1>;

class ivf_pq_store {
 public:
  /// @throws out_of_memory.
  ivf_pq_store(core::backend& backend, void* stream, const core::ivf_pq_shape& shape);

  std::int64_t rows() const noexcept { return rows_; }
  std::int64_t longest() const noexcept { return longest_; }
  std::span<const std::uint32_t> sizes() const noexcept { return now_.sizes; }
  std::int64_t bytes() const noexcept;
  /// Without kept rows and ids.
  core::ivf_pq_lists lists() const noexcept;

  /// Pages for `max_rows` rows, however they spread over the lists.
  void reserve(void* stream, std::int64_t max_rows);
  /// Copies rows in places [first, first + n) of the sequence of all lists to host memory.
  void read(void* stream, std::int64_t first, std::int64_t n, std::uint8_t* codes, std::uint32_t* positions) const;
  /// Drops all rows; memory stays.
  void clear(void* stream);

  /// Rows that are added but do not count before `commit`, and vanish without it. One at a time.
  class addition {
   public:
    explicit addition(ivf_pq_store& store);
    addition(const addition&) = delete;
    addition& operator=(const addition&) = delete;

    void write(void* stream, const core::ivf_pq_model& model, const encoded_rows& rows);
    /// Everything that can fail of a commit. Call it after the last `write`.
    void prepare_commit(void* stream);
    void commit() noexcept;

   private:
    struct round;
    std::vector<std::uint32_t> take_pages(void* stream, std::int64_t count);
    void plan(void* stream, round& now);
    void move_last_pages(void* stream, const core::ivf_pq_model& model, const round& now);
    core::ivf_pq_lists lists_of(const device_memory& table, const device_memory& first,
                                const device_memory& sizes) const noexcept;

    ivf_pq_store& store_;
    std::int64_t pages_used_;
    std::size_t free_left_;            ///< of the store's free pages, the first ones
    std::vector<std::uint32_t> left_;  ///< pages whose rows have moved
    std::int64_t added_ = 0;
    std::int64_t longest_ = 0;
    pages_of_lists longest_pages_;
  };

 private:
  device_memory allocate(std::int64_t bytes) const;
  /// Into memory that grows as it must.
  void upload(void* stream, device_memory& to, const void* from, std::int64_t bytes) const;
  void grow_pages(void* stream, std::int64_t used, std::int64_t needed);
  void move_pages(void* stream, std::int64_t used, std::int64_t capacity);

  core::backend& backend_;
  core::ivf_pq_shape shape_;
  std::int64_t page_bytes_;
  device_memory pages_;
  device_memory largest_;        ///< of an addition that failed, too: a bound stays one
  std::int64_t capacity_ = 0;    ///< pages that there is memory for
  std::int64_t pages_used_ = 0;  ///< from there on pages were never used
  std::vector<std::uint32_t> free_;
  list_directory now_;
  list_directory next_;  ///< of an addition
  std::int64_t rows_ = 0;
  std::int64_t longest_ = 0;
  pages_of_lists longest_pages_{};
};

}  // namespace shortlist::index
