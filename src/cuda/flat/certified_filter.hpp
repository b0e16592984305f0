// The filter of a batch by matrix units. See certified_filter.cu.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <limits>

#include "core/backend.hpp"
#include "core/certified.hpp"

namespace shortlist::cuda {

/// What a query brings to the test of a row, in units of the integer product; see docs/certified.md, section 11.
struct alignas(16) filter_weights {
  float target;    ///< of 1 / s, or 1 / (s ix) under cosine: from the merit to be reached
  float residual;  ///< of e / s, negative
  float norm;      ///< of n / s, negative
  float square;    ///< of w / s, under squared L2
};

/// Lets no row pass, whatever its terms.
__host__ __device__ constexpr filter_weights weights_of_none() {
  return {0.0f, 0.0f, std::numeric_limits<float>::infinity(), 0.0f};
}

__host__ __device__ constexpr bool wants_rows(const filter_weights& weights) {
  return weights.norm < std::numeric_limits<float>::infinity();
}

/// A batch of queries, as the filter reads them. Columns are queries; a tile of columns stays in shared memory.
struct filter_batch {
  const unsigned char* columns = nullptr;    ///< [tiles][chunks][tile][128] codes, see column_byte_at
  const core::query_terms* terms = nullptr;  ///< [padded to whole tiles]
  const filter_weights* weights = nullptr;   ///< [padded to whole tiles]
  const float* targets = nullptr;            ///< [padded to whole tiles] the merits to be reached
  std::int32_t count = 0;                    ///< queries
  std::int32_t tile = 0;                     ///< columns of a tile: one of kColumnTiles
};

/// Which row tiles of kFilterRows rows a launch visits: every `every`-th.
struct tile_choice {
  std::uint32_t every = 1;
};

inline constexpr float kLeastScale = 0x1p-50f;  ///< rows of smaller scales pass untested, queries are searched in full
inline constexpr int kFilterRows = 64;
inline constexpr std::uint32_t kMaxMerged = 4;  ///< tiles whose maxima become one, at most
inline constexpr int kColumnTiles[] = {16, 64, 128, 256};

/// A batch's candidates. Those of a query lie in segments, one for each block of the filter that had its columns.
struct candidate_segments {
  std::uint64_t* keys = nullptr;    ///< [queries, segments, capacity]
  std::uint32_t* counts = nullptr;  ///< [queries, segments]; where it exceeds the capacity, keys are missing
  std::int32_t segments = 0;
  std::int32_t capacity = 0;
};

/// How many segments a query's candidates lie in.
std::int32_t count_segments(const core::flat_corpus& corpus, const filter_batch& batch, int multiprocessors);

/// The widest tile of columns that fits shared memory at this dim; 0 if none does.
int widest_column_tile(std::int64_t dim);

/// How a sample of rows becomes maxima of groups of them: up to `merged` tiles' blocks of 16 rows at a time.
struct sample_plan {
  tile_choice choice;
  std::uint32_t workers = 0;  ///< warpgroups that take turns with the tiles
  std::uint32_t merged = 1;
  std::uint32_t groups = 0;

#ifdef __CUDACC__
  /// The position of the row that a group's maximum belongs to; `key` is not 0.
  __device__ std::uint32_t position_of(std::uint32_t group, std::uint32_t key) const {
    constexpr std::uint32_t kBlocks = kFilterRows / core::kPlaneRows;
    const std::uint32_t worker = group / kBlocks % workers;
    const std::uint32_t visit = group / kBlocks / workers * merged + key / core::kPlaneRows % kMaxMerged;
    return (visit * workers + worker) * choice.every * kFilterRows + group % kBlocks * core::kPlaneRows +
           key % core::kPlaneRows;
  }
#endif
};

sample_plan plan_filter_sample(const core::flat_corpus& corpus, const filter_batch& batch, tile_choice choice,
                               std::int64_t max_groups, int multiprocessors);

/// maxima[query, plan.groups]: of each group, about the best merit's key, whose last bits tell the row; 0 if nothing is
/// known of any of its rows.
void launch_filter_sample(cudaStream_t stream, const core::flat_corpus& corpus, const filter_batch& batch,
                          const sample_plan& plan, std::uint32_t* maxima, int multiprocessors);

/// Appends core::row_key(key of the interval's upper end, position) to a query's candidates for every row whose upper
/// end reaches the target.
void launch_filter(cudaStream_t stream, const core::flat_corpus& corpus, const filter_batch& batch,
                   const candidate_segments& candidates, int multiprocessors);

}  // namespace shortlist::cuda
