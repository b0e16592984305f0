// Which GPUs run code for sm_90a, which has instructions that Hopper alone knows.
#pragma once

namespace shortlist::cuda {

constexpr bool runs_hopper_code(int compute_capability) { return compute_capability == 9; }

}  // namespace shortlist::cuda
