// The filter of a batch by matrix units. See certified_filter.cu.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <limits>

#include "core/certified.hpp"
#include "cuda/flat/select.hpp"

namespace shortlist::cuda {

/// What a query brings to the test of a row, in units of the integer product; see docs/certified.md, section 9.
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

/// A batch of queries, as the filter reads them. Columns are queries; a tile of columns stays in shared memory.
struct filter_batch {
  const unsigned char* columns = nullptr;    ///< [tiles][chunks][tile][128] codes, see column_byte_at
  const core::query_terms* terms = nullptr;  ///< [padded to whole tiles]
  const filter_weights* weights = nullptr;   ///< [padded to whole tiles]
  std::int32_t count = 0;                    ///< queries
  std::int32_t tile = 0;                     ///< columns of a tile: one of kColumnTiles
  std::int32_t dim = 0;
};

/// Which row tiles of kFilterRows rows a launch visits: every `every`-th, or all but those.
struct tile_choice {
  std::uint32_t every = 1;
  bool others = false;
};

inline constexpr int kFilterRows = 64;
inline constexpr int kColumnTiles[] = {16, 64, 128, 256};

/// The widest tile of columns that fits shared memory at this dim; 0 if none does.
int widest_column_tile(std::int64_t dim);

/// For every query and block of 16 rows visited, the key (core::ascending_key) of the largest lower end of a row's
/// interval, or 0: maxima[query * blocks + i], i counting the blocks visited.
void launch_filter_sample(cudaStream_t stream, const core::flat_corpus& corpus, const filter_batch& batch,
                          tile_choice choice, std::uint32_t* maxima, std::int64_t blocks, int multiprocessors);

/// Appends core::row_key(key of the interval's upper end, position) to a query's list for every visited row whose upper
/// end may reach the target. Counts go on past the capacity; what does not fit is not stored.
void launch_filter(cudaStream_t stream, const core::flat_corpus& corpus, const filter_batch& batch, tile_choice choice,
                   const candidate_lists& lists, int multiprocessors);

/// How many row tiles a choice visits of a corpus.
std::int64_t tiles_visited(std::int64_t rows, tile_choice choice);

}  // namespace shortlist::cuda
