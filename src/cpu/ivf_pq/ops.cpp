// IVF-PQ on the CPU.
#include "cpu/ivf_pq/ops.hpp"

#include "shortlist/error.hpp"

namespace shortlist::cpu {

core::ivf_pq_ops& ivf_pq() { throw unsupported("IVF-PQ is not there yet on the CPU"); }

}  // namespace shortlist::cpu
