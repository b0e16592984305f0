#include "cpu/sample/sample.hpp"

#include "shortlist/error.hpp"

namespace shortlist::cpu {

void sample(const core::sample_request&) { throw unsupported("sampling on the CPU"); }

}  // namespace shortlist::cpu
