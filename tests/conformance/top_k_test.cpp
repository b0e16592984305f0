// Row-wise top k against the reference: types, shapes, options, strides, ragged rows and distributions, on every
// device, with every instruction set and algorithm. Every byte of every output is equal, and none beside it is touched.
//
// A case and the way it ran are one line of text, which every failure prints; with that line in
// SHORTLIST_REPLAY_TOP_K, EqualsTheReferenceToTheBit runs that one case alone.
#include "shortlist/top_k.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <tbb/global_control.h>
#include <tbb/parallel_for.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "conformance/harness.hpp"
#include "cpu/isa.hpp"
#include "reference/top_k.hpp"
#include "unit/core_environment.hpp"

namespace shortlist::conformance {
namespace {

constexpr const char* kForceTopK = "SHORTLIST_FORCE_TOP_K";
constexpr const char* kReplay = "SHORTLIST_REPLAY_TOP_K";

// A sanitizer makes everything slower, and looks for other faults than a wrong bit: it gets each fourth case.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::size_t kReducedStep = 4;
#else
constexpr std::size_t kReducedStep = 1;
#endif

// --- Values -----------------------------------------------------------------------------------------------------

/// The same numbers from a seed on every machine, which the standard library's distributions are not.
class random_numbers {
 public:
  explicit random_numbers(std::uint64_t seed) : bits_(seed) {}
  std::uint64_t bits() { return bits_(); }
  std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(n)); }
  bool one_in(std::int64_t n) { return below(n) == 0; }
  /// In [0, 1).
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  /// About normal: the sum of four uniform numbers, scaled to variance 1.
  double normal() { return (uniform() + uniform() + uniform() + uniform() - 2.0) * 1.7320508; }
  double sign() { return one_in(2) ? 1.0 : -1.0; }

 private:
  std::mt19937_64 bits_;
};

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

double largest_of(value_type type) {
  switch (type) {
    case value_type::f32: return std::numeric_limits<float>::max();
    case value_type::f16: return 65504.0;
    case value_type::bf16: return std::bit_cast<float>(0x7F7F0000u);
    case value_type::f64: return std::numeric_limits<double>::max();
  }
  return 0.0;
}

double smallest_denormal_of(value_type type) {
  switch (type) {
    case value_type::f32: return 0x1p-149;
    case value_type::f16: return 0x1p-24;
    case value_type::bf16: return 0x1p-133;
    case value_type::f64: return std::numeric_limits<double>::denorm_min();
  }
  return 0.0;
}

/// The distance from 1 to the next number.
double step_of(value_type type) {
  switch (type) {
    case value_type::f32: return 0x1p-23;
    case value_type::f16: return 0x1p-10;
    case value_type::bf16: return 0x1p-7;
    case value_type::f64: return 0x1p-52;
  }
  return 0.0;
}

/// The row that a distribution fills. A NaN gets its sign and payload when it is encoded.
struct row_numbers {
  value_type type = value_type::f32;
  std::int64_t index = 0;  ///< of the row
  std::vector<double> values;
};

void fill_normal(row_numbers& row, random_numbers& random) {
  for (double& value : row.values) value = random.normal();
}
void fill_uniform(row_numbers& row, random_numbers& random) {
  for (double& value : row.values) value = 2.0 * random.uniform() - 1.0;
}
void fill_lognormal(row_numbers& row, random_numbers& random) {
  for (double& value : row.values) value = std::exp2(2.0 * random.normal());
}
void fill_all_equal(row_numbers& row, random_numbers& random) {
  std::fill(row.values.begin(), row.values.end(), random.normal());
}
void fill_ties_90(row_numbers& row, random_numbers& random) {
  const double tied = random.normal();
  for (double& value : row.values) value = random.one_in(10) ? random.normal() : tied;
}
void fill_ascending(row_numbers& row, random_numbers&) {
  const auto cols = static_cast<double>(row.values.size());
  for (std::size_t i = 0; i < row.values.size(); ++i) row.values[i] = static_cast<double>(i) / cols - 0.5;
}
void fill_descending(row_numbers& row, random_numbers& random) {
  fill_ascending(row, random);
  std::reverse(row.values.begin(), row.values.end());
}
/// Values that differ in their last two bits only.
void fill_narrow_band(row_numbers& row, random_numbers& random) {
  const double step = step_of(row.type);
  for (double& value : row.values) value = 1.0 + static_cast<double>(random.below(4)) * step;
}
void fill_two_valued(row_numbers& row, random_numbers& random) {
  for (double& value : row.values) value = random.one_in(3) ? 0.75 : -0.25;
}
/// Zeros of both signs, with a few smallest numbers around them.
void fill_signed_zeros(row_numbers& row, random_numbers& random) {
  for (double& value : row.values) value = random.sign() * (random.one_in(8) ? smallest_denormal_of(row.type) : 0.0);
}
void fill_nan_anywhere(row_numbers& row, random_numbers& random) {
  for (double& value : row.values) value = random.one_in(16) ? kNan : random.normal();
}
/// Often fewer numbers than k.
void fill_mostly_nan(row_numbers& row, random_numbers& random) {
  for (double& value : row.values) value = random.one_in(16) ? random.normal() : kNan;
}
void fill_nan_only(row_numbers& row, random_numbers&) { std::fill(row.values.begin(), row.values.end(), kNan); }
void fill_nan_in_tenth_row(row_numbers& row, random_numbers& random) {
  fill_normal(row, random);
  const auto at = static_cast<std::size_t>(random.below(static_cast<std::int64_t>(row.values.size())));
  if (row.index % 10 == 0) row.values[at] = kNan;
}
void fill_infinities(row_numbers& row, random_numbers& random) {
  for (double& value : row.values) value = random.one_in(10) ? random.sign() * kInf : random.normal();
}
void fill_denormals(row_numbers& row, random_numbers& random) {
  for (double& value : row.values) {
    value = static_cast<double>(random.below(2001) - 1000) * smallest_denormal_of(row.type);
  }
}
void fill_one_huge(row_numbers& row, random_numbers& random) {
  fill_normal(row, random);
  const auto at = static_cast<std::size_t>(random.below(static_cast<std::int64_t>(row.values.size())));
  row.values[at] = random.sign() * largest_of(row.type);
}
/// Beyond the bracket of +-99999 that RTop-K's code starts with, where the type reaches that far.
void fill_beyond_99999(row_numbers& row, random_numbers& random) {
  const double limit = std::min(1e7, largest_of(row.type));
  for (double& value : row.values) value = limit * (2.0 * random.uniform() - 1.0);
}
/// Up to the largest numbers of both signs: sums and differences of two overflow.
void fill_overflowing(row_numbers& row, random_numbers& random) {
  for (double& value : row.values) value = random.sign() * (0.5 + 0.5 * random.uniform()) * largest_of(row.type);
}

struct named_fill {
  std::string_view name;
  void (*fill)(row_numbers&, random_numbers&);
};
constexpr named_fill kFills[] = {
    {"normal", fill_normal},
    {"uniform", fill_uniform},
    {"lognormal", fill_lognormal},
    {"all_equal", fill_all_equal},
    {"ties_90", fill_ties_90},
    {"ascending", fill_ascending},
    {"descending", fill_descending},
    {"narrow_band", fill_narrow_band},
    {"two_valued", fill_two_valued},
    {"signed_zeros", fill_signed_zeros},
    {"nan_anywhere", fill_nan_anywhere},
    {"mostly_nan", fill_mostly_nan},
    {"nan_only", fill_nan_only},
    {"nan_in_tenth_row", fill_nan_in_tenth_row},
    {"infinities", fill_infinities},
    {"denormals", fill_denormals},
    {"one_huge", fill_one_huge},
    {"beyond_99999", fill_beyond_99999},
    {"overflowing", fill_overflowing},
};

/// The bits of a number in a type, in the low bytes; a NaN may have any sign and payload, quiet or signalling.
std::uint64_t bits_of(double value, value_type type, random_numbers& random) {
  if (std::isnan(value)) {
    switch (type) {
      case value_type::f32: return (random.bits() & 0xFFFFFFFFu) | 0x7F800001u;
      case value_type::f16: return (random.bits() & 0xFFFFu) | 0x7C01u;
      case value_type::bf16: return (random.bits() & 0xFFFFu) | 0x7F81u;
      case value_type::f64: return random.bits() | 0x7FF0000000000001u;
    }
  }
  if (type == value_type::f64) return std::bit_cast<std::uint64_t>(value);
  const auto number = static_cast<float>(value);
  std::uint64_t bits = 0;
  constexpr element_type kAs[] = {element_type::f32, element_type::f16, element_type::bf16};
  encode(&number, 1, kAs[static_cast<std::size_t>(type)], reinterpret_cast<std::byte*>(&bits));
  return bits;
}

// --- Cases ------------------------------------------------------------------------------------------------------

struct named_mode {
  std::string_view name;
  std::optional<float> eps;
  std::optional<int> max_iter;
};
constexpr named_mode kModes[] = {
    {"exact", {}, {}},     {"eps_0", 0.0f, {}},   {"eps_1e-4", 1e-4f, {}}, {"eps_0.5", 0.5f, {}},
    {"max_iter_1", {}, 1}, {"max_iter_4", {}, 4}, {"max_iter_8", {}, 8},   {"max_iter_64", {}, 64},
};

struct named_outputs {
  std::string_view name;
  bool values;
  bool indices;
  index_type indices_as;
};
constexpr named_outputs kOutputs[] = {
    {"values+i64", true, true, index_type::i64}, {"values+i32", true, true, index_type::i32},
    {"values", true, false, index_type::i64},    {"i64", false, true, index_type::i64},
    {"i32", false, true, index_type::i32},       {"mask", false, false, index_type::i64},
};

/// Which of the arrays of ragged_rows are given.
struct named_ragged {
  std::string_view name;
  bool begins;
  bool ends;
};
constexpr named_ragged kRagged[] = {
    {"no", false, false}, {"borders", true, true}, {"lengths", false, true}, {"begins", true, false}};

template <class Named, std::size_t Count>
const Named& find(const Named (&table)[Count], std::string_view name) {
  for (const Named& entry : table) {
    if (entry.name == name) return entry;
  }
  throw std::invalid_argument("no choice is named " + std::string(name));
}

struct top_k_case {
  value_type type = value_type::f32;
  std::int64_t rows = 1;
  std::int64_t cols = 1;
  std::int64_t k = 1;
  shortlist::order order = order::largest;
  bool sorted = false;
  std::string_view mode = "exact";
  std::string_view outputs = "values+i64";
  std::int64_t row_gap = 0;  ///< elements from the last of a row to the first of the next
  std::int64_t col_stride = 1;
  std::string_view ragged = "no";
  std::string_view distribution = "normal";
  std::uint64_t seed = 1;

  top_k_options options() const {
    const named_mode& how = find(kModes, mode);
    return {.k = k, .order = order, .sorted = sorted, .eps = how.eps, .max_iter = how.max_iter};
  }
  std::int64_t row_stride() const { return (cols - 1) * col_stride + 1 + row_gap; }
};

struct top_k_way {
  device where = device::cpu();
  std::string isa = "-";           ///< on the CPU
  std::string algorithm = "plan";  ///< or what SHORTLIST_FORCE_TOP_K names
};

std::string describe(const top_k_case& what, const top_k_way& how) {
  return fmt::format(
      "op=top_k device={} isa={} algorithm={} type={} rows={} cols={} k={} order={} sorted={} mode={} outputs={} "
      "row_gap={} col_stride={} ragged={} distribution={} seed={}",
      how.where.name(), how.isa, how.algorithm, to_string(what.type), what.rows, what.cols, what.k,
      what.order == order::largest ? "largest" : "smallest", what.sorted ? 1 : 0, what.mode, what.outputs, what.row_gap,
      what.col_stride, what.ragged, what.distribution, what.seed);
}

std::pair<top_k_case, top_k_way> parse_case(const std::string& line) {
  std::map<std::string, std::string> fields;
  std::istringstream words{line};
  for (std::string word; words >> word;) {
    const std::size_t equals = word.find('=');
    if (equals == std::string::npos) throw std::invalid_argument("not name=value: " + word);
    fields[word.substr(0, equals)] = word.substr(equals + 1);
  }
  const auto field = [&](const char* name) -> const std::string& {
    const auto found = fields.find(name);
    if (found == fields.end()) throw std::invalid_argument(std::string("the line has no ") + name + "=");
    return found->second;
  };
  const auto number = [&](const char* name) { return std::stoll(field(name)); };
  top_k_case what;
  what.type = parse_value_type(field("type"));
  what.rows = number("rows");
  what.cols = number("cols");
  what.k = number("k");
  what.order = field("order") == "largest" ? order::largest : order::smallest;
  what.sorted = number("sorted") != 0;
  what.mode = find(kModes, field("mode")).name;
  what.outputs = find(kOutputs, field("outputs")).name;
  what.row_gap = number("row_gap");
  what.col_stride = number("col_stride");
  what.ragged = find(kRagged, field("ragged")).name;
  what.distribution = find(kFills, field("distribution")).name;
  what.seed = std::stoull(field("seed"));
  return {what, {device::parse(field("device")), field("isa"), field("algorithm")}};
}

// --- Data -------------------------------------------------------------------------------------------------------

/// A matrix in memory that ends with its last element, and whose every element beside the rows' own is poison.
struct matrix_data {
  std::vector<std::byte> bytes;
  std::int64_t first = 0;  ///< element of `bytes` where the matrix starts: its alignment is only that of its type
  std::vector<std::int64_t> begins;
  std::vector<std::int64_t> ends;
};

/// Some rows are empty, some are shorter than k, some are whole.
std::pair<std::int64_t, std::int64_t> random_borders(const top_k_case& what, random_numbers& random) {
  const named_ragged& ragged = find(kRagged, what.ragged);
  std::int64_t length = what.cols;
  switch (random.below(5)) {
    case 0: length = 0; break;
    case 1: length = random.below(what.k); break;
    case 2: break;
    default: length = 1 + random.below(what.cols);
  }
  if (!ragged.begins) return {0, ragged.ends ? length : what.cols};
  if (!ragged.ends) return {what.cols - length, what.cols};
  const std::int64_t begin = random.below(what.cols - length + 1);
  return {begin, begin + length};
}

matrix_data make_data(const top_k_case& what) {
  random_numbers random(what.seed);
  matrix_data data;
  data.first = random.below(4);
  const std::int64_t size = size_bytes(what.type);
  const std::int64_t elements = data.first + what.rows * what.row_stride() - what.row_gap;
  data.bytes.resize(static_cast<std::size_t>(elements * size));
  const auto store = [&](std::int64_t element, std::uint64_t bits) {
    std::memcpy(data.bytes.data() + element * size, &bits, static_cast<std::size_t>(size));
  };
  const double worst[] = {kNan, kInf, -kInf, largest_of(what.type), -largest_of(what.type)};
  std::vector<std::uint64_t> poison;
  for (const double value : worst) poison.push_back(bits_of(value, what.type, random));
  for (std::int64_t i = 0; i < elements; ++i) store(i, poison[static_cast<std::size_t>(i) % poison.size()]);

  row_numbers row;
  row.type = what.type;
  row.values.resize(static_cast<std::size_t>(what.cols));
  for (row.index = 0; row.index < what.rows; ++row.index) {
    find(kFills, what.distribution).fill(row, random);
    const auto [begin, end] = random_borders(what, random);
    for (std::int64_t column = begin; column < end; ++column) {
      store(data.first + row.index * what.row_stride() + column * what.col_stride,
            bits_of(row.values[static_cast<std::size_t>(column)], what.type, random));
    }
    if (find(kRagged, what.ragged).begins) data.begins.push_back(begin);
    if (find(kRagged, what.ragged).ends) data.ends.push_back(end);
  }
  return data;
}

value_matrix matrix_at(const top_k_case& what, const matrix_data& data, const void* bytes) {
  const std::int64_t offset = data.first * size_bytes(what.type);
  return {static_cast<const std::byte*>(bytes) + offset,
          what.type,
          what.rows,
          what.cols,
          what.row_stride(),
          what.col_stride};
}

const std::int64_t* pointer_to(const std::vector<std::int64_t>& borders) {
  return borders.empty() ? nullptr : borders.data();
}

/// The arrays of a top_k_output, each between two guards; those that a case does not ask for are empty.
constexpr std::int64_t kGuardBytes = 64;
constexpr std::byte kUnwritten{0xA5};

struct output_bytes {
  std::vector<std::byte> values;
  std::vector<std::byte> indices;
  std::vector<std::byte> mask;

  bool operator==(const output_bytes&) const = default;
};

std::int64_t index_bytes(const top_k_case& what) {
  return find(kOutputs, what.outputs).indices_as == index_type::i32 ? 4 : 8;
}

output_bytes unwritten(const top_k_case& what) {
  const named_outputs& wanted = find(kOutputs, what.outputs);
  const auto guarded = [](std::int64_t bytes) {
    return std::vector<std::byte>(static_cast<std::size_t>(bytes + 2 * kGuardBytes), kUnwritten);
  };
  output_bytes out;
  if (wanted.values) out.values = guarded(what.rows * what.k * size_bytes(what.type));
  if (wanted.indices) out.indices = guarded(what.rows * what.k * index_bytes(what));
  if (!wanted.values && !wanted.indices) out.mask = guarded(what.rows * what.cols);
  return out;
}

/// The output of rows from `row` on, in memory at these addresses; null stays null.
top_k_output output_at(const top_k_case& what, void* values, void* indices, void* mask, std::int64_t row = 0) {
  const auto inside = [](void* array, std::int64_t bytes) -> std::byte* {
    return array ? static_cast<std::byte*>(array) + kGuardBytes + bytes : nullptr;
  };
  return {.values = inside(values, row * what.k * size_bytes(what.type)),
          .indices = inside(indices, row * what.k * index_bytes(what)),
          .indices_as = find(kOutputs, what.outputs).indices_as,
          .mask = reinterpret_cast<std::uint8_t*>(inside(mask, row * what.cols))};
}

void* pointer_to(std::vector<std::byte>& bytes) { return bytes.empty() ? nullptr : bytes.data(); }

/// The reference's answer, row by row on all cores.
output_bytes expected_bytes(const top_k_case& what, const matrix_data& data) {
  output_bytes expected = unwritten(what);
  tbb::parallel_for(std::int64_t{0}, what.rows, [&](std::int64_t row) {
    value_matrix one = matrix_at(what, data, data.bytes.data());
    one.data = static_cast<const std::byte*>(one.data) + row * one.row_stride * size_bytes(one.type);
    one.rows = 1;
    const ragged_rows ragged{data.begins.empty() ? nullptr : data.begins.data() + row,
                             data.ends.empty() ? nullptr : data.ends.data() + row};
    reference::top_k(
        one, ragged, what.options(),
        output_at(what, pointer_to(expected.values), pointer_to(expected.indices), pointer_to(expected.mask), row));
  });
  return expected;
}

// --- Ways -------------------------------------------------------------------------------------------------------

output_bytes run_on_host(const top_k_case& what, const matrix_data& data) {
  output_bytes found = unwritten(what);
  top_k(stream(device::cpu()), matrix_at(what, data, data.bytes.data()), what.options(),
        output_at(what, pointer_to(found.values), pointer_to(found.indices), pointer_to(found.mask)),
        {pointer_to(data.begins), pointer_to(data.ends)});
  return found;
}

/// Copies of host arrays on a device, null where the host has none.
template <class T>
class on_device {
 public:
  on_device(const stream& s, const std::vector<T>& host)
      : copy_(s.where(), static_cast<std::int64_t>(host.size() * sizeof(T))) {
    if (!host.empty()) copy_.upload(s, host.data());
  }
  T* data() { return static_cast<T*>(copy_.data()); }
  void download(const stream& s, std::vector<T>& host) const {
    if (!host.empty()) copy_.download(s, host.data());
  }

 private:
  buffer copy_;
};

output_bytes run_on_device(const top_k_case& what, const matrix_data& data, device where) {
  if (where.kind() == device_kind::cpu) return run_on_host(what, data);
  const stream s(where);
  on_device<std::byte> bytes(s, data.bytes);
  on_device<std::int64_t> begins(s, data.begins);
  on_device<std::int64_t> ends(s, data.ends);
  output_bytes found = unwritten(what);
  on_device<std::byte> values(s, found.values);
  on_device<std::byte> indices(s, found.indices);
  on_device<std::byte> mask(s, found.mask);
  top_k(s, matrix_at(what, data, bytes.data()), what.options(),
        output_at(what, values.data(), indices.data(), mask.data()), {begins.data(), ends.data()});
  s.synchronize();
  values.download(s, found.values);
  indices.download(s, found.indices);
  mask.download(s, found.mask);
  return found;
}

std::string hex(const std::vector<std::byte>& bytes, std::int64_t at, std::int64_t size) {
  std::string text;
  for (std::int64_t i = size - 1; i >= 0; --i) {
    text += fmt::format("{:02X}", static_cast<unsigned>(bytes[static_cast<std::size_t>(at + i)]));
  }
  return text;
}

/// Empty if both are equal, else the first difference in an array of [rows, entries] elements.
std::string first_difference(std::string_view name, const std::vector<std::byte>& found,
                             const std::vector<std::byte>& expected, std::int64_t entries, std::int64_t size) {
  const auto differs = std::mismatch(found.begin(), found.end(), expected.begin(), expected.end());
  if (differs.first == found.end()) return {};
  const std::int64_t byte = differs.first - found.begin() - kGuardBytes;
  const std::int64_t inside = static_cast<std::int64_t>(found.size()) - 2 * kGuardBytes;
  if (byte < 0 || byte >= inside) return fmt::format("{}: byte {} of {} was written", name, byte, inside);
  const std::int64_t element = byte / size;
  const std::int64_t at = kGuardBytes + element * size;
  return fmt::format("{} row {} position {}: {}; expected {}", name, element / entries, element % entries,
                     hex(found, at, size), hex(expected, at, size));
}

std::string first_difference(const top_k_case& what, const output_bytes& found, const output_bytes& expected) {
  std::string difference = first_difference("indices", found.indices, expected.indices, what.k, index_bytes(what));
  if (difference.empty()) {
    difference = first_difference("values", found.values, expected.values, what.k, size_bytes(what.type));
  }
  if (difference.empty()) difference = first_difference("mask", found.mask, expected.mask, what.cols, 1);
  return difference;
}

/// Empty if the answer is the expected one, else what differs, with the line to replay it.
std::string run_way(const top_k_case& what, const top_k_way& how, const matrix_data& data,
                    const output_bytes& expected) {
  const forced_isa isa(how.isa);
  const test::environment_value algorithm(kForceTopK, how.algorithm == "plan" ? nullptr : how.algorithm.c_str());
  std::string difference;
  try {
    difference = first_difference(what, run_on_device(what, data, how.where), expected);
  } catch (const std::exception& failure) {
    difference = std::string("threw: ") + failure.what();
  }
  if (difference.empty()) return {};
  return fmt::format("{}\n  {}=\"{}\" conformance_tests --gtest_filter='*TopK*EqualsTheReference*'", difference,
                     kReplay, describe(what, how));
}

std::vector<top_k_way> ways_of(device where) {
  std::vector<std::string> isas{"-"};
  if (where.kind() == device_kind::cpu) {
    const auto available = cpu::available_isas();
    isas.assign(available.begin(), available.end());
  }
  std::vector<top_k_way> ways;
  for (const std::string& isa : isas) {
    for (const char* algorithm : {"whole_rows", "split_rows"}) ways.push_back({where, isa, algorithm});
  }
  ways.push_back({where, isas[0], "plan"});
  return ways;
}

// --- The choice of cases ----------------------------------------------------------------------------------------

constexpr value_type kTypes[] = {value_type::f32, value_type::f16, value_type::bf16, value_type::f64};
constexpr std::int64_t kRows[] = {1, 2, 3, 7, 33, 200, 2000};
constexpr std::int64_t kCols[] = {1,    2,    31,   32,   33,   255,  256,  257,   511,    512,    768,
                                  1000, 1024, 1025, 4096, 8191, 8192, 8193, 50000, 128256, 1000000};
constexpr std::int64_t kHalf = -1;
constexpr std::int64_t kAllButOne = -2;
constexpr std::int64_t kAll = -3;
constexpr std::int64_t kKs[] = {1, 2, 16, 31, 32, 33, 64, 128, kHalf, kAllButOne, kAll};
constexpr std::int64_t kRowGaps[] = {0, 1, 37};
constexpr std::int64_t kColStrides[] = {1, 1, 1, 2, 3};  // most cases have the stride that has kernels of its own

enum factor : std::size_t {
  type_,
  rows_,
  cols_,
  k_,
  order_,
  sorted_,
  mode_,
  outputs_,
  row_gap_,
  col_stride_,
  ragged_,
  distribution_,
  kFactors
};
using choice = std::array<std::size_t, kFactors>;  // an index of each factor's values
constexpr choice kCounts = {std::size(kTypes),
                            std::size(kRows),
                            std::size(kCols),
                            std::size(kKs),
                            2,
                            2,
                            std::size(kModes),
                            std::size(kOutputs),
                            std::size(kRowGaps),
                            std::size(kColStrides),
                            std::size(kRagged),
                            std::size(kFills)};

top_k_case case_of(const choice& at) {
  top_k_case what;
  what.type = kTypes[at[type_]];
  what.rows = kRows[at[rows_]];
  what.cols = kCols[at[cols_]];
  what.k = kKs[at[k_]];
  if (what.k == kHalf) what.k = std::max<std::int64_t>(what.cols / 2, 1);
  if (what.k == kAllButOne) what.k = what.cols - 1;
  if (what.k == kAll) what.k = what.cols;
  what.order = at[order_] == 0 ? order::largest : order::smallest;
  what.sorted = at[sorted_] != 0;
  what.mode = kModes[at[mode_]].name;
  what.outputs = kOutputs[at[outputs_]].name;
  what.row_gap = kRowGaps[at[row_gap_]];
  what.col_stride = kColStrides[at[col_stride_]];
  what.ragged = kRagged[at[ragged_]].name;
  what.distribution = kFills[at[distribution_]].name;
  return what;
}

bool is_allowed(const top_k_case& what, std::int64_t max_elements) {
  return what.k >= 1 && what.k <= what.cols && what.rows * what.cols <= max_elements &&
         (what.type != value_type::f64 || what.mode == "exact");
}

/// Cases that have every pair of values of any two factors that is allowed: of random completions of a pair that is
/// still open, the one that closes most others, and of those the cheapest.
class chooser {
 public:
  chooser(std::int64_t max_elements, std::uint64_t seed) : max_elements_(max_elements), random_(seed) {
    std::size_t values = 0;
    for (std::size_t f = 0; f < kFactors; ++f) {
      start_[f] = values;
      values += kCounts[f];
    }
    values_ = values;
    is_open_.assign(values * values, 0);
    for (std::size_t a = 0; a < kFactors; ++a) {
      for (std::size_t b = a + 1; b < kFactors; ++b) {
        for (std::size_t i = 0; i < kCounts[a]; ++i) {
          for (std::size_t j = 0; j < kCounts[b]; ++j) {
            open_.push_back({a, i, b, j});
            is_open(a, i, b, j) = 1;
          }
        }
      }
    }
    for (std::size_t i = open_.size(); i > 1; --i) {
      std::swap(open_[i - 1], open_[static_cast<std::size_t>(random_.below(static_cast<std::int64_t>(i)))]);
    }
  }

  std::vector<top_k_case> choose() {
    std::vector<top_k_case> cases;
    for (const open_pair& pair : open_) {
      choice best{};
      if (!is_open(pair.a, pair.i, pair.b, pair.j) || !best_choice(pair, best)) continue;
      close(best);
      top_k_case what = case_of(best);
      what.seed = random_.bits() % 1000000;
      cases.push_back(what);
    }
    return cases;
  }

 private:
  struct open_pair {
    std::size_t a, i, b, j;
  };

  char& is_open(std::size_t a, std::size_t i, std::size_t b, std::size_t j) {
    return is_open_[(start_[a] + i) * values_ + start_[b] + j];
  }

  std::int64_t open_pairs_of(const choice& at) {
    std::int64_t count = 0;
    for (std::size_t a = 0; a < kFactors; ++a) {
      for (std::size_t b = a + 1; b < kFactors; ++b) count += is_open(a, at[a], b, at[b]);
    }
    return count;
  }

  void close(const choice& at) {
    for (std::size_t a = 0; a < kFactors; ++a) {
      for (std::size_t b = a + 1; b < kFactors; ++b) is_open(a, at[a], b, at[b]) = 0;
    }
  }

  bool best_choice(const open_pair& pair, choice& best) {
    constexpr int kTries = 400;
    constexpr int kCandidates = 40;
    std::int64_t best_count = -1;
    std::int64_t best_elements = 0;
    int candidates = 0;
    for (int attempt = 0; attempt < kTries && candidates < kCandidates; ++attempt) {
      choice at{};
      for (std::size_t f = 0; f < kFactors; ++f) {
        at[f] = static_cast<std::size_t>(random_.below(static_cast<std::int64_t>(kCounts[f])));
      }
      at[pair.a] = pair.i;
      at[pair.b] = pair.j;
      const top_k_case what = case_of(at);
      if (!is_allowed(what, max_elements_)) continue;
      ++candidates;
      const std::int64_t count = open_pairs_of(at);
      const std::int64_t elements = what.rows * what.cols;
      if (count < best_count || (count == best_count && elements >= best_elements)) continue;
      best = at;
      best_count = count;
      best_elements = elements;
    }
    return candidates > 0;
  }

  std::int64_t max_elements_;
  random_numbers random_;
  choice start_{};
  std::size_t values_ = 0;
  std::vector<char> is_open_;
  std::vector<open_pair> open_;
};

constexpr std::int64_t kReducedElements = 2'000'000;
constexpr std::int64_t kFullElements = 26'000'000;
constexpr std::uint64_t kFullCoverings = 4;

std::vector<top_k_case> cases_of_this_run() {
  const settings& settings = run_settings();
  std::vector<top_k_case> cases;
  if (settings.full) {
    for (std::uint64_t i = 0; i < kFullCoverings; ++i) {
      const std::vector<top_k_case> more = chooser(kFullElements, settings.seed + i).choose();
      cases.insert(cases.end(), more.begin(), more.end());
    }
    return cases;
  }
  const std::vector<top_k_case> all = chooser(kReducedElements, settings.seed).choose();
  for (std::size_t i = 0; i < all.size(); i += kReducedStep) cases.push_back(all[i]);
  return cases;
}

// --- Tests --------------------------------------------------------------------------------------------------------

/// Runs on the CPU and on the first GPU; without one, or without the op on it, the GPU's half is skipped.
class TopKOnDevice : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::vector<device> all = device::all();
    const auto found =
        std::find_if(all.begin(), all.end(), [](const device& one) { return one.name().starts_with(GetParam()); });
    if (found == all.end()) GTEST_SKIP() << "no GPU";
    where_ = *found;
    try {
      const top_k_case smallest;
      run_on_device(smallest, make_data(smallest), where_);
    } catch (const unsupported& refusal) {
      GTEST_SKIP() << refusal.what();
    }
  }
  device where_ = device::cpu();
};
INSTANTIATE_TEST_SUITE_P(Devices, TopKOnDevice, testing::Values("cpu", "cuda"),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(TopKOnDevice, EqualsTheReferenceToTheBit) {
  if (const char* line = std::getenv(kReplay)) {
    const auto [what, how] = parse_case(line);
    if (how.where != where_) GTEST_SKIP() << "the line is of another device";
    const matrix_data data = make_data(what);
    const std::string failure = run_way(what, how, data, expected_bytes(what, data));
    EXPECT_TRUE(failure.empty()) << failure;
    return;
  }
  const settings& settings = run_settings();
  const std::vector<top_k_case> cases = cases_of_this_run();
  const std::vector<top_k_way> ways = ways_of(where_);
  const auto start = std::chrono::steady_clock::now();
  std::int64_t ran = 0;
  for (const top_k_case& what : cases) {
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    if (spent.count() > settings.max_seconds || ran == settings.max_cases) break;
    const matrix_data data = make_data(what);
    const output_bytes expected = expected_bytes(what, data);
    for (const top_k_way& how : ways) {
      const std::string failure = run_way(what, how, data, expected);
      EXPECT_TRUE(failure.empty()) << failure;
    }
    ++ran;
  }
  fmt::print("{} of {} cases, {} ways each\n", ran, cases.size(), ways.size());
}

/// Cases for the tests below: each type, both algorithms of section 9, whole and ragged rows.
std::vector<top_k_case> some_cases() {
  top_k_case plain{.rows = 65, .cols = 1000, .k = 64, .seed = 11};
  top_k_case halves{.type = value_type::f16, .rows = 33, .cols = 8193, .k = 33, .sorted = true, .seed = 12};
  halves.distribution = "narrow_band";
  top_k_case brains{.type = value_type::bf16, .rows = 200, .cols = 257, .k = 128, .ragged = "borders", .seed = 13};
  brains.distribution = "nan_anywhere";
  top_k_case doubles{.type = value_type::f64, .rows = 7, .cols = 4096, .k = 31, .outputs = "mask", .seed = 14};
  doubles.order = order::smallest;
  top_k_case eps{.rows = 100, .cols = 512, .k = 32, .mode = "eps_1e-4", .outputs = "values+i32", .seed = 15};
  top_k_case max_iter{.rows = 100, .cols = 768, .k = 16, .mode = "max_iter_4", .ragged = "lengths", .seed = 16};
  top_k_case long_rows{.rows = 2, .cols = 300000, .k = 100, .distribution = "ties_90", .seed = 17};
  return {plain, halves, brains, doubles, eps, max_iter, long_rows};
}

TEST_P(TopKOnDevice, RunAfterRunIsTheSame) {
  for (const top_k_way& how : ways_of(where_)) {
    const forced_isa isa(how.isa);
    const test::environment_value algorithm(kForceTopK, how.algorithm == "plan" ? nullptr : how.algorithm.c_str());
    for (const top_k_case& what : some_cases()) {
      const matrix_data data = make_data(what);
      const output_bytes first = run_on_device(what, data, where_);
      for (int again = 0; again < 3; ++again) {
        EXPECT_TRUE(run_on_device(what, data, where_) == first) << describe(what, how);
      }
    }
  }
}

/// Each thread has a stream of its own, and they meet in different cases all the time.
TEST_P(TopKOnDevice, TwoThreadsAtOnce) {
  const std::vector<top_k_case> cases = some_cases();
  std::vector<matrix_data> data;
  std::vector<output_bytes> expected;
  for (const top_k_case& what : cases) {
    data.push_back(make_data(what));
    expected.push_back(expected_bytes(what, data.back()));
  }
  for (const top_k_way& how : ways_of(where_)) {
    const forced_isa isa(how.isa);
    const test::environment_value algorithm(kForceTopK, how.algorithm == "plan" ? nullptr : how.algorithm.c_str());
    std::array<std::string, 2> failures;
    const auto work = [&](std::size_t thread) {
      for (std::size_t round = 0; round < 3 * cases.size(); ++round) {
        const std::size_t i = (round * (thread + 1) + thread) % cases.size();
        const std::string difference =
            first_difference(cases[i], run_on_device(cases[i], data[i], where_), expected[i]);
        if (!difference.empty()) failures[thread] = difference + " " + describe(cases[i], how);
      }
    };
    std::thread other(work, 1);
    work(0);
    other.join();
    for (const std::string& failure : failures) EXPECT_TRUE(failure.empty()) << failure;
  }
}

TEST(TopKThreads, AnyNumberGivesTheSame) {
  for (const top_k_case& what : some_cases()) {
    const matrix_data data = make_data(what);
    const output_bytes expected = expected_bytes(what, data);
    for (const std::size_t threads : {1, 2, 3, 8}) {
      const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, threads);
      for (const top_k_way& how : ways_of(device::cpu())) {
        const std::string failure = run_way(what, how, data, expected);
        EXPECT_TRUE(failure.empty()) << threads << " threads: " << failure;
      }
    }
  }
}

/// One ragged row whose neighbours to both sides are pages that must not even be read.
class fenced_row {
 public:
  static constexpr std::int64_t kPages = 3;  // the middle one is the row's

  fenced_row() : page_bytes_(sysconf(_SC_PAGESIZE)) {
    memory_ =
        mmap(nullptr, static_cast<std::size_t>(kPages * page_bytes_), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED || mprotect(row(), static_cast<std::size_t>(page_bytes_), PROT_READ | PROT_WRITE) != 0) {
      throw std::runtime_error("no memory for a fenced row");
    }
  }
  ~fenced_row() { munmap(memory_, static_cast<std::size_t>(kPages * page_bytes_)); }
  fenced_row(const fenced_row&) = delete;
  fenced_row& operator=(const fenced_row&) = delete;

  std::int64_t page_bytes() const { return page_bytes_; }
  std::byte* all() { return static_cast<std::byte*>(memory_); }
  std::byte* row() { return all() + page_bytes_; }

 private:
  std::int64_t page_bytes_;
  void* memory_ = nullptr;
};

TEST(TopKRaggedRows, ReadNothingOutsideTheirBorders) {
  fenced_row fence;
  for (const value_type type : kTypes) {
    for (const named_mode& mode : kModes) {
      top_k_case what{.type = type, .cols = fenced_row::kPages * fence.page_bytes() / size_bytes(type)};
      what.k = what.cols / 8;
      what.mode = mode.name;
      if (!is_allowed(what, what.cols)) continue;
      // At the start of the page, at its end, and all of it.
      const std::int64_t page = what.cols / fenced_row::kPages;
      const std::pair<std::int64_t, std::int64_t> borders[] = {
          {page, page + what.k + 3}, {2 * page - what.k - 5, 2 * page}, {page, 2 * page}};
      for (const auto& [begin, end] : borders) {
        random_numbers random(static_cast<std::uint64_t>(begin));
        for (std::int64_t i = 0; i < page; ++i) {
          const std::uint64_t bits = bits_of(random.normal(), type, random);
          std::memcpy(fence.row() + i * size_bytes(type), &bits, static_cast<std::size_t>(size_bytes(type)));
        }
        matrix_data data;
        data.begins = {begin};
        data.ends = {end};
        const value_matrix matrix = matrix_at(what, data, fence.all());
        std::vector<std::int64_t> expected(static_cast<std::size_t>(what.k), -2);
        reference::top_k(matrix, {&begin, &end}, what.options(), {.indices = expected.data()});
        for (const top_k_way& how : ways_of(device::cpu())) {
          const forced_isa isa(how.isa);
          const test::environment_value algorithm(kForceTopK,
                                                  how.algorithm == "plan" ? nullptr : how.algorithm.c_str());
          std::vector<std::int64_t> found(static_cast<std::size_t>(what.k), -2);
          top_k(stream(device::cpu()), matrix, what.options(), {.indices = found.data()}, {&begin, &end});
          EXPECT_EQ(found, expected) << begin << " to " << end << " of " << describe(what, how);
        }
      }
    }
  }
}

// The choice of cases is part of the promise: nothing that the tables name may be missing.
TEST(TopKCases, HaveEveryPairThatTheLimitsAllow) {
  const std::vector<top_k_case> cases = chooser(kReducedElements, run_settings().seed).choose();
  const auto holds = [&](auto&& condition) { return std::any_of(cases.begin(), cases.end(), condition); };
  for (const value_type type : kTypes) {
    for (const named_fill& fill : kFills) {
      EXPECT_TRUE(holds([&](const top_k_case& it) { return it.type == type && it.distribution == fill.name; }))
          << to_string(type) << " " << fill.name;
    }
    for (const std::int64_t cols : kCols) {
      EXPECT_TRUE(holds([&](const top_k_case& it) { return it.type == type && it.cols == cols; }))
          << to_string(type) << " " << cols;
    }
  }
  for (const named_mode& mode : kModes) {
    for (const std::int64_t cols : kCols) {
      EXPECT_TRUE(holds([&](const top_k_case& it) { return it.mode == mode.name && it.cols == cols; }))
          << mode.name << " " << cols;
    }
    for (const named_outputs& outputs : kOutputs) {
      EXPECT_TRUE(holds([&](const top_k_case& it) { return it.mode == mode.name && it.outputs == outputs.name; }))
          << mode.name << " " << outputs.name;
    }
  }
  for (const std::int64_t rows : kRows) {
    EXPECT_TRUE(holds([&](const top_k_case& it) { return it.rows == rows; })) << rows;
  }
  for (const std::int64_t k : {1, 2, 16, 31, 32, 33, 64, 128, 4096, 8191, 8192, 1000000}) {
    EXPECT_TRUE(holds([&](const top_k_case& it) { return it.k == k; })) << k;
  }
}

}  // namespace
}  // namespace shortlist::conformance
