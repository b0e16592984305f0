#pragma once

namespace shortlist {

/// "0.1.0": of the library that is loaded, not of this header.
const char* version() noexcept;

}  // namespace shortlist
