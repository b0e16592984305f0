// The exact search of few long rows. See stream_rows_kernel.cuh.
#include <algorithm>
#include <cstdint>

#include "cuda/top_k/stream_launch.cuh"
#include "cuda/top_k/stream_rows.hpp"

namespace shortlist::cuda {
namespace {

using namespace streaming;

template <class Stored>
void launch_type(cudaStream_t stream, const core::top_k_request& request, int multiprocessors) {
  const std::int64_t rows = request.matrix.rows;
  const stream_launch<Stored, usual_form, row_goal::exact> launch_usual(stream, request, multiprocessors);
  const std::int64_t resident = launch_usual.resident();
  // Rows that fill the GPU take a block each; those left over share it, if they are so few.
  const std::int64_t full = rows / resident * resident;
  const std::int64_t left = rows - full;
  const std::int64_t shared = std::min(left * most_team(request), resident);
  if (shared <= left) return launch_usual(0, rows, rows);
  if (full > 0) launch_usual(0, full, full);
  launch_shared(launch_usual, stream, request, multiprocessors, full, left, shared);
}

}  // namespace

void launch_stream_rows(cudaStream_t stream, const core::top_k_request& request, int multiprocessors) {
  by_stored_type(request.matrix.type,
                 [&](auto stored) { launch_type<decltype(stored)>(stream, request, multiprocessors); });
}

}  // namespace shortlist::cuda
