// IVF-PQ on the CPU.
#pragma once

#include "core/ivf_pq.hpp"

namespace shortlist::cpu {

core::ivf_pq_ops& ivf_pq();

}  // namespace shortlist::cpu
