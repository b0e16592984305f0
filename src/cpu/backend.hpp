// The CPU backend: memory of this process, no streams, every core.
#pragma once

#include "core/backend.hpp"

namespace shortlist::cpu {

/// The one CPU backend of the process. Its calls have finished when they return.
core::backend& cpu_backend();

}  // namespace shortlist::cpu
