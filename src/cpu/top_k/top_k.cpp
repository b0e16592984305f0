// Row-wise top k on the CPU.
//
// Why it is fast: a row is read once and becomes keys that stay in the first cache; the border of its k best is found
// by counting keys above a threshold, a handful of passes of one comparison a vector, and the best columns are written
// by compressing. A long row with few best is filtered instead by a threshold that rises: what falls below it is never
// looked at again. What a bisection selects follows from a row's extremes and the least of its k best, without a step
// of it counted; only few steps are counted, where that is less than finding the border.
// Steps of a row: gather (only if its values are not neighbours) -> keys -> border -> columns -> values, indices, mask.
// Limit: bytes of the matrix over the read bandwidth; measured share: docs/benchmarks.md.
#include "cpu/top_k/top_k.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <span>
#include <vector>

#include "cpu/parallel.hpp"
#include "cpu/rows.hpp"
#include "cpu/top_k/border.hpp"
#include "cpu/top_k/kernels.hpp"

namespace shortlist::cpu {
namespace {

constexpr std::int64_t kChunk = 8192;  // values of a filtered row at a time: their keys take half a first cache
constexpr std::int64_t kFilterCols = 2 * kChunk;             // rows from here on are filtered,
constexpr std::int64_t kFilterShare = 128;                   // if at most one value in so many is among the best
constexpr std::int64_t kPartCols = 4 * kChunk;               // of a row that workers share; a shorter part does not pay
constexpr std::int64_t kKeptBytes = std::int64_t{32} << 20;  // of scratch that a thread keeps between calls
constexpr int kCountedSteps = 5;                             // of a bisection; more take longer than the border
constexpr std::int64_t kRankedByCounting = 512;              // best columns are; more are sorted
constexpr std::int64_t kSortShare =
    512;  // fewer best columns than one in so many are sorted, others marked and scanned

/// One row of the matrix: values at data + i * col_stride elements, i in [0, count), the columns from `begin` on.
struct row_slice {
  const std::byte* data;
  std::int64_t count;
  std::int64_t begin;
};

/// A worker's memory. It only grows; nothing in it outlives a row.
class scratch {
 public:
  std::byte* gathered(std::int64_t bytes) { return grown(gathered_, bytes); }
  row_order_key* keys(std::int64_t count) { return grown(keys_, count + kKeySlack); }
  row_order_key* room(int which, std::int64_t count) {
    return grown(room_[static_cast<std::size_t>(which)], count + kKeySlack);
  }
  std::uint32_t* columns(std::int64_t count) { return grown(columns_, count + kKeySlack); }
  std::uint32_t* ranks(std::int64_t count) { return grown(ranks_, count); }
  std::uint32_t* sorted(std::int64_t count) { return grown(sorted_, count); }
  std::uint64_t* candidates(std::int64_t count) { return grown(candidates_, count); }
  std::uint64_t* marks(std::int64_t words) { return grown(marks_, words); }

  void forget_if_large() {
    const auto bytes = static_cast<std::int64_t>(
        gathered_.capacity() + (keys_.capacity() + room_[0].capacity() + room_[1].capacity()) * sizeof(row_order_key) +
        columns_.capacity() * sizeof(std::uint32_t) +
        (candidates_.capacity() + marks_.capacity()) * sizeof(std::uint64_t));
    if (bytes > kKeptBytes) *this = scratch();
  }

 private:
  template <class T>
  static T* grown(std::vector<T>& memory, std::int64_t count) {
    if (static_cast<std::int64_t>(memory.size()) < count) memory.resize(static_cast<std::size_t>(count));
    return memory.data();
  }

  std::vector<std::byte> gathered_;
  std::vector<row_order_key> keys_;
  std::array<std::vector<row_order_key>, 2> room_;
  std::vector<std::uint32_t> columns_;
  std::vector<std::uint32_t> ranks_;
  std::vector<std::uint32_t> sorted_;
  std::vector<std::uint64_t> candidates_;
  std::vector<std::uint64_t> marks_;
};

/// The request, and what all its rows share.
struct job {
  const core::top_k_request& request;
  const top_k_kernels& kernels;
  std::int64_t value_bytes;

  const top_k_options& options() const { return request.options; }
  std::int64_t k() const { return request.options.k; }
  bool stops_early() const { return request.options.eps || request.options.max_iter; }

  row_slice row(std::int64_t index) const {
    const value_matrix& matrix = request.matrix;
    const std::int64_t begin = request.ragged.begins ? request.ragged.begins[index] : 0;
    const std::int64_t end = request.ragged.ends ? request.ragged.ends[index] : matrix.cols;
    const auto* first = static_cast<const std::byte*>(matrix.data);
    return {first + (index * matrix.row_stride + begin * matrix.col_stride) * value_bytes, end - begin, begin};
  }
};

template <class T>
void gather_values(const std::byte* from, std::int64_t stride, std::int64_t count, std::byte* to) {
  const auto* values = reinterpret_cast<const T*>(from);
  auto* out = reinterpret_cast<T*>(to);
  for (std::int64_t i = 0; i < count; ++i) out[i] = values[i * stride];
}

/// `count` values of a row from `first` on, as neighbours.
const void* neighbours(const job& work, const row_slice& row, std::int64_t first, std::int64_t count, scratch& memory) {
  const std::int64_t stride = work.request.matrix.col_stride;
  const std::byte* from = row.data + first * stride * work.value_bytes;
  if (stride == 1) return from;
  std::byte* to = memory.gathered(count * work.value_bytes);
  if (work.value_bytes == 2) {
    gather_values<std::uint16_t>(from, stride, count, to);
  } else {
    gather_values<std::uint32_t>(from, stride, count, to);
  }
  return to;
}

row_summary make_keys(const job& work, const row_slice& row, std::int64_t first, std::int64_t count, scratch& memory,
                      row_order_key* keys) {
  const auto type = static_cast<std::size_t>(work.request.matrix.type);
  return work.kernels.make_keys[type](neighbours(work, row, first, count, memory), count, work.options().order, keys);
}

key_range joined(key_range a, key_range b) { return {std::min(a.least, b.least), std::max(a.most, b.most)}; }

/// Keeps the k best of `count` candidates in front, in no order, and returns how many there are.
std::int64_t prune(std::uint64_t* candidates, std::int64_t count, std::int64_t k) {
  if (count <= k) return count;
  std::nth_element(candidates, candidates + k - 1, candidates + count, std::greater<>());
  return k;
}

/// The key that a later column must reach to be among the k best of a row whose k best so far are `candidates`: one
/// that ties with the least of them loses against it.
row_order_key key_to_beat(const std::uint64_t* candidates, std::int64_t k) {
  return key_part(*std::min_element(candidates, candidates + k)) + 1;  // the largest key is far from the last number
}

/// The min(k, count) best of the columns [first, first + count) of a row, in no order, at the front of `candidates`,
/// which has room for 2 k + kChunk; returns how many. @param range gets the part's.
std::int64_t filter_part(const job& work, const row_slice& row, std::int64_t first, std::int64_t count, scratch& memory,
                         std::uint64_t* candidates, key_range& range) {
  const std::int64_t k = work.k();
  row_order_key* keys = memory.keys(kChunk);
  row_order_key from = kNanOrPadding;
  std::int64_t found = 0;
  border_guess guess(std::min(k, kChunk - 1), kChunk);
  for (std::int64_t done = 0; done < count; done += kChunk) {
    const std::int64_t here = std::min(kChunk, count - done);
    const row_summary summary = make_keys(work, row, first + done, here, memory, keys);
    range = joined(range, summary);
    if (summary.most < from) continue;
    if (found == 0 && here > k) {  // the first chunk's own border spares most of its candidates
      const row_keys row_of_chunk{keys, here, summary, {memory.room(0, here), memory.room(1, here)}};
      const row_border border = find_border(work.kernels, row_of_chunk, k, guess);
      from = border.ties > 0 ? border.key : border.key + 1;
    }
    found += work.kernels.collect(keys, here, from, static_cast<std::uint32_t>(first + done), candidates + found);
    if (found >= 2 * k) found = prune(candidates, found, k);
    if (found == k) from = key_to_beat(candidates, k);
  }
  return prune(candidates, found, k);
}

std::int64_t candidate_room(std::int64_t k) { return 2 * k + kChunk; }

/// What a bisection selects of a row, most of it from the row's k best.
class bisected_candidates {
 public:
  /// @param candidates the k best, of which those that are sure move to the front. @pre the row is finite and has more
  /// than k columns.
  bisected_candidates(const job& work, const row_slice& row, key_range range, std::uint64_t* candidates)
      : work_(work),
        row_(row),
        found_(follow_bisection(range, key_part(*std::min_element(candidates, candidates + work.k())), work.options())),
        sure_(std::partition(candidates, candidates + work.k(), [&](std::uint64_t c) { return is_sure(c); }) -
              candidates) {}

  std::int64_t sure() const { return sure_; }
  /// The first of the columns [first, end) that fill up, as many as are missing; returns how many. @param to has room
  /// for these and kChunk more.
  std::int64_t fill_from(std::int64_t first, std::int64_t end, scratch& memory, std::uint64_t* to) const {
    const std::int64_t missing = work_.k() - sure_;
    row_order_key* keys = memory.keys(kChunk);
    std::int64_t filled = 0;
    for (; filled < missing && first < end; first += kChunk) {
      const std::int64_t here = std::min(kChunk, end - first);
      make_keys(work_, row_, first, here, memory, keys);
      std::uint64_t* const more = to + filled;
      const std::int64_t reached =
          work_.kernels.collect(keys, here, found_.fill_from, static_cast<std::uint32_t>(first), more);
      filled = std::remove_if(more, more + reached, [&](std::uint64_t c) { return is_sure(c); }) - to;
    }
    return std::min(filled, missing);
  }

 private:
  bool is_sure(std::uint64_t candidate) const {
    return !work_.options().max_iter && key_part(candidate) >= found_.from;
  }

  const job& work_;
  const row_slice& row_;
  bisected found_;
  std::int64_t sure_;
};

/// The columns of `count` candidates, ascending.
std::uint32_t* columns_of(const std::uint64_t* candidates, std::int64_t count, std::int64_t cols, scratch& memory) {
  std::uint32_t* columns = memory.columns(count);
  if (count < cols / kSortShare) {
    for (std::int64_t i = 0; i < count; ++i) columns[i] = column_part(candidates[i]);
    std::sort(columns, columns + count);
    return columns;
  }
  const std::int64_t words = (cols + 63) / 64;
  std::uint64_t* marks = memory.marks(words);
  std::fill_n(marks, words, 0);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t column = column_part(candidates[i]);
    marks[column / 64] |= std::uint64_t{1} << (column % 64);
  }
  std::int64_t written = 0;
  for (std::int64_t word = 0; word < words; ++word) {
    for (std::uint64_t left = marks[word]; left != 0; left &= left - 1) {
      columns[written++] = static_cast<std::uint32_t>(word * 64 + std::countr_zero(left));
    }
  }
  return columns;
}

template <class T>
void write_values(const row_slice& row, std::int64_t stride, std::span<const std::uint32_t> columns, T pad,
                  std::int64_t k, void* out) {
  const auto* values = reinterpret_cast<const T*>(row.data);
  auto* to = static_cast<T*>(out);
  for (const std::uint32_t column : columns) *to++ = values[column * stride];
  std::fill_n(to, k - static_cast<std::int64_t>(columns.size()), pad);
}

template <class T>
void write_indices(const row_slice& row, std::span<const std::uint32_t> columns, std::int64_t k, void* out) {
  auto* to = static_cast<T*>(out);
  for (const std::uint32_t column : columns) {
    *to++ = static_cast<T>(row.begin + static_cast<std::int64_t>(column));
  }
  std::fill_n(to, k - static_cast<std::int64_t>(columns.size()), T{-1});
}

/// The bits of what pads a short row's values: -inf, or +inf where the smallest are best.
std::uint64_t padding_bits(value_type type, order best) {
  const bool positive = best == order::smallest;
  switch (type) {
    case value_type::f32: return positive ? 0x7F800000u : 0xFF800000u;
    case value_type::f16: return positive ? 0x7C00u : 0xFC00u;
    case value_type::bf16: return positive ? 0x7F80u : 0xFF80u;
    case value_type::f64: return positive ? 0x7FF0000000000000u : 0xFFF0000000000000u;
  }
  return 0;
}

/// Writes a row's result from the columns (counted from the row's begin) in the order in which they are returned.
void write_row(const job& work, std::int64_t index, const row_slice& row, std::span<const std::uint32_t> columns) {
  const top_k_output& out = work.request.out;
  const value_matrix& matrix = work.request.matrix;
  const std::int64_t k = work.k();
  if (out.mask) {
    std::uint8_t* mask = out.mask + index * matrix.cols;
    std::memset(mask, 0, static_cast<std::size_t>(matrix.cols));
    for (const std::uint32_t column : columns) mask[row.begin + column] = 1;
    return;
  }
  if (out.values) {
    const std::uint64_t pad = padding_bits(matrix.type, work.options().order);
    auto* to = static_cast<std::byte*>(out.values) + index * k * work.value_bytes;
    switch (work.value_bytes) {
      case 2: write_values(row, matrix.col_stride, columns, static_cast<std::uint16_t>(pad), k, to); break;
      case 4: write_values(row, matrix.col_stride, columns, static_cast<std::uint32_t>(pad), k, to); break;
      default: write_values(row, matrix.col_stride, columns, pad, k, to); break;
    }
  }
  if (!out.indices) return;
  if (out.indices_as == index_type::i32) {
    write_indices<std::int32_t>(row, columns, k, static_cast<std::int32_t*>(out.indices) + index * k);
  } else {
    write_indices<std::int64_t>(row, columns, k, static_cast<std::int64_t*>(out.indices) + index * k);
  }
}

/// Candidates of a row, at most k, in no order: written as the options ask.
void write_candidates(const job& work, std::int64_t index, const row_slice& row, std::uint64_t* candidates,
                      std::int64_t count, scratch& memory) {
  if (!work.options().sorted || work.request.out.mask) {
    write_row(work, index, row, {columns_of(candidates, count, row.count, memory), static_cast<std::size_t>(count)});
    return;
  }
  std::sort(candidates, candidates + count, std::greater<>());
  std::uint32_t* columns = memory.columns(count);
  for (std::int64_t i = 0; i < count; ++i) columns[i] = column_part(candidates[i]);
  write_row(work, index, row, {columns, static_cast<std::size_t>(count)});
}

/// The columns that a bisection selects, ascending, at the front of `columns`; returns how many.
std::int64_t bisected_columns(const top_k_kernels& kernels, const row_keys& row, std::int64_t k, const bisected& found,
                              std::uint32_t* columns) {
  const std::int64_t reached = kernels.best_columns(row.keys, row.count, {found.fill_from - 1, 0}, columns);
  const std::int64_t sure =
      found.from == found.fill_from || reached <= k ? reached : kernels.count_from(row.keys, row.count, found.from);
  if (sure == reached) return std::min(reached, k);
  std::int64_t fill = std::max<std::int64_t>(k - sure, 0);
  std::int64_t left = std::min(sure, k);
  std::int64_t kept = 0;
  for (std::int64_t i = 0; i < reached; ++i) {
    const bool is_sure = row.keys[columns[i]] >= found.from;
    std::int64_t& budget = is_sure ? left : fill;
    if (budget == 0) continue;
    --budget;
    columns[kept++] = columns[i];
  }
  return kept;
}

/// The same columns, best first.
std::uint32_t* best_first(const top_k_kernels& kernels, const row_keys& row, std::uint32_t* columns, std::int64_t count,
                          scratch& memory) {
  if (count > kRankedByCounting) {
    std::uint64_t* candidates = memory.candidates(count);
    for (std::int64_t i = 0; i < count; ++i) candidates[i] = order_and_column(row.keys[columns[i]], columns[i]);
    std::sort(candidates, candidates + count, std::greater<>());
    for (std::int64_t i = 0; i < count; ++i) columns[i] = column_part(candidates[i]);
    return columns;
  }
  row_order_key* keys = row.room[0];
  for (std::int64_t i = 0; i < count; ++i) keys[i] = row.keys[columns[i]];
  std::fill_n(keys + count, kKeySlack, kNanOrPadding);
  std::uint32_t* ranks = memory.ranks(count);
  kernels.rank(keys, count, ranks);
  std::uint32_t* sorted = memory.sorted(count);
  for (std::int64_t i = 0; i < count; ++i) sorted[ranks[i]] = columns[i];
  return sorted;
}

/// A row whose keys are all made: exact, or by a bisection.
void select_by_keys(const job& work, std::int64_t index, const row_slice& row, border_guess& guess, scratch& memory) {
  row_order_key* keys = memory.keys(row.count);
  const row_summary summary = make_keys(work, row, 0, row.count, memory, keys);
  const row_keys made{keys, row.count, summary, {memory.room(0, row.count), memory.room(1, row.count)}};
  std::uint32_t* columns = memory.columns(row.count);
  std::int64_t count = row.count;
  if (row.count <= work.k()) {
    for (std::int64_t i = 0; i < row.count; ++i) columns[i] = static_cast<std::uint32_t>(i);
  } else if (work.stops_early() && is_finite(summary)) {
    const auto follow = [&] {
      const row_border border = find_border(work.kernels, made, work.k(), guess);
      return follow_bisection(summary, last_of_best(work.kernels, made, border), work.options());
    };
    const bool few = work.options().max_iter.value_or(kCountedSteps + 1) <= kCountedSteps;
    const bisected found = few ? count_bisection(work.kernels, made, work.options()) : follow();
    count = bisected_columns(work.kernels, made, work.k(), found, columns);
  } else {
    const row_border border = find_border(work.kernels, made, work.k(), guess);
    if (work.request.out.mask && row.count == work.request.matrix.cols) {
      work.kernels.best_mask(keys, row.count, border, work.request.out.mask + index * row.count);
      return;
    }
    count = work.kernels.best_columns(keys, row.count, border, columns);
  }
  if (work.options().sorted && !work.request.out.mask) columns = best_first(work.kernels, made, columns, count, memory);
  write_row(work, index, row, {columns, static_cast<std::size_t>(count)});
}

/// fp64, by the plainest means: 64-bit keys and std::nth_element.
void select_doubles(const job& work, std::int64_t index, const row_slice& row, scratch& memory) {
  struct entry {
    std::uint64_t key;  // larger = better; NaN is 0
    std::uint32_t column;
    bool operator<(const entry& other) const { return key != other.key ? key > other.key : column < other.column; }
  };
  constexpr std::uint64_t kSign = std::uint64_t{1} << 63;
  const auto* values = reinterpret_cast<const double*>(row.data);
  std::vector<entry> entries(static_cast<std::size_t>(row.count));
  for (std::int64_t i = 0; i < row.count; ++i) {
    double value = values[i * work.request.matrix.col_stride];
    if (work.options().order == order::smallest) value = -value;
    const auto bits = std::bit_cast<std::uint64_t>(value + 0.0);
    const std::uint64_t key = value != value ? 0 : (bits & kSign) != 0 ? ~bits : (bits | kSign);
    entries[static_cast<std::size_t>(i)] = {key, static_cast<std::uint32_t>(i)};
  }
  const std::int64_t count = std::min(work.k(), row.count);
  if (count < row.count) std::nth_element(entries.begin(), entries.begin() + (count - 1), entries.end());
  entries.resize(static_cast<std::size_t>(count));
  if (work.options().sorted) {
    std::sort(entries.begin(), entries.end());
  } else {
    std::sort(entries.begin(), entries.end(), [](const entry& a, const entry& b) { return a.column < b.column; });
  }
  std::uint32_t* columns = memory.columns(count);
  std::transform(entries.begin(), entries.end(), columns, [](const entry& one) { return one.column; });
  write_row(work, index, row, {columns, static_cast<std::size_t>(count)});
}

void select_row(const job& work, std::int64_t index, border_guess& guess, scratch& memory) {
  const row_slice row = work.row(index);
  if (row.count == 0) {
    write_row(work, index, row, {});
  } else if (work.request.matrix.type == value_type::f64) {
    select_doubles(work, index, row, memory);
  } else if (row.count >= kFilterCols && work.k() <= row.count / kFilterShare) {
    std::uint64_t* candidates = memory.candidates(candidate_room(work.k()));
    key_range range;
    const std::int64_t count = filter_part(work, row, 0, row.count, memory, candidates, range);
    if (work.stops_early() && is_finite(range)) {
      const bisected_candidates chosen(work, row, range, candidates);
      chosen.fill_from(0, row.count, memory, candidates + chosen.sure());
    }
    write_candidates(work, index, row, candidates, count, memory);
  } else {
    select_by_keys(work, index, row, guess, memory);
  }
}

void top_k_of_whole_rows(const job& work) {
  const value_matrix& matrix = work.request.matrix;
  row_queue rows(matrix.rows, std::max<std::int64_t>(matrix.cols * work.value_bytes, 1));
  const double values = static_cast<double>(matrix.rows) * static_cast<double>(matrix.cols);
  for_each_slot(rows.slots(values), [&](int) {
    thread_scratch<scratch> memory;
    border_guess guess(std::min(work.k(), matrix.cols), matrix.cols);
    rows.drain([&](std::int64_t index) { select_row(work, index, guess, *memory); });
  });
}

/// A row that workers share: room for candidates of each, one behind the other.
struct split_row {
  row_slice row;
  std::int64_t parts;
  std::int64_t room;
  std::vector<std::uint64_t> candidates;

  split_row(const job& work, std::int64_t index)
      : row(work.row(index)),
        parts(std::clamp<std::int64_t>(row.count / kPartCols, 1, thread_count())),
        room(candidate_room(work.k())),
        candidates(static_cast<std::size_t>(parts * room)) {}

  /// Calls visit(part, first, end, memory, to) for the columns [first, end) of each part, by a worker each; it returns
  /// how many candidates it has written. Then they lie behind the first `before`, in the order of parts. @param before
  /// of the first part's, which stay. @returns how many there are.
  template <class Visit>
  std::int64_t gather(std::int64_t before, Visit visit) {
    std::vector<std::int64_t> counts(static_cast<std::size_t>(parts));
    for_each_slot(static_cast<int>(parts), [&](int part) {
      thread_scratch<scratch> memory;
      std::uint64_t* to = candidates.data() + (part == 0 ? before : part * room);
      counts[static_cast<std::size_t>(part)] =
          visit(part, row.count * part / parts, row.count * (part + 1) / parts, *memory, to);
    });
    std::int64_t count = before + counts[0];
    for (std::int64_t part = 1; part < parts; ++part) {
      const auto from = candidates.begin() + part * room;
      std::copy(from, from + counts[static_cast<std::size_t>(part)], candidates.begin() + count);
      count += counts[static_cast<std::size_t>(part)];
    }
    return count;
  }
};

/// One row by all workers: the best of every part, and then the best of those.
void top_k_of_split_row(const job& work, std::int64_t index) {
  split_row split(work, index);
  const row_slice& row = split.row;
  std::vector<key_range> ranges(static_cast<std::size_t>(split.parts));
  const auto filter = [&](int part, std::int64_t first, std::int64_t end, scratch& memory, std::uint64_t* to) {
    return filter_part(work, row, first, end - first, memory, to, ranges[static_cast<std::size_t>(part)]);
  };
  std::int64_t count = prune(split.candidates.data(), split.gather(0, filter), work.k());
  const key_range range = std::accumulate(ranges.begin(), ranges.end(), key_range{}, joined);
  if (work.stops_early() && row.count > work.k() && is_finite(range)) {
    const bisected_candidates chosen(work, row, range, split.candidates.data());
    const auto fill = [&](int, std::int64_t first, std::int64_t end, scratch& memory, std::uint64_t* to) {
      return chosen.fill_from(first, end, memory, to);
    };
    count = std::min(split.gather(chosen.sure(), fill), work.k());
  }
  thread_scratch<scratch> memory;
  write_candidates(work, index, row, split.candidates.data(), count, *memory);
}

}  // namespace

void top_k(core::top_k_algorithm algorithm, const core::top_k_request& request) {
  const default_float_environment environment;
  const job work{request, current_top_k_kernels(), size_bytes(request.matrix.type)};
  const bool splits = algorithm == core::top_k_algorithm::split_rows && request.matrix.type != value_type::f64;
  if (!splits) {
    top_k_of_whole_rows(work);
    return;
  }
  for (std::int64_t index = 0; index < request.matrix.rows; ++index) top_k_of_split_row(work, index);
}

}  // namespace shortlist::cpu
