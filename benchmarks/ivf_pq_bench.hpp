// Verifies and times searches of one IVF-PQ index on GPU 0, beside their bytes by the bandwidth model.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gpu.hpp"
#include "results.hpp"
#include "shortlist/device.hpp"
#include "shortlist/ivf_pq_index.hpp"
#include "timing.hpp"
#include "truth.hpp"

namespace shortlist::benchmark {

/// A code and how results name it.
struct ivf_pq_code {
  std::string_view name;
  code_kind kind = code_kind::pq;
  std::int64_t pq_dim = 0;
  int pq_bits = 8;

  /// Bytes of a row that a scan reads: its code and a term.
  std::int64_t scanned_bytes(std::int64_t dim) const {
    const std::int64_t bits = kind == code_kind::pq ? pq_dim * pq_bits : kind == code_kind::sq4 ? 4 * dim : 8 * dim;
    return (bits + 7) / 8 + 4;
  }
};

struct ivf_pq_job {
  std::int64_t queries = 0;
  std::int64_t k = 10;
  std::int64_t nprobe = 32;
  std::int64_t refine_ratio = 0;
};

/// "10000000x96" of an index and "q10000/k10/nprobe32/pq48/refine4" of a job, joined: the name of the work.
std::string ivf_pq_work(std::int64_t rows, std::int64_t dim, const ivf_pq_job& what, std::string_view code,
                        std::string_view apart = {});

/// Queries on the host and on the GPU, and of the first of them the right neighbours.
class ivf_pq_queries {
 public:
  ivf_pq_queries(device where, std::vector<float> values, std::int64_t dim);

  std::int64_t count() const { return static_cast<std::int64_t>(values_.size()) / dim_; }
  matrix_view<const float> on_host(std::int64_t first, std::int64_t count) const {
    return {values_.data() + first * dim_, count, dim_};
  }
  matrix_view<const float> on_gpu(std::int64_t first, std::int64_t count) const {
    return {static_cast<const float*>(memory_.data()) + first * dim_, count, dim_};
  }

  /// The best of the first ids.size() / k queries, from an exact search.
  void set_truth(std::int64_t k, std::vector<std::int64_t> ids);
  /// The share of the k nearest that was found, over those of the first `queries` whose truth is known to k or beyond;
  /// nothing if there is none.
  std::optional<double> recall(const answer& found, std::int64_t queries) const;

 private:
  struct known {
    std::int64_t k;
    std::vector<std::int64_t> ids;
  };
  std::int64_t dim_;
  std::vector<float> values_;
  buffer memory_;
  std::vector<known> truths_;
};

struct ivf_pq_outcome {
  measured what;
  double recall = 0;  ///< 0 where no truth is known
  nlohmann::ordered_json fields;
};

/// Adds a record of what `measure` returns, if the work is wanted; an error becomes a record of the work's failure.
template <class Measure>
void attempt(results& out, const std::string& work, const Measure& measure) {
  if (!out.wants(work)) return;
  try {
    const ivf_pq_outcome made = measure();
    out.add(work, made.what, made.fields);
  } catch (const std::exception& failure) {
    out.add_wrong(work, failure.what());
  }
}

class ivf_pq_bench {
 public:
  ivf_pq_bench(const ivf_pq_index& index, const ivf_pq_code& code, gpu_clock& gpu, double read_gb_per_s)
      : index_(index), code_(code), gpu_(gpu), read_gb_per_s_(read_gb_per_s) {}

  std::string work(const ivf_pq_job& what, std::string_view apart = {}) const;

  /// Device to device, in GPU time. @throws std::runtime_error if the answer is not that of a search without a filter.
  ivf_pq_outcome on_device(const ivf_pq_queries& queries, const ivf_pq_job& what, const patience& limit) const;
  /// Host to host, by the wall clock; `what.queries` of the queries in turn.
  ivf_pq_outcome on_host(const ivf_pq_queries& queries, const ivf_pq_job& what, const patience& limit) const;

 private:
  answer search(const ivf_pq_queries& queries, std::int64_t first, const ivf_pq_job& what) const;
  void compare_with_unfiltered(const ivf_pq_queries& queries, const ivf_pq_job& what, const answer& found) const;
  ivf_pq_outcome outcome_of(const ivf_pq_job& what, const timing& time, std::optional<double> recall) const;

  const ivf_pq_index& index_;
  const ivf_pq_code& code_;
  gpu_clock& gpu_;
  double read_gb_per_s_;
};

}  // namespace shortlist::benchmark
