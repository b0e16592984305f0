// IVF-PQ on CUDA devices.
#include "cuda/ivf_pq/ops.hpp"
#include "shortlist/error.hpp"

namespace shortlist::cuda {

std::unique_ptr<core::ivf_pq_ops> make_ivf_pq_ops(core::backend&, int) {
  throw unsupported("IVF-PQ is not there yet on CUDA devices");
}

}  // namespace shortlist::cuda
