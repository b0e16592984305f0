// Verifies and times sampling from one matrix of logits. The oracle's answers stand apart from the place where the op
// runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gpu.hpp"
#include "results.hpp"
#include "rows_bench.hpp"
#include "rows_data.hpp"
#include "shortlist/sample.hpp"
#include "timing.hpp"

namespace shortlist::benchmark {

/// What a job does beside drawing a token.
enum class sample_extra : std::uint8_t {
  none,
  logprobs,   ///< also the token's log-probability and the best tokens with theirs
  penalties,  ///< all three, with a prompt and generated tokens of every row
  mask,       ///< a bit for each token of every row, half of them set, at random
};

struct sample_job {
  std::int64_t rows = 0;
  std::int64_t vocab = 0;
  value_type type = value_type::f32;
  float temperature = 0.8f;
  std::int32_t top_k = 0;
  float top_p = 1;
  float min_p = 0;
  sample_extra extra = sample_extra::none;
  bool arrays = false;  ///< temperature, top_k and top_p are arrays on the device, with a value of each row

  /// The logits, read once: what else is read and written is small beside them.
  std::int64_t bytes() const { return rows * vocab * size_bytes(type); }
  bool same_matrix(const sample_job& other) const {
    return rows == other.rows && vocab == other.vocab && type == other.type;
  }
};

/// sample/64x128256/bf16/t0.8-k50-p0.95, the place if it is not the GPU ("cpu"), "arrays" if the parameters are, then
/// logprobs, penalties or mask.
std::string work_name(const sample_job& job, std::string_view place = {});

/// What every row has of its own, in one piece of memory that can be copied to a device: a seed, and parameters, tokens
/// for the penalties, or a mask.
class sample_rows {
 public:
  explicit sample_rows(const sample_job& job);
  const std::byte* data() const { return memory_.data(); }
  std::int64_t bytes() const { return static_cast<std::int64_t>(memory_.size()); }
  /// The parameters of the rows from `row` on, where `at` is this memory or a copy of it.
  sample_params params(const std::byte* at, std::int64_t row = 0) const;

 private:
  sample_job job_;
  std::int64_t parameters_at_ = 0;  ///< temperature, top_k and top_p
  std::int64_t mask_at_ = 0;
  std::int64_t prompt_begins_at_ = 0;
  std::int64_t generated_begins_at_ = 0;
  std::int64_t prompt_at_ = 0;
  std::int64_t generated_at_ = 0;
  std::vector<std::byte> memory_;
};

/// The oracle's answer for rows at equal distances, all where they hold no more than `most_values` logits, and for the
/// last row.
class sample_truth {
 public:
  sample_truth(const row_matrix& matrix, const sample_job& job, const sample_rows& of_rows, std::int64_t most_values);
  sample_truth(const sample_truth&) = delete;
  sample_truth& operator=(const sample_truth&) = delete;

  /// How many rows are compared.
  std::int64_t rows() const { return static_cast<std::int64_t>(checked_.size()); }
  /// How many tokens the filters left, on average.
  double mean_kept() const;
  /// Where outputs in host memory first differ from the oracle's, in words.
  std::optional<std::string> first_difference(std::byte* outputs) const;

 private:
  struct checked_row {
    std::int64_t row;
    sample_output answer;  // in memory_
  };
  sample_job job_;
  std::vector<checked_row> checked_;
  std::vector<std::byte> memory_;
};

/// On the CPU: all rows, all cores. Adds a record; a wrong answer or an error becomes a record of the failure. The
/// limit is one read of the logits, measured here.
void run_on_cpu(const row_matrix& matrix, const sample_job& job, const patience& limit, results& out,
                const nlohmann::ordered_json& more = {});

/// On the GPU: device to device, one copy of the logits after another. Also captured in a graph once and replayed.
/// The limit is one read of the logits by the GPU.
void run_on_gpu(gpu_clock& gpu, const gpu_matrices& matrices, const sample_job& job, const patience& limit,
                results& out, const nlohmann::ordered_json& more = {});

}  // namespace shortlist::benchmark
