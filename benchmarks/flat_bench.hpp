// Verifies and times flat searches of one corpus on one device, in each of the places where queries can live.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "corpus.hpp"
#include "gpu.hpp"
#include "results.hpp"
#include "shortlist/device.hpp"
#include "shortlist/flat_index.hpp"
#include "timing.hpp"
#include "truth.hpp"

namespace shortlist::benchmark {

/// A corpus, queries for it, and what the answers are.
struct flat_data {
  corpus rows;
  query_pool queries;
  truth right;

  flat_data(std::int64_t row_count, std::int64_t dim, element_type type, distribution values, std::int64_t query_count,
            std::int64_t max_k)
      : rows(row_count, dim, type, values), queries(query_count, dim, values), right(rows, queries, max_k) {}

  search_shape shape(std::int64_t query_count, std::int64_t k) const {
    return {.rows = rows.rows(), .dim = rows.dim(), .queries = query_count, .k = k, .type = rows.type()};
  }
  /// Timed runs take turns among this many sets of queries.
  std::int64_t query_sets(std::int64_t query_count) const {
    return std::max<std::int64_t>(1, queries.count() / query_count);
  }
  matrix_view<const float> query_set(std::int64_t run, std::int64_t query_count) const {
    return queries.view(run % query_sets(query_count) * query_count, query_count);
  }
};

class flat_bench {
 public:
  /// Builds the index, with memory reserved for searches up to these limits.
  flat_bench(device where, flat_data& data, results& out, const patience& limit, std::int64_t max_queries,
             std::int64_t max_k, int concurrency = 1, storage kept = storage::full);

  flat_index& index() { return index_; }
  flat_data& data() { return data_; }
  void set_patience(const patience& limit) { limit_ = limit; }
  /// From now on searches go through the plane, or read all rows, whatever the plan says.
  enum class through { plan, plane, rows };
  void search_through(through what) { through_ = what; }

  /// Milliseconds of one read of the rows, at the bandwidth that this device shows for so many bytes.
  double limit_ms(gpu_clock* gpu);

  /// What the plan says that a search reads of the plane.
  std::int64_t plane_bytes(std::int64_t queries, std::int64_t k) const;

  /// Host to host. Adds a record unless it is not wanted. Where the index has a plane, bytes and limit are the plane's
  /// unless rows are asked for, and the record tells how many rows survived its filter.
  void host(std::int64_t queries, std::int64_t k, const std::string& work, double limit_ms,
            const nlohmann::ordered_json& more = {});

  /// Queries and results in the GPU's memory: as plain calls, and as one captured graph replayed with other queries.
  /// The record's time is the better one's; both stand in it. Of planes it tells what `host` does.
  void on_device(gpu_clock& gpu, std::int64_t queries, std::int64_t k, const std::string& work, double limit_ms,
                 const nlohmann::ordered_json& more = {});

  /// The queries come down from `gpu_device`, the CPU searches, scores and ids go up: what a program does that keeps
  /// its vectors on the host. For an index on the CPU.
  void round_trip(device gpu_device, std::int64_t k, const std::string& work, double limit_ms);

  /// `threads` threads search at once, each with a query of its own; the time is the wall's for one search.
  void many_threads(int threads, std::int64_t k, const std::string& work, double limit_ms,
                    const nlohmann::ordered_json& more = {});

  /// Counts what 1,000 searches allocate: host to host, then on the GPU with a workspace. The time is one search's.
  void allocations(gpu_clock& gpu, std::int64_t k, const std::string& work, double limit_ms);

  /// Compares an answer to query set `run` with the reference, and the lists of a batch that this leaves out with the
  /// index's own answers to one query at a time.
  std::optional<std::string> check(const answer& found, std::int64_t run, std::int64_t queries);

 private:
  bool reads_plane() const { return index_.storage() != storage::full && through_ != through::rows; }
  /// Adds the record of `time`: of the rows, or of the plane, with how many rows survive of some sets of queries.
  void add(const std::string& work, const timing& time, double limit_ms, std::int64_t queries, std::int64_t k,
           nlohmann::ordered_json fields, const nlohmann::ordered_json& more);
  /// Fails unless every list is the one that a search of all rows gives.
  void compare_with_rows(const answer& found, std::int64_t run, std::int64_t queries);
  /// Runs `measure` unless the work is not wanted; an error becomes a record of the work's failure.
  void attempt(const std::string& work, const std::function<void()>& measure);

  device where_;
  flat_data& data_;
  results& out_;
  patience limit_;
  through through_ = through::plan;
  flat_index index_;
};

}  // namespace shortlist::benchmark
