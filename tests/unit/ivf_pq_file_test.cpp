// Files of IVF-PQ indexes: round trips, growing by segments, interrupted writes, forged content.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "io/safetensors.hpp"
#include "io_files.hpp"
#include "ivf_pq_data.hpp"
#include "shortlist/ivf_pq_index.hpp"
#include "shortlist/shortlist.hpp"

namespace shortlist {
namespace {

using test::clustered_rows;
using test::expect_error;
using test::read_bytes;
using test::temporary_folder;
using path = std::filesystem::path;

constexpr std::int64_t kDim = 11;
constexpr std::int64_t kRows = 500;

ivf_pq_options options_of(kept_rows kept) {
  return {.dim = kDim, .metric = metric::cosine, .nlist = 6, .pq_dim = 4, .pq_bits = 5, .rows = kept};
}

ivf_pq_index trained(const ivf_pq_options& options) {
  ivf_pq_index index(device::cpu(), options);
  index.train(clustered_rows(kRows, kDim, 1).view(), {.iterations = 2});
  return index;
}

ivf_pq_result answers(const ivf_pq_index& index) {
  const std::int64_t refine = index.options().rows == kept_rows::none ? 0 : 2;
  return index.search(clustered_rows(5, kDim, 2).view(), {.k = 40, .nprobe = 3, .refine_ratio = refine});
}

void expect_same(const ivf_pq_index& got, const ivf_pq_index& expected, const std::string& what) {
  EXPECT_EQ(got.rows(), expected.rows()) << what;
  const ivf_pq_result a = answers(got), b = answers(expected);
  EXPECT_EQ(a.ids, b.ids) << what;
  EXPECT_EQ(std::memcmp(a.scores.data(), b.scores.data(), a.scores.size() * sizeof(float)), 0) << what;
}

std::vector<std::int64_t> descending_ids(std::int64_t count, std::int64_t first) {
  std::vector<std::int64_t> ids(static_cast<std::size_t>(count));
  std::iota(ids.rbegin(), ids.rend(), first);
  return ids;
}

TEST(ivf_pq_file, what_is_saved_is_loaded) {
  const temporary_folder folder;
  const clustered_rows rows(kRows, kDim, 3);
  std::vector<ivf_pq_options> kinds = {options_of(kept_rows::none), options_of(kept_rows::device),
                                       options_of(kept_rows::host)};
  for (const code_kind code : {code_kind::sq4, code_kind::sq8}) {
    kinds.push_back(options_of(kept_rows::none));
    kinds.back().code = code;
  }
  kinds.push_back(options_of(kept_rows::device));
  kinds.back().rotation = rotation::random;
  kinds.back().encodes = encoded::row;
  kinds.back().metric = metric::l2;
  kinds.back().seed = ~std::uint64_t{0};
  for (const ivf_pq_options& options : kinds) {
    for (const bool with_ids : {false, true}) {
      ivf_pq_index index = trained(options);
      if (with_ids) {
        index.add(rows.view(), descending_ids(kRows, 1000));
      } else {
        index.add(rows.view());
      }
      for (const bool empty : {false, true}) {
        if (empty) index.clear();
        index.save(folder / "an.index");
        for (const verify checks : {verify::full, verify::header_only}) {
          ivf_pq_index loaded = ivf_pq_index::load(device::cpu(), folder / "an.index", checks);
          expect_same(loaded, index, "loaded");
          loaded.save(folder / "again.index");
          EXPECT_EQ(read_bytes(folder / "again.index"), read_bytes(folder / "an.index"));
          loaded.add(rows.part(0, 7));
          EXPECT_EQ(loaded.rows(), index.rows() + 7);
        }
      }
    }
  }
}

// ---- growing

/// Rows [first, first + count), added to the file at `to` by an index of the same training.
void append(const path& to, const clustered_rows& rows, std::int64_t first, std::int64_t count,
            std::span<const std::int64_t> ids = {}) {
  ivf_pq_index part = ivf_pq_index::load_trained(device::cpu(), to);
  EXPECT_EQ(part.rows(), 0);
  part.add(rows.part(first, count), ids);
  part.append_to(to);
}

TEST(ivf_pq_file, a_file_that_grew_equals_one_that_was_saved_at_once) {
  const clustered_rows rows(kRows, kDim, 4);
  for (const kept_rows kept : {kept_rows::none, kept_rows::device}) {
    for (const bool with_ids : {false, true}) {
      const temporary_folder folder;
      const std::vector<std::int64_t> ids = with_ids ? descending_ids(kRows, 1000) : std::vector<std::int64_t>();
      const auto ids_of = [&](std::int64_t first, std::int64_t count) {
        return with_ids ? std::span(ids).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count))
                        : std::span<const std::int64_t>();
      };
      ivf_pq_index whole = trained(options_of(kept));
      whole.add(rows.part(0, 100), ids_of(0, 100));
      whole.save(folder / "grows");  // rows of its own, which become the first segment
      append(folder / "grows", rows, 100, 3, ids_of(100, 3));
      const std::string first_segment = read_bytes(folder / "grows.0.rows");
      append(folder / "grows", rows, 103, 397, ids_of(103, 397));
      EXPECT_EQ(read_bytes(folder / "grows.0.rows"), first_segment) << "what is there is not written again";
      EXPECT_EQ(folder.files(), 4);

      whole.add(rows.part(100, 400), ids_of(100, 400));
      const ivf_pq_index grown = ivf_pq_index::load(device::cpu(), folder / "grows");
      expect_same(grown, whole, "grown");
      grown.save(folder / "one");
      whole.save(folder / "other");
      EXPECT_EQ(read_bytes(folder / "one"), read_bytes(folder / "other")) << "a save makes one file of all";
    }
  }
}

TEST(ivf_pq_file, an_interrupted_append_leaves_the_last_committed_rows) {
  const temporary_folder folder;
  const clustered_rows rows(kRows, kDim, 5);
  ivf_pq_index index = trained(options_of(kept_rows::device));
  index.save(folder / "it");
  append(folder / "it", rows, 0, 200);
  index.add(rows.part(0, 200));
  // A disk that is full after so many bytes: in the segment's header, in its data, in the index file that would name
  // it.
  const auto index_bytes = static_cast<rlim_t>(std::filesystem::file_size(folder / "it"));
  const auto segment_bytes = static_cast<rlim_t>(std::filesystem::file_size(folder / "it.0.rows"));
  ASSERT_LT(index_bytes, segment_bytes);
  for (const rlim_t limit : {rlim_t{100}, index_bytes - 50, index_bytes + 50, segment_bytes - 50}) {
    {
      ivf_pq_index part = ivf_pq_index::load_trained(device::cpu(), folder / "it");
      part.add(rows.part(200, limit == index_bytes - 50 ? 1 : 300));
      const test::file_size_limit full(limit);
      expect_error<io_error>([&] { part.append_to(folder / "it"); }, "");
    }
    expect_same(ivf_pq_index::load(device::cpu(), folder / "it"), index, std::to_string(limit));
  }
  append(folder / "it", rows, 200, 300);
  index.add(rows.part(200, 300));
  expect_same(ivf_pq_index::load(device::cpu(), folder / "it"), index, "as if nothing had happened");
}

TEST(ivf_pq_file, appends_that_are_refused) {
  const temporary_folder folder;
  const clustered_rows rows(kRows, kDim, 6);
  ivf_pq_index index = trained(options_of(kept_rows::none));
  index.add(rows.part(0, 50));
  index.save(folder / "it");
  const std::string before = read_bytes(folder / "it");
  const auto refuse = [&](ivf_pq_index& other, std::string_view part) {
    expect_error<invalid_argument>([&] { other.append_to(folder / "it"); }, part);
  };
  ivf_pq_options options = options_of(kept_rows::none);
  options.seed = 1;
  ivf_pq_index seeded = trained(options);
  refuse(seeded, "trained as this one");
  ivf_pq_index keeps = trained(options_of(kept_rows::device));
  refuse(keeps, "trained as this one");
  ivf_pq_index untrained(device::cpu(), options);
  refuse(untrained, "not trained");
  ivf_pq_index taken = ivf_pq_index::load_trained(device::cpu(), folder / "it");
  const std::vector<std::int64_t> ids = {900, 49};
  taken.add(rows.part(0, 2), ids);
  refuse(taken, "ids[1] is 49; allowed is an id that no other row has");
  EXPECT_EQ(read_bytes(folder / "it"), before);
  EXPECT_EQ(folder.files(), 1);
}

// ---- forged files

/// A file's metadata and tensors, to be changed and written again under right checksums.
struct forged_file {
  explicit forged_file(const path& from) : file(from) {
    for (const char* key : {"format",
                            "format_version",
                            "library_version",
                            "metric",
                            "element_type",
                            "dim",
                            "nlist",
                            "code",
                            "pq_dim",
                            "pq_bits",
                            "encodes",
                            "rotation",
                            "kept_rows",
                            "seed",
                            "rows",
                            "codebook_exponent",
                            "segments",
                            "segment.0.name",
                            "segment.0.rows",
                            "segment.0.ids",
                            "segment.0.header"}) {
      if (file.has_metadata(key)) metadata[key] = file.metadata(key);
    }
    for (const std::string& name : file.tensor_names()) {
      const io::tensor_entry& entry = file.tensor(name);
      tensors.push_back({name, entry.dtype, entry.shape});
      std::string& bytes = data[name];
      bytes.resize(static_cast<std::size_t>(entry.bytes));
      file.read(name, 0, entry.bytes, bytes.data());
    }
  }
  template <class T>
  void put(const std::string& name, std::size_t at, T value) {
    std::memcpy(data.at(name).data() + at * sizeof value, &value, sizeof value);
  }
  void write(const path& to) const {
    io::safetensors_writer out(to, metadata, tensors);
    for (const auto& one : tensors) {
      const std::string& bytes = data.at(one.name);
      out.write(one.name, bytes.data(), static_cast<std::int64_t>(bytes.size()));
    }
    out.commit();
  }

  io::safetensors_file file;
  std::map<std::string, std::string> metadata;
  std::vector<io::tensor_description> tensors;
  std::map<std::string, std::string> data;
};

struct forgery {
  std::function<void(forged_file&)> change;
  std::string_view message;
};

void expect_refused(const path& good, const path& bad, const std::vector<forgery>& forgeries) {
  for (const forgery& one : forgeries) {
    forged_file forged(good);
    one.change(forged);
    forged.write(bad);
    for (const verify checks : {verify::full, verify::header_only}) {
      expect_error<corrupt_file>([&] { ivf_pq_index::load(device::cpu(), bad, checks); }, one.message);
    }
  }
  forged_file(good).write(bad);
  EXPECT_EQ(ivf_pq_index::load(device::cpu(), bad).rows(), ivf_pq_index::load(device::cpu(), good).rows());
}

TEST(ivf_pq_file, forged_values_are_refused) {
  const temporary_folder folder;
  ivf_pq_index index = trained(options_of(kept_rows::device));
  index.add(clustered_rows(kRows, kDim, 7).view(), descending_ids(kRows, 0));
  index.save(folder / "good");
  const auto meta = [](const char* key, const char* value) {
    return [=](forged_file& file) { file.metadata[key] = value; };
  };
  expect_refused(
      folder / "good", folder / "bad",
      {{meta("format", "shortlist.flat_index"), "format is 'shortlist.flat_index'"},
       {meta("format_version", "2"), "format_version is '2'"},
       {meta("metric", "l3"), "metric is l3"},
       {meta("element_type", "f16"), "tensor 'vectors' is F32"},
       {meta("dim", "12"), "tensor 'centroids' is F32 [6, 11]; expected is F32 [6, 12]"},
       {meta("nlist", "7"), "tensor 'centroids'"},
       {meta("nlist", "0"), "'nlist' is '0'"},
       {meta("code", "sq4"), "do not go with the code 'sq4'"},
       {meta("pq_dim", "5"), "options.pq_dim is 5"},
       {meta("pq_bits", "6"), "tensor 'codebook'"},
       {meta("pq_bits", "3"), "options.pq_bits is 3"},
       {meta("encodes", "both"), "encodes is both"},
       {meta("rotation", "random"), "there is no tensor 'rotation'"},
       {meta("kept_rows", "none"), "tensor 'vectors' does not belong"},
       {meta("seed", "-1"), "seed is '-1'"},
       {meta("rows", "501"), "tensor 'codes'"},
       {meta("rows", "-1"), "'rows' is '-1'"},
       {meta("codebook_exponent", "9"), "no halves times 2^9"},
       {meta("codebook_exponent", "1000"), "'codebook_exponent' is '1000'"},
       {[](forged_file& file) { file.put("centroids", 3, NAN); }, "centroids holds nan"},
       {[](forged_file& file) { file.put("codebook", 3, 1e38f); }, "codebook holds"},
       {[](forged_file& file) { file.put("codebook", 3, 0.1f); }, "no halves"},
       {[](forged_file& file) { file.put("sizes", 0, 600u); }, "the sizes of the lists add up to"},
       {[](forged_file& file) { file.put("sizes", 2, ~0u); }, "the sizes of the lists add up to 4294"},
       {[](forged_file& file) { file.put("positions", 10, 500u); }, "a position is 500; the file has 500 rows"},
       {[](forged_file& file) { std::memcpy(file.data["positions"].data(), file.data["positions"].data() + 4, 4); },
        "two rows have the position"},
       {[](forged_file& file) { file.put("codes", 2, std::uint8_t{0xFF}); }, "bits behind a row's last code"},
       {[](forged_file& file) { file.put("ids", 4, std::int64_t{-3}); }, "ids[4] is -3"},
       {[](forged_file& file) { file.put("ids", 4, std::int64_t{5}); }, "an id that no other row has"},
       {[](forged_file& file) { file.put("vectors", 12, INFINITY); }, "not finite in row 1;"}});
}

TEST(ivf_pq_file, forged_segments_are_refused) {
  const temporary_folder folder;
  const clustered_rows rows(kRows, kDim, 8);
  trained(options_of(kept_rows::none)).save(folder / "good");
  append(folder / "good", rows, 0, 100);
  const auto meta = [](const char* key, const char* value) {
    return [=](forged_file& file) { file.metadata[key] = value; };
  };
  expect_refused(folder / "good", folder / "bad",
                 {{meta("segment.0.rows", "99"), "not those that the index that names it expects"},
                  {meta("segment.0.ids", "given"), "not those that the index that names it expects"},
                  {meta("segment.0.name", "../good.0.rows"), "a segment's name is '../good.0.rows'"},
                  {meta("segment.0.header", "0000000000000000"), "the header's checksum is"},
                  {meta("segments", "2"), "the metadata has no 'segment.1.name'"}});
  forged_file other(folder / "good.0.rows");
  other.put("positions", 0, 99u);
  other.write(folder / "good.0.rows");
  expect_error<corrupt_file>([&] { ivf_pq_index::load(device::cpu(), folder / "good"); }, "the header's checksum is");
  std::filesystem::remove(folder / "good.0.rows");
  expect_error<io_error>([&] { ivf_pq_index::load(device::cpu(), folder / "good"); }, "good.0.rows");
}

TEST(ivf_pq_file, changed_data_is_noticed) {
  const temporary_folder folder;
  ivf_pq_index index = trained(options_of(kept_rows::device));
  index.add(clustered_rows(50, kDim, 9).view(), descending_ids(50, 0));
  index.save(folder / "good");
  const std::string good = read_bytes(folder / "good");
  const io::safetensors_file file(folder / "good");
  for (const std::string& name : file.tensor_names()) {
    const io::tensor_entry& entry = file.tensor(name);
    for (const std::int64_t at : {std::int64_t{0}, entry.bytes / 2, entry.bytes - 1}) {
      std::string bad = good;
      bad[static_cast<std::size_t>(entry.file_offset + at)] ^= 1;
      test::write_bytes(folder / "bad", bad);
      expect_error<corrupt_file>([&] { ivf_pq_index::load(device::cpu(), folder / "bad"); }, "");
    }
  }
}

// ---- mapped rows

constexpr std::int64_t kMappedDim = 16;  // of f32: rows of 64 bytes, which can stay in a file

ivf_pq_index with_mappable_rows(metric how, const clustered_rows& rows, bool with_ids) {
  ivf_pq_options options = options_of(kept_rows::device);
  options.dim = kMappedDim;
  options.metric = how;
  ivf_pq_index index(device::cpu(), options);
  index.train(rows.view(), {.iterations = 2});
  index.add(rows.part(0, kRows - 7), with_ids ? descending_ids(kRows - 7, 1000) : std::vector<std::int64_t>());
  return index;
}

void expect_equal_answers(const ivf_pq_index& got, const ivf_pq_index& expected, const std::string& what) {
  const clustered_rows queries(5, kMappedDim, 2);
  const ivf_pq_search_options options = {.k = 40, .nprobe = 3, .refine_ratio = 2};
  const ivf_pq_result a = got.search(queries.view(), options), b = expected.search(queries.view(), options);
  EXPECT_EQ(a.ids, b.ids) << what;
  EXPECT_EQ(a.scores, b.scores) << what;
  const search_result c = got.search_kept_rows(queries.view(), {.k = 40});
  const search_result d = expected.search_kept_rows(queries.view(), {.k = 40});
  EXPECT_EQ(c.ids, d.ids) << what;
  EXPECT_EQ(c.scores, d.scores) << what;
}

TEST(ivf_pq_file, mapped_rows_answer_as_copied_ones) {
  const clustered_rows rows(kRows, kMappedDim, 13);
  for (const metric how : {metric::cosine, metric::l2, metric::inner_product}) {
    for (const bool with_ids : {false, true}) {
      for (const verify checks : {verify::full, verify::header_only}) {
        const temporary_folder folder;
        ivf_pq_index index = with_mappable_rows(how, rows, with_ids);
        index.save(folder / "it");
        ivf_pq_index found = ivf_pq_index::load(device::cpu(), folder / "it", checks, mapped::rows);
        EXPECT_EQ(found.memory().mapped_rows_bytes, (kRows - 7) * kMappedDim * 4);
        EXPECT_EQ(index.memory().mapped_rows_bytes, 0);
        expect_equal_answers(found, index, "mapped");
        found.save(folder / "again");
        EXPECT_EQ(read_bytes(folder / "again"), read_bytes(folder / "it"));

        found.save(folder / "it");  // over the file whose rows are mapped
        expect_equal_answers(found, index, "after the file was replaced");
        std::filesystem::remove(folder / "it");
        expect_equal_answers(found, index, "after it was removed");

        const std::vector<std::int64_t> seven = with_ids ? descending_ids(7, 1) : std::vector<std::int64_t>();
        found.add(rows.part(kRows - 7, 7), seven);
        index.add(rows.part(kRows - 7, 7), seven);
        EXPECT_EQ(found.memory().mapped_rows_bytes, 0) << "added rows bring the others into memory";
        expect_equal_answers(found, index, "with more rows");
      }
    }
  }
}

TEST(ivf_pq_file, an_index_of_mapped_rows_can_be_cleared_and_reserved) {
  const clustered_rows rows(kRows, kMappedDim, 13);
  const temporary_folder folder;
  ivf_pq_index index = with_mappable_rows(metric::cosine, rows, true);
  index.save(folder / "it");

  ivf_pq_index cleared = ivf_pq_index::load(device::cpu(), folder / "it", verify::full, mapped::rows);
  cleared.clear();
  EXPECT_EQ(cleared.memory().mapped_rows_bytes, 0);
  cleared.add(rows.part(0, kRows - 7), descending_ids(kRows - 7, 1000));
  expect_equal_answers(cleared, index, "cleared and filled");

  ivf_pq_index reserved = ivf_pq_index::load(device::cpu(), folder / "it", verify::full, mapped::rows);
  reserved.reserve(kRows - 7);
  EXPECT_GT(reserved.memory().mapped_rows_bytes, 0) << "there is room";
  reserved.reserve(2 * kRows);
  EXPECT_EQ(reserved.memory().mapped_rows_bytes, 0);
  expect_equal_answers(reserved, index, "reserved");
}

TEST(ivf_pq_file, rows_that_cannot_be_mapped_are_refused) {
  const temporary_folder folder;
  const auto load = [&](const char* name) {
    return ivf_pq_index::load(device::cpu(), folder / name, verify::full, mapped::rows);
  };
  const clustered_rows rows(kRows, kDim, 14);
  ivf_pq_index odd = trained(options_of(kept_rows::device));
  odd.add(rows.view());
  odd.save(folder / "odd");
  expect_error<unsupported>([&] { load("odd"); }, "rows of 44 bytes; allowed are multiples of 64");

  const clustered_rows mappable(kRows, kMappedDim, 13);
  const ivf_pq_index index = with_mappable_rows(metric::l2, mappable, false);
  index.save(folder / "it");
  ivf_pq_index part = ivf_pq_index::load_trained(device::cpu(), folder / "it");
  part.add(mappable.part(kRows - 7, 7));
  part.append_to(folder / "it");
  expect_error<unsupported>([&] { load("it"); }, "is one of several files");

  ivf_pq_index none = trained(options_of(kept_rows::none));  // nothing to map, which is no error
  none.add(rows.view());
  none.save(folder / "none");
  expect_same(load("none"), none, "without kept rows");
}

TEST(ivf_pq_file, what_is_wrong_with_mapped_rows_is_found_by_a_full_check) {
  const clustered_rows rows(kRows, kMappedDim, 13);
  const temporary_folder folder;
  with_mappable_rows(metric::l2, rows, false).save(folder / "it");
  std::string bytes = read_bytes(folder / "it");
  const io::tensor_entry vectors = io::safetensors_file(folder / "it").tensor("vectors");
  bytes[static_cast<std::size_t>(vectors.file_offset + vectors.bytes - 1)] ^= 1;
  test::write_bytes(folder / "it", bytes);
  expect_error<corrupt_file>([&] { ivf_pq_index::load(device::cpu(), folder / "it", verify::full, mapped::rows); },
                             "vectors");
  EXPECT_EQ(ivf_pq_index::load(device::cpu(), folder / "it", verify::header_only, mapped::rows).rows(), kRows - 7);
}

}  // namespace
}  // namespace shortlist
