#include "conformance/harness.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <tbb/parallel_for.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <map>
#include <sstream>
#include <stdexcept>

#include "cpu/isa.hpp"

namespace shortlist::conformance {
namespace {

constexpr const char* kForceVariable = "SHORTLIST_FORCE_FLAT_SEARCH";
constexpr const char* kSurvivorsVariable = "SHORTLIST_CERTIFIED_SURVIVORS";
constexpr const char* kCodesVariable = "SHORTLIST_CERTIFIED_CODES";
constexpr const char* kOverflow = "certified_overflow";
constexpr const char* kCoarse = "certified_coarse";
constexpr std::string_view kHost = "_host";

std::string with_bits(float value) { return fmt::format("{} ({:08X})", value, std::bit_cast<std::uint32_t>(value)); }

/// Room for an answer, filled with what no search may leave behind.
search_result unanswered(std::int64_t queries, std::int64_t k) {
  search_result result;
  result.queries = queries;
  result.k = k;
  result.scores.assign(static_cast<std::size_t>(queries * k), 12345.0f);
  result.ids.assign(static_cast<std::size_t>(queries * k), -2);
  return result;
}

void add_from_host(flat_index& index, const dataset& data, std::int64_t calls) {
  const std::int64_t row_bytes = data.row_stride * size_bytes(data.type);
  for (std::int64_t call = 0; call < calls; ++call) {
    const std::int64_t first = data.rows * call / calls;
    const std::int64_t count = data.rows * (call + 1) / calls - first;
    index.add(any_matrix_view(data.row_data.data() + first * row_bytes, data.type, count, data.dim, data.row_stride));
  }
}

search_result search_on_host(const flat_index& index, const dataset& data, std::int64_t k, bool into_arrays) {
  if (!into_arrays) return index.search(data.query_view(), {.k = k});
  search_result found = unanswered(data.queries, k);
  found.k_found = index.search(data.query_view(), {.k = k}, {found.scores.data(), found.ids.data()});
  return found;
}

search_result search_in_way(const test_case& what, const way& how, const dataset& data) {
  const forced_isa isa(how.isa);
  const forced_algorithm algorithm(how.algorithm);
  flat_index index(how.where,
                   {.dim = what.dim, .metric = what.by, .type = what.type, .storage = storage_for(how.algorithm)});
  if (how.path == "host") {
    add_from_host(index, data, 1 + static_cast<std::int64_t>(what.seed % 3));
    return search_on_host(index, data, what.k, what.seed % 2 == 1);
  }
  const stream s(how.where);
  if (how.path == "stream") {
    add_from_device(index, s, data.row_view());
    return search_on_device(index, s, nullptr, data.query_view(), what.k);
  }
  if (how.path != "workspace") throw std::invalid_argument("no path is named " + how.path);
  add_from_host(index, data, 1);
  workspace scratch(how.where,
                    {.max_rows = std::max<std::int64_t>(what.rows, 1), .max_queries = what.queries, .max_k = what.k});
  return search_on_device(index, s, &scratch, data.query_view(), what.k);
}

std::vector<way> ways_of_this_machine(const test_case& what) {
  std::vector<way> ways;
  for (const device& where : device::all()) {
    std::vector<std::string> isas{"-"};
    if (where.kind() == device_kind::cpu) {
      const auto available = cpu::available_isas();
      isas.assign(available.begin(), available.end());
    }
    for (const std::string& isa : isas) {
      for (const char* algorithm : {"scan", "tiles"}) ways.push_back({where, isa, algorithm, "host"});
      if (!has_planes(what.type)) continue;
      for (const char* algorithm : {"certified", kOverflow}) ways.push_back({where, isa, algorithm, "host"});
      if (where.kind() == device_kind::cpu) continue;  // whose rows are in host memory in any case
      for (const char* algorithm : {kCoarse, "certified_host", "scan_host", "tiles_host"}) {
        ways.push_back({where, isa, algorithm, "host"});
      }
    }
    // Data on the device: the forced algorithms and the planned one in turn, with the best instruction set.
    std::vector<std::string> algorithms{"scan", "tiles", "plan"};
    if (has_planes(what.type)) algorithms.emplace_back("certified");
    if (has_planes(what.type) && where.kind() != device_kind::cpu) algorithms.emplace_back("certified_host");
    ways.push_back({where, isas[0], algorithms[what.seed % algorithms.size()], "stream"});
    ways.push_back({where, isas[0], algorithms[(what.seed + 1) % algorithms.size()], "workspace"});
  }
  return ways;
}

dataset data_of(const test_case& what) {
  return make_dataset(what.type, what.distribution, what.rows, what.dim, what.queries, what.seed);
}

}  // namespace

settings& run_settings() {
  static settings value;
  return value;
}

std::string describe(const test_case& what, const way& how) {
  return fmt::format(
      "op=flat_search device={} isa={} algorithm={} path={} type={} metric={} rows={} dim={} k={} queries={} "
      "distribution={} seed={}",
      how.where.name(), how.isa, how.algorithm, how.path, to_string(what.type), to_string(what.by), what.rows, what.dim,
      what.k, what.queries, what.distribution, what.seed);
}

bool has_planes(element_type type) { return size_bytes(type) > 1; }

storage storage_for(const std::string& algorithm) {
  if (algorithm.ends_with(kHost)) return storage::int8_and_host;
  return algorithm.starts_with("certified") ? storage::int8_and_full : storage::full;
}

forced_algorithm::forced_algorithm(const std::string& of_way) {
  const std::string name = of_way.substr(0, of_way.size() - (of_way.ends_with(kHost) ? kHost.size() : 0));
  if (name == "plan") {
    unsetenv(kForceVariable);
  } else {
    setenv(kForceVariable, name.starts_with("certified") ? "certified" : name.c_str(), 1);
  }
  if (name == kOverflow) setenv(kSurvivorsVariable, "1", 1);
  if (name == kCoarse) setenv(kCodesVariable, "coarse", 1);
}
forced_algorithm::~forced_algorithm() {
  unsetenv(kForceVariable);
  unsetenv(kSurvivorsVariable);
  unsetenv(kCodesVariable);
}

forced_isa::forced_isa(const std::string& name) : before_(cpu::to_string(cpu::current_isa())) {
  if (name != "-") cpu::force_isa(name);
}
forced_isa::~forced_isa() { cpu::force_isa(before_); }

search_result expected_result(const dataset& data, metric by, std::int64_t k, const std::vector<std::int64_t>& ids) {
  search_result expected = unanswered(data.queries, k);
  expected.k_found = std::min(k, data.rows);
  const float worst =
      by == metric::l2 ? std::numeric_limits<float>::infinity() : -std::numeric_limits<float>::infinity();
  std::fill(expected.scores.begin(), expected.scores.end(), worst);
  std::fill(expected.ids.begin(), expected.ids.end(), -1);
  tbb::parallel_for(std::int64_t{0}, data.queries, [&](std::int64_t query) {
    const std::vector<reference::hit> hits = reference::search(data.row_view(), data.query(query), by, k);
    for (std::size_t i = 0; i < hits.size(); ++i) {
      const std::size_t at = static_cast<std::size_t>(query * k) + i;
      expected.scores[at] = hits[i].score;
      expected.ids[at] = ids.empty() ? hits[i].position : ids[static_cast<std::size_t>(hits[i].position)];
    }
  });
  return expected;
}

std::string first_difference(const search_result& found, const search_result& expected) {
  if (found.queries != expected.queries || found.k != expected.k || found.k_found != expected.k_found ||
      found.scores.size() != expected.scores.size() || found.ids.size() != expected.ids.size()) {
    return fmt::format("queries {}, k {}, k_found {} with {} scores and {} ids; expected {}, {}, {} with {} and {}",
                       found.queries, found.k, found.k_found, found.scores.size(), found.ids.size(), expected.queries,
                       expected.k, expected.k_found, expected.scores.size(), expected.ids.size());
  }
  for (std::size_t i = 0; i < expected.ids.size(); ++i) {
    const bool same_bits =
        std::bit_cast<std::uint32_t>(found.scores[i]) == std::bit_cast<std::uint32_t>(expected.scores[i]);
    if (same_bits && found.ids[i] == expected.ids[i]) continue;
    const auto k = static_cast<std::size_t>(expected.k);
    return fmt::format("query {} position {}: id {} score {}; expected id {} score {}", i / k, i % k, found.ids[i],
                       with_bits(found.scores[i]), expected.ids[i], with_bits(expected.scores[i]));
  }
  return {};
}

search_result search_on_device(const flat_index& index, const stream& s, workspace* scratch,
                               matrix_view<const float> queries, std::int64_t k) {
  const device where = s.where();
  buffer device_queries(where, queries.rows * queries.row_stride * size_bytes(element_type::f32));
  device_queries.upload(s, queries.data);
  const matrix_view<const float> view(static_cast<const float*>(device_queries.data()), queries.rows, queries.cols,
                                      queries.row_stride);
  search_result found = unanswered(queries.rows, k);
  buffer scores(where, queries.rows * k * static_cast<std::int64_t>(sizeof(float)));
  buffer ids(where, queries.rows * k * static_cast<std::int64_t>(sizeof(std::int64_t)));
  const search_output out{static_cast<float*>(scores.data()), static_cast<std::int64_t*>(ids.data())};
  found.k_found = scratch ? index.search(s, *scratch, view, {.k = k}, out) : index.search(s, view, {.k = k}, out);
  s.synchronize();
  scores.download(s, found.scores.data());
  ids.download(s, found.ids.data());
  return found;
}

void add_from_device(flat_index& index, const stream& s, any_matrix_view rows) {
  if (rows.rows == 0) return;
  buffer copy(s.where(), rows.rows * rows.row_stride * size_bytes(rows.type));
  copy.upload(s, rows.data);
  index.add(s, any_matrix_view(copy.data(), rows.type, rows.rows, rows.cols, rows.row_stride));
}

std::string run_way(const test_case& what, const way& how, const dataset& data, const search_result& expected) {
  std::string difference;
  try {
    difference = first_difference(search_in_way(what, how, data), expected);
  } catch (const std::exception& failure) {
    difference = std::string("threw: ") + failure.what();
  }
  if (difference.empty()) return {};
  return difference + "\n  conformance_tests --replay \"" + describe(what, how) + "\"";
}

std::int64_t run_case(const test_case& what) {
  const dataset data = data_of(what);
  const search_result expected = expected_result(data, what.by, what.k);
  const std::vector<way> ways = ways_of_this_machine(what);
  for (const way& how : ways) {
    const std::string failure = run_way(what, how, data, expected);
    EXPECT_TRUE(failure.empty()) << failure;
  }
  return static_cast<std::int64_t>(ways.size());
}

replay_line::replay_line(std::string_view line) {
  std::istringstream words{std::string(line)};
  for (std::string word; words >> word;) {
    const std::size_t equals = word.find('=');
    if (equals == std::string::npos) throw std::invalid_argument("not name=value: " + word);
    fields_[word.substr(0, equals)] = word.substr(equals + 1);
  }
}

const std::string& replay_line::operator[](const char* name) const {
  const auto found = fields_.find(name);
  if (found == fields_.end()) throw std::invalid_argument(std::string("the line has no ") + name + "=");
  return found->second;
}

int replay(std::string_view line) {
  const replay_line fields(line);
  const auto field = [&](const char* name) -> const std::string& { return fields[name]; };
  const test_case what{.type = parse_element_type(field("type")),
                       .by = parse_metric(field("metric")),
                       .rows = std::stoll(field("rows")),
                       .dim = std::stoll(field("dim")),
                       .k = std::stoll(field("k")),
                       .queries = std::stoll(field("queries")),
                       .distribution = field("distribution"),
                       .seed = std::stoull(field("seed"))};
  const way how{device::parse(field("device")), field("isa"), field("algorithm"), field("path")};
  const dataset data = data_of(what);
  const std::string failure = run_way(what, how, data, expected_result(data, what.by, what.k));
  fmt::print("{}\n", failure.empty() ? "equal to the reference: " + describe(what, how) : failure);
  return failure.empty() ? 0 : 1;
}

}  // namespace shortlist::conformance
