// The version of the loaded library; the same number stands in CMakeLists.txt.
#include "shortlist/version.hpp"

namespace shortlist {

const char* version() noexcept { return "0.1.0"; }

}  // namespace shortlist
