// Verifies and times row-wise top k of one matrix. The oracle's answers stand apart from the place where the op runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gpu.hpp"
#include "results.hpp"
#include "rows_data.hpp"
#include "shortlist/top_k.hpp"
#include "timing.hpp"

namespace shortlist::benchmark {

struct rows_job {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  value_type type = value_type::f32;
  row_values values = row_values::normal;
  top_k_options options = {};
  index_type indices_as = index_type::i64;  ///< what torch returns
  std::int64_t of_cols = 0;                 ///< columns of the matrix, of which the first are looked at; 0: all

  std::int64_t matrix_cols() const { return of_cols == 0 ? cols : of_cols; }

  std::int64_t entries() const { return rows * options.k; }
  std::int64_t values_bytes() const { return entries() * size_bytes(type); }
  std::int64_t indices_bytes() const { return entries() * (indices_as == index_type::i32 ? 4 : 8); }
  std::int64_t output_bytes() const { return values_bytes() + indices_bytes(); }
  /// Where the indices begin in memory that holds the values first.
  std::int64_t indices_at() const { return (values_bytes() + 63) / 64 * 64; }
  /// What values and indices need together.
  std::int64_t room_bytes() const { return indices_at() + indices_bytes(); }
  /// The matrix read once, the output written once.
  std::int64_t bytes() const { return rows * cols * size_bytes(type) + output_bytes(); }
  bool same_matrix(const rows_job& other) const {
    return rows == other.rows && matrix_cols() == other.matrix_cols() && type == other.type && values == other.values;
  }
};

/// top_k/65536x256/f32/k32, the place if it is not the GPU ("cpu"), then what sets the job apart: i32, sorted, eps1e-4,
/// max_iter4, ties90, of264.
std::string work_name(const rows_job& job, std::string_view place = {});

/// The oracle's answer for a matrix, or for a sample of its rows where the oracle would take too long: rows at equal
/// distances, and the last ones. Of rows longer than that the CPU backend's answer, which needs no sort.
class rows_truth {
 public:
  /// @param most_values of the matrix that are looked at.
  rows_truth(const row_matrix& matrix, const rows_job& job, std::int64_t most_values);

  /// How many rows are compared.
  std::int64_t rows() const;
  /// Where outputs in host memory first differ from the oracle's, in words.
  std::optional<std::string> first_difference(const std::byte* values, const std::byte* indices) const;

 private:
  struct sample {
    std::int64_t first;
    std::int64_t step;
    std::int64_t count;
    std::vector<std::byte> values;
    std::vector<std::byte> indices;
  };
  void add(const row_matrix& matrix, std::int64_t first, std::int64_t step, std::int64_t count, bool by_oracle);
  rows_job job_;
  std::vector<sample> samples_;
};

/// On the CPU: all rows, all cores, outputs in the matrix's room. Adds a record; a wrong answer or an error becomes a
/// record of the failure. The limit is one read of the job's bytes, measured here.
void run_on_cpu(row_matrix& matrix, const rows_job& job, const std::string& work, const patience& limit, results& out,
                const nlohmann::ordered_json& more = {});

/// Copies of a matrix in the GPU's memory, so many that its L2 cache holds none of them when all have had their turn.
class gpu_matrices {
 public:
  gpu_matrices(gpu_clock& gpu, const row_matrix& matrix);

  const row_matrix& host() const { return host_; }
  std::int64_t copies() const { return copies_; }
  /// The copy whose turn it is in run `run`.
  const std::byte* of_run(std::int64_t run) const {
    return static_cast<const std::byte*>(memory_.data()) + run % copies_ * host_.bytes();
  }

 private:
  const row_matrix& host_;
  std::int64_t copies_;
  buffer memory_;
};

/// Times launches that follow each other in one graph, as the steps of a model do; launching takes no visible part of
/// work of more bytes than this asks for. @param launch called with the number of each @param spoil, verify the output
/// @returns fields of the record: "graph_ms", milliseconds a launch
template <class Launch, class Spoil, class Verify>
nlohmann::ordered_json time_in_graph(gpu_clock& gpu, std::int64_t bytes, const patience& limit, const Launch& launch,
                                     const Spoil& spoil, const Verify& verify) {
  constexpr std::int64_t kLaunches = 24;
  constexpr std::int64_t kMostBytes = std::int64_t{256} << 20;
  if (bytes > kMostBytes) return nlohmann::ordered_json::object();
  const gpu_clock::graph graph = gpu.capture([&] {
    for (std::int64_t i = 0; i < kLaunches; ++i) launch(i);
  });
  spoil();
  graph.replay();
  verify();
  const timing all = repeat(limit, [&](std::int64_t) { return gpu.time_ms([&] { graph.replay(); }); });
  return {{"graph_ms", all.median_ms / kLaunches}};
}

/// On the GPU: device to device, one copy of the matrix after another. Also captured in a graph once and replayed;
/// short work also in a graph of many launches, as "graph_ms" a launch. The limit is one read of the job's bytes by the
/// GPU.
void run_on_gpu(gpu_clock& gpu, const gpu_matrices& matrices, const rows_job& job, const std::string& work,
                const patience& limit, results& out, const nlohmann::ordered_json& more = {});

}  // namespace shortlist::benchmark
