// The rows of an IVF-PQ index: how lists grow, and what an addition that fails leaves behind.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "index/ivf_pq_codes.hpp"
#include "index/ivf_pq_model.hpp"
#include "index/ivf_pq_rows.hpp"
#include "index/ivf_pq_train.hpp"
#include "index_faulty_backend.hpp"
#include "io_files.hpp"
#include "ivf_pq_data.hpp"
#include "shortlist/ivf_pq_index.hpp"

namespace shortlist {
namespace {

using test::clustered_rows;
using test::expect_error;
using test::faulty_backend;

constexpr std::int64_t kDim = 10;
constexpr int kNever = std::numeric_limits<int>::max();

/// An index's parts on a backend that can fail.
struct parts {
  explicit parts(kept_rows kept = kept_rows::device)
      : options(index::completed({.dim = kDim, .metric = metric::cosine, .nlist = 5, .pq_bits = 4, .rows = kept})),
        model(backend, nullptr, options,
              index::train_ivf_pq(backend, nullptr, options, clustered_rows(100, kDim, 1).view(), {.iterations = 2})),
        rows(backend, nullptr, options) {}

  void append(const any_matrix_view& vectors, std::span<const std::int64_t> ids = {}) {
    rows.append(nullptr, core::copy_kind::host_to_device, model.view(), vectors, ids);
  }

  faulty_backend backend;
  ivf_pq_options options;
  index::ivf_pq_model model;
  index::ivf_pq_rows rows;
};

/// Everything of the rows that a search can see: list after list, codes and positions; kept rows; ids.
std::string contents(const parts& of) {
  const std::int64_t count = of.rows.count();
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(count * of.options.pq_dim));
  std::vector<std::uint32_t> positions(static_cast<std::size_t>(count));
  of.rows.codes.read(nullptr, 0, count, codes.data(), positions.data());
  std::string all;
  const auto append = [&](const auto& values) {
    all.append(reinterpret_cast<const char*>(std::data(values)), std::size(values) * sizeof(*std::data(values)));
  };
  append(codes);
  append(positions);
  append(of.rows.codes.sizes());
  append(of.rows.kept.ids().all());
  const core::ivf_pq_lists lists = of.rows.lists();
  append(std::span(lists.sizes, 5));
  append(std::span(lists.longest_pages, core::kLongestLists + 1));
  append(std::span(lists.ids, lists.ids ? static_cast<std::size_t>(count) : 0));
  append(std::span(static_cast<const char*>(lists.kept.rows),
                   static_cast<std::size_t>(lists.kept.count * lists.kept.row_stride_bytes)));
  return all;
}

/// Behind a list's last row its page is empty, which backends count on.
void expect_clean_pages(const parts& of, const std::string& what) {
  const core::ivf_pq_lists lists = of.rows.lists();
  const std::int64_t page_bytes = of.rows.backend.ivf_pq().page_bytes(of.model.shape());
  std::set<std::uint32_t> used;
  std::size_t pages = 0;
  for (std::int64_t list = 0; list < 5; ++list) {
    for (std::uint32_t at = lists.first[list]; at < lists.first[list + 1]; ++at, ++pages) used.insert(lists.table[at]);
    const std::uint32_t size = lists.sizes[list];
    EXPECT_EQ(lists.first[list + 1] - lists.first[list], (size + 31) / 32) << what;
    if (size % 32 == 0) continue;
    // Read as if the list were longer: places behind the last row hold no position.
    std::vector<std::uint32_t> longer(5);
    longer[static_cast<std::size_t>(list)] = (size + 31) / 32 * 32;
    std::vector<std::int64_t> starts(6);
    std::inclusive_scan(longer.begin(), longer.end(), starts.begin() + 1, std::plus<>(), std::int64_t{0});
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(starts.back() * of.options.pq_dim));
    std::vector<std::uint32_t> positions(static_cast<std::size_t>(starts.back()));
    core::backend_of(device::cpu())
        .ivf_pq()
        .read_rows(nullptr, of.model.shape(), lists, starts.data(), 0, starts.back(), codes.data(), positions.data());
    for (std::size_t place = 0; place < positions.size(); ++place) {
      EXPECT_EQ(positions[place] == core::kNoPosition, place >= size)
          << what << ", list " << list << ", place " << place;
    }
  }
  std::vector<std::int64_t> longest(5);
  for (std::size_t list = 0; list < 5; ++list) longest[list] = lists.first[list + 1] - lists.first[list];
  std::ranges::sort(longest, std::greater<>());
  for (std::size_t i = 0; i <= core::kLongestLists; ++i)
    EXPECT_EQ(lists.longest_pages[i],
              std::accumulate(longest.begin(), longest.begin() + std::min<std::ptrdiff_t>(i, 5), std::int64_t{0}))
        << what << ", " << i << " lists";
  EXPECT_EQ(used.size(), pages) << what << ": a page belongs to one list";
  EXPECT_GT(page_bytes, 0);
}

TEST(ivf_pq_rows, an_append_that_fails_at_any_step_changes_nothing) {
  const clustered_rows rows(400, kDim, 2);
  const std::vector<std::int64_t> ids = {900, 800, 901, 902, 903, 904, 905, 906, 907, 908, 909, 910};
  for (const bool with_ids : {false, true}) {
    for (const std::int64_t before : {0, 150}) {
      parts troubled, untroubled;
      const auto begin = [&](parts& of) {
        if (before > 0) of.append(rows.part(0, 100));
        if (before > 0) of.append(rows.part(100, 50));
      };
      const auto append_to = [&](parts& of) {
        of.append(rows.part(200, 12), with_ids ? std::span(ids) : std::span<const std::int64_t>());
      };
      begin(troubled);
      begin(untroubled);
      append_to(untroubled);
      const std::string expected = contents(troubled);
      int failures = 0;
      for (;; ++failures) {
        troubled.backend.calls_before_failure = failures;
        try {
          append_to(troubled);
          break;
        } catch (const out_of_memory&) {
        }
        troubled.backend.calls_before_failure = kNever;
        ASSERT_EQ(troubled.rows.count(), before) << "step " << failures;
        ASSERT_EQ(contents(troubled), expected) << "step " << failures;
        expect_clean_pages(troubled, "step " + std::to_string(failures));
      }
      troubled.backend.calls_before_failure = kNever;
      EXPECT_GE(failures, 20) << "each op, allocation and copy";
      EXPECT_EQ(contents(troubled), contents(untroubled));
      expect_clean_pages(troubled, "at the end");
    }
  }
}

TEST(ivf_pq_rows, a_failure_leaves_no_memory_behind) {
  faulty_backend* backend = nullptr;
  const clustered_rows rows(100, kDim, 3);
  parts of;
  backend = &of.backend;
  of.append(rows.part(0, 60));
  for (int step = 0; step < 60; ++step) {
    backend->calls_before_failure = step;
    const int live = backend->live_allocations;
    try {
      of.append(rows.part(60, 7));
      break;
    } catch (const out_of_memory&) {
      ASSERT_LE(backend->live_allocations, live + 1) << "step " << step << ": a grown array may be new";
    }
  }
  backend->calls_before_failure = kNever;
}

TEST(ivf_pq_rows, lists_grow_page_by_page_and_pages_are_used_again) {
  parts of;
  const clustered_rows rows(1000, kDim, 4);
  for (std::int64_t row = 0; row < 1000; ++row) of.append(rows.part(row, 1));
  expect_clean_pages(of, "after a thousand additions");
  parts at_once;
  at_once.append(rows.view());
  EXPECT_EQ(contents(of), contents(at_once));
  const std::int64_t page_bytes = of.backend.ivf_pq().page_bytes(of.model.shape());
  EXPECT_LE(of.rows.codes.bytes(), 2 * (1000 / 32 + 2 * 5) * page_bytes) << "no page is lost";
}

TEST(ivf_pq_rows, grows_to_just_what_is_needed_where_memory_is_short) {
  parts of(kept_rows::none);
  const clustered_rows rows(4000, kDim, 5);
  of.append(rows.part(0, 3200));
  const std::int64_t page_bytes = of.backend.ivf_pq().page_bytes(of.model.shape());
  of.backend.largest_allocation = (3600 / 32 + 10) * page_bytes;
  of.append(rows.part(3200, 300));
  EXPECT_EQ(of.rows.count(), 3500);
  expect_error<out_of_memory>([&] { of.append(rows.part(0, 2000)); }, "larger than");
  EXPECT_EQ(of.rows.count(), 3500);
  of.backend.largest_allocation = std::numeric_limits<std::int64_t>::max();
  of.append(rows.part(3500, 500));
  expect_clean_pages(of, "at the end");
}

TEST(ivf_pq_rows, a_reservation_is_enough_for_its_rows) {
  parts of;
  of.rows.reserve(nullptr, 2000);
  const std::int64_t page_bytes = of.backend.ivf_pq().page_bytes(of.model.shape());
  of.backend.largest_allocation = 2000 / 32 * page_bytes;  // less than all pages need
  const clustered_rows rows(2000, kDim, 6);
  for (std::int64_t first = 0; first < 2000; first += 80) of.append(rows.part(first, 80));
  EXPECT_EQ(of.rows.count(), 2000);
}

TEST(ivf_pq_codes, are_packed_and_unpacked) {
  for (int bits = 4; bits <= 8; ++bits) {
    for (const std::int64_t pieces : {1, 2, 3, 8, 13}) {
      const core::ivf_pq_shape shape = {.dim = pieces, .nlist = 1, .pieces = pieces, .piece_dim = 1, .bits = bits};
      std::vector<std::uint8_t> codes(static_cast<std::size_t>(5 * pieces)), back(codes.size());
      for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint8_t>(i * 37 % (1u << bits));
      std::vector<std::uint8_t> packed(static_cast<std::size_t>(5 * index::packed_bytes(shape)));
      index::pack_codes(shape, codes.data(), 5, packed.data());
      ASSERT_TRUE(index::unpack_codes(shape, packed.data(), 5, back.data()));
      EXPECT_EQ(back, codes) << bits << " bits, " << pieces << " pieces";
      const bool has_padding = pieces * bits % 8 != 0;
      packed.back() |= 0x80;
      EXPECT_EQ(index::unpack_codes(shape, packed.data(), 5, back.data()), !has_padding);
    }
  }
  const core::ivf_pq_shape three = {.dim = 3, .nlist = 1, .pieces = 3, .piece_dim = 1, .bits = 5};
  const std::uint8_t codes[] = {1, 2, 31};
  std::uint8_t packed[2] = {};
  index::pack_codes(three, codes, 1, packed);
  EXPECT_EQ(packed[0], 0x41) << "the lowest bits first";
  EXPECT_EQ(packed[1], 0x7C);
}

}  // namespace
}  // namespace shortlist
