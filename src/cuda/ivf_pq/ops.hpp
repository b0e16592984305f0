// IVF-PQ on CUDA devices.
#pragma once

#include <memory>

#include "core/ivf_pq.hpp"

namespace shortlist::cuda {

/// The ops of one GPU, whose backend outlives them.
std::unique_ptr<core::ivf_pq_ops> make_ivf_pq_ops(core::backend& backend, int ordinal);

}  // namespace shortlist::cuda
