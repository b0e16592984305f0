// See top_k_harness.hpp.
#include "conformance/top_k_harness.hpp"

#include <fmt/format.h>
#include <tbb/parallel_for.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>
#include <utility>

#include "conformance/top_k_values.hpp"
#include "cpu/isa.hpp"
#include "reference/top_k.hpp"

namespace shortlist::conformance {
namespace {

constexpr std::int64_t kGuardBytes = 64;
constexpr std::byte kUnwritten{0xA5};

/// Where the matrix starts, the first that a case's random numbers decide.
std::int64_t random_first(random_numbers& random) { return random.below(4); }

/// Some rows are empty, some are shorter than k, some are whole.
std::pair<std::int64_t, std::int64_t> random_borders(const top_k_case& what, random_numbers& random) {
  const named_ragged& ragged = named(kRagged, what.ragged);
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

std::int64_t index_bytes(const top_k_case& what) {
  return named(kOutputs, what.outputs).indices_as == index_type::i32 ? 4 : 8;
}

output_bytes unwritten(const top_k_case& what) {
  const named_outputs& wanted = named(kOutputs, what.outputs);
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
          .indices_as = named(kOutputs, what.outputs).indices_as,
          .mask = reinterpret_cast<std::uint8_t*>(inside(mask, row * what.cols))};
}

void* pointer_to(std::vector<std::byte>& bytes) { return bytes.empty() ? nullptr : bytes.data(); }

output_bytes run_on_host(const top_k_case& what, const matrix_data& data) {
  output_bytes found = unwritten(what);
  top_k(stream(device::cpu()), matrix_at(what, data, data.bytes.data()), what.options(),
        output_at(what, pointer_to(found.values), pointer_to(found.indices), pointer_to(found.mask)),
        {pointer_to(data.begins), pointer_to(data.ends)});
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

}  // namespace

matrix_data make_data(const top_k_case& what) {
  random_numbers random(what.seed);
  matrix_data data;
  data.first = random_first(random);
  const std::int64_t size = size_bytes(what.type);
  const std::int64_t elements = data.first + what.rows * what.row_stride() - what.row_gap;
  data.bytes.resize(static_cast<std::size_t>(elements * size));
  const auto store = [&](std::int64_t element, std::uint64_t bits) {
    std::memcpy(data.bytes.data() + element * size, &bits, static_cast<std::size_t>(size));
  };
  const double worst[] = {std::nan(""), HUGE_VAL, -HUGE_VAL, largest_of(what.type), -largest_of(what.type)};
  std::vector<std::uint64_t> poison;
  for (const double value : worst) poison.push_back(bits_of(value, what.type, random));
  for (std::int64_t i = 0; i < elements; ++i) store(i, poison[static_cast<std::size_t>(i) % poison.size()]);

  row_numbers row;
  row.type = what.type;
  row.values.resize(static_cast<std::size_t>(what.cols));
  for (row.index = 0; row.index < what.rows; ++row.index) {
    fill_row(what.distribution, row, random);
    const auto [begin, end] = random_borders(what, random);
    for (std::int64_t column = begin; column < end; ++column) {
      store(data.first + row.index * what.row_stride() + column * what.col_stride,
            bits_of(row.values[static_cast<std::size_t>(column)], what.type, random));
    }
    if (named(kRagged, what.ragged).begins) data.begins.push_back(begin);
    if (named(kRagged, what.ragged).ends) data.ends.push_back(end);
  }
  return data;
}

std::uint64_t seed_that_begins_at(std::int64_t first, std::uint64_t seed) {
  for (;; ++seed) {
    random_numbers random(seed);
    if (random_first(random) == first) return seed;
  }
}

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

device_arrays::device_arrays(const top_k_case& what, const matrix_data& data, const stream& s)
    : what_(what),
      stream_(s),
      bytes_(s, data.bytes),
      begins_(s, data.begins),
      ends_(s, data.ends),
      unwritten_(unwritten(what)),
      values_(s, unwritten_.values),
      indices_(s, unwritten_.indices),
      mask_(s, unwritten_.mask),
      matrix_(matrix_at(what, data, bytes_.data())) {}

void device_arrays::upload(const matrix_data& data) {
  bytes_.upload(stream_, data.bytes);
  begins_.upload(stream_, data.begins);
  ends_.upload(stream_, data.ends);
  values_.upload(stream_, unwritten_.values);
  indices_.upload(stream_, unwritten_.indices);
  mask_.upload(stream_, unwritten_.mask);
}

void device_arrays::queue() {
  top_k(stream_, matrix_, what_.options(), output_at(what_, values_.data(), indices_.data(), mask_.data()),
        {begins_.data(), ends_.data()});
}

output_bytes device_arrays::download() const {
  output_bytes found = unwritten_;
  values_.download(stream_, found.values);
  indices_.download(stream_, found.indices);
  mask_.download(stream_, found.mask);
  return found;
}

output_bytes run_on_device(const top_k_case& what, const matrix_data& data, device where) {
  if (where.kind() == device_kind::cpu) return run_on_host(what, data);
  const stream s(where);
  device_arrays arrays(what, data, s);
  arrays.queue();
  return arrays.download();
}

std::string first_difference(const top_k_case& what, const output_bytes& found, const output_bytes& expected) {
  std::string difference = first_difference("indices", found.indices, expected.indices, what.k, index_bytes(what));
  if (difference.empty()) {
    difference = first_difference("values", found.values, expected.values, what.k, size_bytes(what.type));
  }
  if (difference.empty()) difference = first_difference("mask", found.mask, expected.mask, what.cols, 1);
  return difference;
}

std::string run_way(const top_k_case& what, const top_k_way& how, const matrix_data& data,
                    const output_bytes& expected) {
  const forced_way forced(how);
  std::string difference;
  try {
    difference = first_difference(what, run_on_device(what, data, how.where), expected);
  } catch (const std::exception& failure) {
    difference = std::string("threw: ") + failure.what();
  }
  if (difference.empty()) return {};
  return fmt::format("{}\n  {}=\"{}\" conformance_tests --gtest_filter='*TopK*EqualsTheReferenceToTheBit*'", difference,
                     kReplayTopK, describe(what, how));
}

std::vector<top_k_way> ways_of(device where) {
  std::vector<top_k_way> ways;
  if (where.kind() != device_kind::cpu) {
    for (const char* algorithm : kGpuWays) ways.push_back({where, "-", algorithm});
    return ways;
  }
  const auto isas = cpu::available_isas();
  for (const auto& isa : isas) {
    for (const char* algorithm : {"whole_rows", "split_rows"}) ways.push_back({where, std::string(isa), algorithm});
  }
  ways.push_back({where, std::string(isas[0]), "plan"});
  return ways;
}

std::string algorithm_of(const top_k_case& what, device where) {
  constexpr std::string_view kBefore = "algorithm:  ";
  const named_outputs& wanted = named(kOutputs, what.outputs);
  const std::string text = explain(where, top_k_shape{.rows = what.rows,
                                                      .cols = what.cols,
                                                      .k = what.k,
                                                      .type = what.type,
                                                      .early_stop = what.mode != "exact",
                                                      .sorted = what.sorted,
                                                      .mask = !wanted.values && !wanted.indices,
                                                      .indices_as = wanted.indices_as,
                                                      .col_stride = what.col_stride});
  const std::size_t begin = text.find(kBefore) + kBefore.size();
  return text.substr(begin, text.find('\n', begin) - begin);
}

bool takes(const top_k_way& how, const top_k_case& what) {
  if (how.algorithm == "plan" || how.where.kind() == device_kind::cpu) return true;
  const forced_way forced(how);
  return algorithm_of(what, how.where) == how.algorithm;
}

std::vector<top_k_way> ways_for(const top_k_case& what, device where) {
  std::vector<top_k_way> ways = ways_of(where);
  std::erase_if(ways, [&](const top_k_way& how) { return !takes(how, what); });
  return ways;
}

}  // namespace shortlist::conformance
