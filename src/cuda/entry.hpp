// How the library finds its CUDA backend, which is a shared library of its own.
#pragma once

#include <string>

#include "core/backend.hpp"

namespace shortlist::cuda {

/// What libshortlist_cuda.so exports under the name `shortlist_cuda_entry`.
struct entry {
  int interface_version;                ///< kInterfaceVersion of the build that made it
  int (*device_count)();                ///< usable GPUs; throws cuda_error if the driver fails
  core::backend& (*open)(int ordinal);  ///< one object per GPU for the life of the process
};

/// Raised with every change of core::backend or of this struct.
inline constexpr int kInterfaceVersion = 5;

/// The backend's entry, or null with the reason in `why_not`.
const entry* find(std::string& why_not);

}  // namespace shortlist::cuda
