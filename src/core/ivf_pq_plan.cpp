// How an IVF-PQ search works: for now what tests force.
#include "core/ivf_pq_plan.hpp"

#include <charconv>
#include <cstdlib>
#include <string_view>

#include "core/message.hpp"

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

std::optional<std::int64_t> forced_hits() {
  constexpr const char* kVariable = "SHORTLIST_IVF_PQ_HITS";
  constexpr std::int64_t kMost = 16'384;
  const char* value = std::getenv(kVariable);
  if (!value) return std::nullopt;
  const std::string_view text(value);
  std::int64_t hits = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), hits);
  if (failure != std::errc{} || end != text.data() + text.size() || hits < 1 || hits > kMost) {
    throw_invalid(kVariable, text, "a number from 1 to 16384");
  }
  return hits;
}

}  // namespace shortlist::core
