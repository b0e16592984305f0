// What the machine has, for the device class.
#pragma once

namespace shortlist {

/// Usable GPUs; 0 without a CUDA backend or a working driver.
int gpu_count();
/// @throws unsupported if no GPU can be used, with the reason; invalid_argument if there are others than this one.
void require_gpu(int ordinal);

}  // namespace shortlist
