// The exact search of many long rows. See filter_rows_kernel.cuh.
#include "cuda/top_k/filter_rows.hpp"
#include "cuda/top_k/filter_rows_kernel.cuh"
#include "cuda/top_k/filter_rows_kinds.hpp"

namespace shortlist::cuda {
namespace {

/// Whether two blocks of a multiprocessor have room for a row's list.
bool two_have_room(const core::top_k_request& request) {
  const std::int64_t capacity = filtering::capacity_for(request);
  return filtering::shared_bytes_of<filtering::row_result::by_column>(capacity) <= core::kResidentRowsMaxBytes;
}

}  // namespace

void launch_filter_rows(cudaStream_t stream, const core::top_k_request& request, int multiprocessors) {
  using namespace filtering;
  if (!request.options.sorted && !two_have_room(request))
    return launch_many_filter_rows(stream, request, multiprocessors);
  by_type_and_order(request, [&](auto stored, auto sorted) {
    constexpr auto kResult = sorted.value ? row_result::sorted : row_result::by_column;
    launch_filter_kernel<decltype(stored), kResult>(stream, request, multiprocessors);
  });
}

}  // namespace shortlist::cuda
