#include "cuda/sample/sample_rows.hpp"

#include "shortlist/error.hpp"

namespace shortlist::cuda {

void launch_sample_rows(cudaStream_t, const core::sample_request&) { throw unsupported("sampling on a GPU"); }

}  // namespace shortlist::cuda
