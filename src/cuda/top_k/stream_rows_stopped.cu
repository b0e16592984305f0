// Early stops of few long rows. See stream_rows_kernel.cuh.
#include <algorithm>
#include <cstdint>

#include "cuda/top_k/stream_launch.cuh"
#include "cuda/top_k/stream_rows.hpp"

namespace shortlist::cuda {
namespace {

using namespace streaming;

/// Early stops: at most so many rows at a time that each has a team of several blocks.
template <class Stored, row_goal Goal>
void launch_stops(cudaStream_t stream, const core::top_k_request& request, int multiprocessors) {
  constexpr std::int64_t kLeastTeam = 2;
  const stream_launch<Stored, usual_form, Goal> launch_usual(stream, request, multiprocessors);
  const std::int64_t resident = launch_usual.resident();
  const std::int64_t most = std::max(kLeastTeam, most_team(request));
  for (std::int64_t first = 0, rows; first < request.matrix.rows; first += rows) {
    rows = std::min(request.matrix.rows - first, resident / kLeastTeam);
    launch_shared(launch_usual, stream, request, multiprocessors, first, rows, std::min(rows * most, resident));
  }
}

}  // namespace

void launch_stopped_stream_rows(cudaStream_t stream, const core::top_k_request& request, int multiprocessors) {
  by_stored_type(request.matrix.type, [&](auto stored) {
    if (request.options.order == order::largest)
      launch_stops<decltype(stored), row_goal::stopped_largest>(stream, request, multiprocessors);
    else
      launch_stops<decltype(stored), row_goal::stopped_smallest>(stream, request, multiprocessors);
  });
}

}  // namespace shortlist::cuda
