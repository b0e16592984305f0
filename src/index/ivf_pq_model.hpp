// What an IVF-PQ index has trained: as arrays on the host, and on a device with what a backend makes of them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/ivf_pq.hpp"
#include "index/device_memory.hpp"
#include "index/flat_store.hpp"
#include "shortlist/ivf_pq_index.hpp"

namespace shortlist::index {

/// The options of a new index, checked and with pq_dim and pq_bits as they will be.
ivf_pq_options completed(const ivf_pq_options& options);
core::ivf_pq_shape shape_of(const ivf_pq_options& options);

/// What training finds and a file holds.
struct ivf_pq_arrays {
  std::vector<float> centroids;  ///< [nlist, dim]
  std::vector<float> codebook;   ///< [pieces, codewords, piece_dim]
  std::vector<float> steps;      ///< [dim] of scalar codes, else empty
  std::vector<float> rotation;   ///< [dim, dim], or empty
  int exponent = 0;              ///< the codebook of product codes is halves times 2^exponent

  friend bool operator==(const ivf_pq_arrays&, const ivf_pq_arrays&) = default;
};

/// Rounds the codewords of product codes to halves times 2^exponent; returns the exponent.
int round_codebook(std::vector<float>& codebook);
/// Whether every codeword is such a number.
bool is_rounded(const std::vector<float>& codebook, int exponent);
/// The codebook of scalar codes.
std::vector<float> codebook_of(const core::ivf_pq_shape& shape, const std::vector<float>& steps);

/// Centroids [nlist, dim] as a corpus: for queries by the metric of the index; for rows that look for their list by
/// squared L2, with an int8 plane where that pays.
enum class scanned_by : std::uint8_t { queries, rows };
flat_store centroid_store(core::backend& backend, void* stream, const ivf_pq_options& options, scanned_by by,
                          const std::vector<float>& centroids);

/// A copy of host memory on a device.
device_memory uploaded(core::backend& backend, void* stream, const void* from, std::int64_t bytes);

/// The arrays on a device. Its addresses stay.
class ivf_pq_model {
 public:
  /// @throws out_of_memory.
  ivf_pq_model(core::backend& backend, void* stream, const ivf_pq_options& options, ivf_pq_arrays arrays);

  const core::ivf_pq_model& view() const noexcept { return view_; }
  const core::ivf_pq_shape& shape() const noexcept { return view_.shape; }
  const ivf_pq_arrays& arrays() const noexcept { return arrays_; }
  std::int64_t bytes() const noexcept;

 private:
  ivf_pq_arrays arrays_;
  flat_store probes_;
  flat_store assigns_;
  device_memory codebook_;
  device_memory steps_;
  device_memory rotation_;
  device_memory prepared_;
  core::ivf_pq_model view_;
};

}  // namespace shortlist::index
