// The lists of an IVF-PQ index.
#include "index/ivf_pq_store.hpp"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <numeric>
#include <utility>

#include "core/message.hpp"
#include "shortlist/error.hpp"

namespace shortlist::index {
namespace {

constexpr std::int64_t kNumberBytes = sizeof(std::uint32_t);
// Rows of last pages that move at once: some 100 MB of temporary arrays.
constexpr std::int64_t kMoveRows = std::int64_t{1} << 20;

constexpr std::int64_t pages_for(std::int64_t rows) { return (rows + core::kPageRows - 1) / core::kPageRows; }
constexpr std::uint32_t rows_of_last_page(std::uint32_t size) {
  return size % static_cast<std::uint32_t>(core::kPageRows);
}

template <class T>
std::int64_t bytes_of(const std::vector<T>& values) {
  return static_cast<std::int64_t>(values.size() * sizeof(T));
}

pages_of_lists longest_pages_of(const std::vector<std::uint32_t>& sizes) {
  std::vector<std::uint32_t> longest(std::min(sizes.size(), static_cast<std::size_t>(core::kLongestLists)));
  std::partial_sort_copy(sizes.begin(), sizes.end(), longest.begin(), longest.end(), std::greater<>());
  pages_of_lists pages{};
  for (std::size_t i = 0; i < static_cast<std::size_t>(core::kLongestLists); ++i)
    pages[i + 1] = pages[i] + (i < longest.size() ? pages_for(longest[i]) : 0);
  return pages;
}

std::int64_t bytes_of(const list_directory& directory) {
  return directory.device_sizes.bytes() + directory.device_first.bytes() + directory.device_table.bytes();
}

}  // namespace

ivf_pq_store::ivf_pq_store(core::backend& backend, void* stream, const core::ivf_pq_shape& shape)
    : backend_(backend),
      shape_(shape),
      page_bytes_(backend.ivf_pq().page_bytes(shape)),
      largest_(allocate(sizeof(float))) {
  const auto lists = static_cast<std::size_t>(shape.nlist);
  now_.sizes.resize(lists);
  now_.first.resize(lists + 1);
  for (list_directory* one : {&now_, &next_}) {
    one->device_sizes = allocate(shape.nlist * kNumberBytes);
    one->device_first = allocate((shape.nlist + 1) * kNumberBytes);
    one->device_table = allocate(kNumberBytes);  // never null
  }
  clear(stream);
}

void ivf_pq_store::clear(void* stream) {
  backend_.zero(stream, largest_.as<void>(), largest_.bytes());
  backend_.zero(stream, now_.device_sizes.as<void>(), shape_.nlist * kNumberBytes);
  backend_.zero(stream, now_.device_first.as<void>(), (shape_.nlist + 1) * kNumberBytes);
  backend_.synchronize(stream);
  std::fill(now_.sizes.begin(), now_.sizes.end(), 0u);
  std::fill(now_.first.begin(), now_.first.end(), 0u);
  now_.table.clear();
  free_.clear();
  pages_used_ = rows_ = longest_ = 0;
  longest_pages_.fill(0);
}

std::int64_t ivf_pq_store::bytes() const noexcept {
  return pages_.bytes() + largest_.bytes() + bytes_of(now_) + bytes_of(next_);
}

core::ivf_pq_lists ivf_pq_store::lists() const noexcept {
  return {.pages = pages_.as<std::byte>(),
          .table = now_.device_table.as<const std::uint32_t>(),
          .first = now_.device_first.as<const std::uint32_t>(),
          .sizes = now_.device_sizes.as<const std::uint32_t>(),
          .largest = largest_.as<float>(),
          .rows = rows_,
          .longest = longest_,
          .longest_pages = longest_pages_.data(),
          .kept = {}};
}

device_memory ivf_pq_store::allocate(std::int64_t bytes) const {
  return device_memory(backend_, backend_.allocate(bytes), bytes);
}

void ivf_pq_store::upload(void* stream, device_memory& to, const void* from, std::int64_t bytes) const {
  if (bytes == 0) return;
  // Half as much again, so that a table that grows with every addition is rarely allocated.
  if (bytes > to.bytes()) to = allocate(bytes + bytes / 2);
  backend_.copy_rows(stream, core::copy_kind::host_to_device, to.as<void>(), bytes, from, bytes, bytes, 1);
}

void ivf_pq_store::move_pages(void* stream, std::int64_t used, std::int64_t capacity) {
  device_memory larger = allocate(capacity * page_bytes_);
  if (used > 0) {
    backend_.copy_rows(stream, core::copy_kind::device_to_device, larger.as<void>(), page_bytes_, pages_.as<void>(),
                       page_bytes_, page_bytes_, used);
  }
  backend_.synchronize(stream);
  pages_ = std::move(larger);
  capacity_ = capacity;
}

void ivf_pq_store::grow_pages(void* stream, std::int64_t used, std::int64_t needed) {
  if (needed <= capacity_) return;
  const std::int64_t wanted = std::max(needed, capacity_ + capacity_ / 2);
  if (wanted == needed) return move_pages(stream, used, needed);
  try {
    move_pages(stream, used, wanted);
  } catch (const out_of_memory&) {
    move_pages(stream, used, needed);
  }
}

void ivf_pq_store::reserve(void* stream, std::int64_t max_rows) {
  // A list's last page may have room, and may have to move: two pages a list beyond those that are full.
  const std::int64_t needed = max_rows / core::kPageRows + 2 * shape_.nlist;
  if (needed > capacity_) move_pages(stream, pages_used_, needed);
}

void ivf_pq_store::read(void* stream, std::int64_t first, std::int64_t n, std::uint8_t* codes,
                        std::uint32_t* positions) const {
  if (n == 0) return;
  std::vector<std::int64_t> starts(now_.first.size());
  std::inclusive_scan(now_.sizes.begin(), now_.sizes.end(), starts.begin() + 1, std::plus<>(), std::int64_t{0});
  device_memory on_device = allocate(bytes_of(starts));
  const device_memory read_codes = allocate(n * shape_.pieces);
  const device_memory read_positions = allocate(n * kNumberBytes);
  upload(stream, on_device, starts.data(), bytes_of(starts));
  backend_.ivf_pq().read_rows(stream, shape_, lists(), on_device.as<const std::int64_t>(), first, n,
                              read_codes.as<std::uint8_t>(), read_positions.as<std::uint32_t>());
  const auto download = [&](void* to, const device_memory& from) {
    backend_.copy_rows(stream, core::copy_kind::device_to_host, to, from.bytes(), from.as<void>(), from.bytes(),
                       from.bytes(), 1);
  };
  download(codes, read_codes);
  download(positions, read_positions);
}

/// What one `write` does to the directory.
struct ivf_pq_store::addition::round {
  std::vector<std::uint32_t> counts;     ///< [nlist] rows that come
  std::vector<std::int64_t> moved;       ///< lists whose last page moves
  std::vector<std::uint32_t> new_first;  ///< [nlist + 1]
  std::vector<std::uint32_t> new_table;
};

ivf_pq_store::addition::addition(ivf_pq_store& store)
    : store_(store),
      pages_used_(store.pages_used_),
      free_left_(store.free_.size()),
      longest_(store.longest_),
      longest_pages_(store.longest_pages_) {
  store_.next_.sizes = store_.now_.sizes;
  store_.next_.first = store_.now_.first;
  store_.next_.table = store_.now_.table;
}

/// Numbers of pages that are nobody's, marked as empty.
std::vector<std::uint32_t> ivf_pq_store::addition::take_pages(void* stream, std::int64_t count) {
  const std::int64_t recycled = std::min(count, static_cast<std::int64_t>(free_left_));
  const std::int64_t fresh = count - recycled;
  store_.grow_pages(stream, pages_used_, pages_used_ + fresh);
  const auto free_end = store_.free_.begin() + static_cast<std::ptrdiff_t>(free_left_);
  std::vector<std::uint32_t> taken(free_end - static_cast<std::ptrdiff_t>(recycled), free_end);
  taken.resize(static_cast<std::size_t>(count));
  std::iota(taken.begin() + static_cast<std::ptrdiff_t>(recycled), taken.end(),
            static_cast<std::uint32_t>(pages_used_));
  free_left_ -= static_cast<std::size_t>(recycled);
  pages_used_ += fresh;

  std::sort(taken.begin(), taken.end());
  core::ivf_pq_ops& ops = store_.backend_.ivf_pq();
  for (std::size_t begin = 0; begin < taken.size();) {  // runs of neighbours
    std::size_t end = begin + 1;
    while (end < taken.size() && taken[end] == taken[end - 1] + 1) ++end;
    ops.clear_pages(stream, store_.shape_, store_.pages_.as<std::byte>(), taken[begin],
                    static_cast<std::int64_t>(end - begin));
    begin = end;
  }
  return taken;
}

void ivf_pq_store::addition::plan(void* stream, round& now) {
  const list_directory& before = store_.next_;
  const auto nlist = static_cast<std::size_t>(store_.shape_.nlist);
  const auto moves = [&](std::size_t list) {  // the last page has room, and rows that count
    const std::uint32_t size = before.sizes[list];
    return now.counts[list] > 0 && rows_of_last_page(size) > 0 && store_.now_.sizes[list] == size;
  };
  const auto kept_pages = [&](std::size_t list) {
    return before.pages_of(static_cast<std::int64_t>(list)) - (moves(list) ? 1 : 0);
  };
  const auto pages_after = [&](std::size_t list) {
    return pages_for(std::int64_t{before.sizes[list]} + now.counts[list]);
  };

  std::int64_t fresh = 0;
  now.new_first.resize(nlist + 1);
  for (std::size_t list = 0; list < nlist; ++list) {
    if (moves(list)) now.moved.push_back(static_cast<std::int64_t>(list));
    fresh += pages_after(list) - kept_pages(list);
    now.new_first[list + 1] = now.new_first[list] + static_cast<std::uint32_t>(pages_after(list));
  }
  left_.reserve(left_.size() + now.moved.size());
  const std::vector<std::uint32_t> taken = take_pages(stream, fresh);

  now.new_table.resize(now.new_first.back());
  auto next_taken = taken.begin();
  auto to = now.new_table.begin();
  for (std::size_t list = 0; list < nlist; ++list) {
    const auto from = before.table.begin() + before.first[list];
    const std::int64_t kept = kept_pages(list), added = pages_after(list) - kept;
    to = std::copy_n(from, kept, to);
    to = std::copy_n(next_taken, added, to);
    next_taken += added;
    if (moves(list)) left_.push_back(*(from + kept));
  }
}

void ivf_pq_store::addition::write(void* stream, const core::ivf_pq_model& model, const encoded_rows& rows) {
  if (rows.n == 0) return;
  core::backend& backend = store_.backend_;
  core::ivf_pq_ops& ops = backend.ivf_pq();
  list_directory& next = store_.next_;
  const std::int64_t nlist = store_.shape_.nlist;

  const device_memory counts = store_.allocate(nlist * kNumberBytes);
  const device_memory places = store_.allocate(rows.n * kNumberBytes);
  ops.place_rows(stream, rows.lists, rows.n, nlist, counts.as<std::uint32_t>(), places.as<std::uint32_t>());
  round now;
  now.counts.resize(static_cast<std::size_t>(nlist));
  backend.copy_rows(stream, core::copy_kind::device_to_host, now.counts.data(), counts.bytes(), counts.as<void>(),
                    counts.bytes(), counts.bytes(), 1);
  plan(stream, now);

  store_.upload(stream, next.device_sizes, next.sizes.data(), bytes_of(next.sizes));
  store_.upload(stream, next.device_first, now.new_first.data(), bytes_of(now.new_first));
  store_.upload(stream, next.device_table, now.new_table.data(), bytes_of(now.new_table));
  move_last_pages(stream, model, now);
  ops.write_rows(stream, model, lists_of(next.device_table, next.device_first, next.device_sizes),
                 next.device_sizes.as<const std::uint32_t>(), rows.lists, places.as<const std::uint32_t>(), rows.codes,
                 rows.n, rows.first_position, rows.positions);
  backend.synchronize(stream);

  next.first = std::move(now.new_first);
  next.table = std::move(now.new_table);
  for (std::size_t list = 0; list < next.sizes.size(); ++list) {
    next.sizes[list] += now.counts[list];
    longest_ = std::max<std::int64_t>(longest_, next.sizes[list]);
  }
  longest_pages_ = longest_pages_of(next.sizes);
  added_ += rows.n;
}

core::ivf_pq_lists ivf_pq_store::addition::lists_of(const device_memory& table, const device_memory& first,
                                                    const device_memory& sizes) const noexcept {
  core::ivf_pq_lists lists = store_.lists();
  lists.table = table.as<const std::uint32_t>();
  lists.first = first.as<const std::uint32_t>();
  lists.sizes = sizes.as<const std::uint32_t>();
  return lists;
}

/// Reads the rows of last pages as if their lists began there, and writes them to the pages in their place.
void ivf_pq_store::addition::move_last_pages(void* stream, const core::ivf_pq_model& model, const round& now) {
  const list_directory& before = store_.now_;
  const auto nlist = static_cast<std::size_t>(store_.shape_.nlist);
  const auto full_pages = [&](std::int64_t list) {
    return before.sizes[list] / static_cast<std::uint32_t>(core::kPageRows);
  };
  for (std::size_t begin = 0; begin < now.moved.size();) {
    std::vector<std::uint32_t> from(nlist + 1), to(nlist + 1), sizes(nlist), places;
    std::vector<std::int64_t> starts(nlist + 1), lists;
    for (; begin < now.moved.size() && static_cast<std::int64_t>(lists.size()) < kMoveRows; ++begin) {
      const std::int64_t list = now.moved[begin];
      from[list] = before.first[list] + full_pages(list);
      to[list] = now.new_first[list] + full_pages(list);
      sizes[list] = rows_of_last_page(before.sizes[list]);
      for (std::uint32_t place = 0; place < sizes[list]; ++place) {
        lists.push_back(list);
        places.push_back(place);
      }
    }
    std::inclusive_scan(sizes.begin(), sizes.end(), starts.begin() + 1, std::plus<>(), std::int64_t{0});

    core::backend& backend = store_.backend_;
    core::ivf_pq_ops& ops = backend.ivf_pq();
    const auto n = static_cast<std::int64_t>(lists.size());
    device_memory device_from, device_to, device_sizes, device_starts, device_lists, device_places;
    store_.upload(stream, device_from, from.data(), bytes_of(from));
    store_.upload(stream, device_to, to.data(), bytes_of(to));
    store_.upload(stream, device_sizes, sizes.data(), bytes_of(sizes));
    store_.upload(stream, device_starts, starts.data(), bytes_of(starts));
    store_.upload(stream, device_lists, lists.data(), bytes_of(lists));
    store_.upload(stream, device_places, places.data(), bytes_of(places));
    const device_memory codes = store_.allocate(n * store_.shape_.pieces);
    const device_memory positions = store_.allocate(n * kNumberBytes);
    const device_memory none_before = store_.allocate(store_.shape_.nlist * kNumberBytes);
    backend.zero(stream, none_before.as<void>(), none_before.bytes());

    ops.read_rows(stream, store_.shape_, lists_of(before.device_table, device_from, device_sizes),
                  device_starts.as<const std::int64_t>(), 0, n, codes.as<std::uint8_t>(),
                  positions.as<std::uint32_t>());
    ops.write_rows(stream, model, lists_of(store_.next_.device_table, device_to, device_sizes),
                   none_before.as<const std::uint32_t>(), device_lists.as<const std::int64_t>(),
                   device_places.as<const std::uint32_t>(), codes.as<const std::uint8_t>(), n, 0,
                   positions.as<const std::uint32_t>());
  }
}

void ivf_pq_store::addition::prepare_commit(void* stream) {
  if (added_ == 0) return;
  store_.free_.reserve(store_.free_.size() + left_.size());
  store_.upload(stream, store_.next_.device_sizes, store_.next_.sizes.data(), bytes_of(store_.next_.sizes));
  store_.backend_.synchronize(stream);
}

void ivf_pq_store::addition::commit() noexcept {
  if (added_ == 0) return;
  std::swap(store_.now_, store_.next_);
  store_.free_.resize(free_left_);
  store_.free_.insert(store_.free_.end(), left_.begin(), left_.end());
  store_.pages_used_ = pages_used_;
  store_.rows_ += added_;
  store_.longest_ = longest_;
  store_.longest_pages_ = longest_pages_;
}

}  // namespace shortlist::index
