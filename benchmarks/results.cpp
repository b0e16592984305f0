// The records of a campaign. See results.hpp.
#include "results.hpp"

#include <fmt/format.h>

namespace shortlist::benchmark {

std::string work_name(const search_shape& shape, std::string_view place, std::string_view apart) {
  const std::string_view by = shape.metric == metric::inner_product ? "ip" : to_string(shape.metric);
  return fmt::format("flat/q{}/{}x{}/{}/{}/k{}/{}{}{}", shape.queries, shape.rows, shape.dim, to_string(shape.type), by,
                     shape.k, place, apart.empty() ? "" : "/", apart);
}

void results::add(const std::string& work, const measured& m, const nlohmann::ordered_json& more) {
  const double ms = m.time.median_ms;
  nlohmann::ordered_json record = {{"work", work},
                                   {"ms", ms},
                                   {"min_ms", m.time.min_ms},
                                   {"runs", m.time.runs},
                                   {"bytes", m.bytes},
                                   {"gb_per_s", static_cast<double>(m.bytes) / (ms * 1e6)},
                                   {"limit_ms", m.limit_ms},
                                   {"share_of_limit", m.limit_ms / ms},
                                   {"verified", true},
                                   {"peers", nlohmann::ordered_json::object()}};
  if (more.is_object()) record.update(more);
  if (record.contains("compared_with")) {
    if (const auto base_ms = ms_of(record["compared_with"])) record["ratio"] = ms / *base_ms;
  }
  if (record.contains("operations")) record["tflop_per_s"] = record["operations"].get<double>() / (ms * 1e9);
  const std::string recall =
      record.contains("recall") ? fmt::format("  recall {:.4f}", record["recall"].get<double>()) : "";
  fmt::print(stderr, "{:<64} {:>11.4f} ms  {:>5.1f} % of the limit{}\n", work, ms, 100 * m.limit_ms / ms, recall);
  records_.push_back(std::move(record));
}

void results::add_wrong(const std::string& work, const std::string& difference) {
  all_right_ = false;
  fmt::print(stderr, "{:<64} WRONG: {}\n", work, difference);
  records_.push_back({{"work", work}, {"verified", false}, {"error", difference}});
}

std::optional<double> results::ms_of(const std::string& work) const {
  for (const auto& record : records_) {
    if (record["work"] == work && record.contains("ms")) return record["ms"].get<double>();
  }
  return std::nullopt;
}

}  // namespace shortlist::benchmark
