// One phase of a tiled search: score a range of rows against a batch of queries, and enter what may be among the best.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/backend.hpp"
#include "cuda/flat/select.hpp"

namespace shortlist::cuda {

/// How rows enter the candidate lists.
enum class phase_kind : std::uint8_t {
  dense,     ///< every row, at its place: the first phase, when nothing is known yet
  filtered,  ///< rows whose key reaches the query's least key, behind what is there
};

/// Queries of a batch and how they lie.
struct query_batch {
  const float* queries = nullptr;  ///< [count, dim]
  std::int64_t stride = 0;         ///< in elements
  std::int32_t count = 0;
  std::int32_t dim = 0;
};

struct score_phase {
  const core::flat_corpus* corpus = nullptr;
  query_batch batch;
  const float* prepared = nullptr;             ///< by launch_tiles_prepare; the stream needs none
  const float* query_inverse_norms = nullptr;  ///< [queries] under cosine
  candidate_lists lists;
  std::int64_t first_row = 0;
  std::int64_t row_count = 0;
  phase_kind kind = phase_kind::dense;
};

/// Queries are padded to whole tiles everywhere: prepared queries, inverse norms, least keys.
inline constexpr int kWideTile = 32;
inline constexpr int kNarrowTile = 16;

/// Tiles of rows x queries (tiles.cu); `tile_queries` is kWideTile or kNarrowTile. Prepared queries take
/// count, rounded up to whole tiles, x dim, rounded up to 128, floats.
void launch_tiles_prepare(cudaStream_t stream, const query_batch& batch, int tile_queries, float* prepared);
void launch_tiles_phase(cudaStream_t stream, const score_phase& phase, int tile_queries, int multiprocessors);

/// The stream of rows (tiles_stream.cu): at the speed of memory for as many queries as it can hold.
inline constexpr std::int64_t kMaxStreamQueries = 8;
bool stream_serves(std::int64_t queries, std::int64_t dim);
void launch_stream_phase(cudaStream_t stream, const score_phase& phase, int multiprocessors);

/// Teams of warps over resident queries (tiles_team.cu): more queries than the stream's, at dims that fit.
bool team_serves(std::int64_t queries, std::int64_t dim, element_type type);
void launch_team_phase(cudaStream_t stream, const score_phase& phase, int multiprocessors);

}  // namespace shortlist::cuda
