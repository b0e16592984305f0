// One case of the conformance tests: data, a shape and a way to search, and the comparison with the reference.
//
// A case and a way are one line of text, which every failure prints and `--replay` takes.
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "conformance/distributions.hpp"
#include "reference/reference.hpp"
#include "shortlist/shortlist.hpp"

namespace shortlist::conformance {

/// What the command line and the environment ask for.
struct settings {
  bool full = false;
  double max_seconds = std::numeric_limits<double>::infinity();  ///< for the sampled cases; those left are reported
  std::int64_t max_cases = std::numeric_limits<std::int64_t>::max();
  std::uint64_t seed = 1;  ///< of the sample of cases
};
settings& run_settings();

/// Data and the question.
struct test_case {
  element_type type = element_type::f32;
  metric by = metric::inner_product;
  std::int64_t rows = 0;
  std::int64_t dim = 1;
  std::int64_t k = 1;
  std::int64_t queries = 1;
  std::string distribution = "normal";
  std::uint64_t seed = 1;
};

/// How it is searched.
struct way {
  device where = device::cpu();
  std::string isa;        ///< on the CPU, else "-"
  std::string algorithm;  ///< "scan", "tiles", "certified" (of an index with a plane), "certified_overflow" (the same,
                          ///< with lists of survivors that fill all the time), "certified_coarse" (on a GPU, one query
                          ///< by the plane's coarse copy), or "plan" for what the library chooses; with "_host"
                          ///< behind it, of an index whose rows lie in host memory
  std::string path;       ///< "host", "stream" (data on the device, added from there) or "workspace"
};

std::string describe(const test_case& what, const way& how);

/// A line of name=value words, as failures print it. @throws std::invalid_argument if a word or a name is not right.
class replay_line {
 public:
  explicit replay_line(std::string_view line);
  const std::string& operator[](const char* name) const;

 private:
  std::map<std::string, std::string> fields_;
};

/// Whether an index of this type may keep an int8 plane.
bool has_planes(element_type type);
/// What an index must keep for an algorithm.
storage storage_for(const std::string& algorithm);

/// Sets SHORTLIST_FORCE_FLAT_SEARCH, and the room for survivors, for as long as it lives; "plan" unsets both. Of a
/// way's algorithm it takes what is before "_host".
class forced_algorithm {
 public:
  explicit forced_algorithm(const std::string& of_way);
  ~forced_algorithm();
  forced_algorithm(const forced_algorithm&) = delete;
  forced_algorithm& operator=(const forced_algorithm&) = delete;
};

/// Sets the instruction set of the CPU backend for as long as it lives; "-" changes nothing.
class forced_isa {
 public:
  explicit forced_isa(const std::string& name);
  ~forced_isa();
  forced_isa(const forced_isa&) = delete;
  forced_isa& operator=(const forced_isa&) = delete;

 private:
  std::string before_;
};

/// The reference's lists, padded to k.
search_result expected_result(const dataset& data, metric by, std::int64_t k,
                              const std::vector<std::int64_t>& ids = {});

/// Empty if both are equal to the bit, else the first difference: query, position, and both values with their bits.
std::string first_difference(const search_result& found, const search_result& expected);

/// A search whose queries and results lie on the device.
search_result search_on_device(const flat_index& index, const stream& s, workspace* scratch,
                               matrix_view<const float> queries, std::int64_t k);

/// Copies rows to the device and adds them from there.
void add_from_device(flat_index& index, const stream& s, any_matrix_view rows);

/// Searches in one way; empty if the answer is the expected one, else what differs, with the line to replay it.
std::string run_way(const test_case& what, const way& how, const dataset& data, const search_result& expected);

/// Searches in every way that this machine has and reports each failure to GoogleTest. Returns the number of ways.
std::int64_t run_case(const test_case& what);

/// Runs the one case that a failure printed; prints what happened and returns the exit code.
int replay(std::string_view line);

}  // namespace shortlist::conformance
