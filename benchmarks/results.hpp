// The records of a campaign: one a line of work, in the form of docs/benchmarks.md.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "shortlist/device.hpp"
#include "timing.hpp"

namespace shortlist::benchmark {

/// The job in the one form that all results of this project use: flat/q1/1000000x384/f32/ip/k8/host, then whatever
/// sets it apart ("cpu", "threads16", "all_equal").
std::string work_name(const search_shape& shape, std::string_view place, std::string_view apart = {});

struct measured {
  timing time;
  std::int64_t bytes = 0;  ///< rows read once, whatever the number of queries
  double limit_ms = 0;     ///< those bytes at the read bandwidth measured in this run
};

class results {
 public:
  /// Only work whose name contains `only` is wanted. Progress goes to stderr, a line for each record.
  explicit results(std::string only) : only_(std::move(only)) {}

  bool wants(std::string_view work) const { return work.find(only_) != std::string_view::npos; }

  /// A verified measurement; `more` adds fields of this kind of work. Where it names another record as
  /// "compared_with", this one's time over that one's is added as "ratio"; of "operations", so many a second as
  /// "tflop_per_s".
  void add(const std::string& work, const measured& m, const nlohmann::ordered_json& more = {});
  /// A wrong answer: no time is given, and the run fails.
  void add_wrong(const std::string& work, const std::string& difference);
  bool all_right() const { return all_right_; }
  const nlohmann::ordered_json& records() const { return records_; }

 private:
  /// The time of a record that stands already.
  std::optional<double> ms_of(const std::string& work) const;

  std::string only_;
  bool all_right_ = true;
  nlohmann::ordered_json records_ = nlohmann::ordered_json::array();
};

}  // namespace shortlist::benchmark
