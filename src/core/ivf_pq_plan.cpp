// How an IVF-PQ search works: for now what tests force.
#include "core/ivf_pq_plan.hpp"

#include <cstdlib>
#include <string_view>

#include "core/message.hpp"
#include "core/plan_parts.hpp"

namespace shortlist::core {

std::optional<ivf_pq_way> forced_ivf_pq_way() {
  constexpr const char* kVariable = "SHORTLIST_FORCE_IVF_PQ";
  const char* value = std::getenv(kVariable);
  if (!value) return std::nullopt;
  const std::string_view name(value);
  if (name == "few") return ivf_pq_way::few;
  if (name == "filter") return ivf_pq_way::filter;
  if (name != "decode") throw_invalid(kVariable, name, "few, filter or decode");
  return ivf_pq_way::decode;
}

std::optional<std::int64_t> forced_hits() { return number_from("SHORTLIST_IVF_PQ_HITS", 1, 16'384); }

}  // namespace shortlist::core
