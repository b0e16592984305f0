// How an IVF-PQ search works: for now what tests force.
#include "core/ivf_pq_plan.hpp"

#include <cstdlib>
#include <string_view>

#include "core/message.hpp"

namespace shortlist::core {

bool decodes_all_rows() {
  constexpr const char* kVariable = "SHORTLIST_FORCE_IVF_PQ";
  const char* value = std::getenv(kVariable);
  if (!value || std::string_view(value) == "filter") return false;
  if (std::string_view(value) != "decode") throw_invalid(kVariable, std::string_view(value), "filter or decode");
  return true;
}

}  // namespace shortlist::core
