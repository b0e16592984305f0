// See sample_harness.hpp.
#include "conformance/sample_harness.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <exception>
#include <stdexcept>

#include "cpu/isa.hpp"

namespace shortlist::conformance {
namespace {

constexpr std::int64_t kGuardBytes = 64;
constexpr std::byte kUnwritten{0xA5};

bool is_given(const sample_case& what, output::array array) {
  const named_answer& wanted = named(kAnswers, what.answer);
  switch (array) {
    case output::tokens: return true;
    case output::status: return wanted.status;
    case output::logprobs: return wanted.logprobs;
    case output::kept: return wanted.kept;
    case output::top_tokens: return wanted.top_tokens && what.top_n > 0;
    case output::top_logprobs: return wanted.top_logprobs && what.top_n > 0;
    case output::kCount: break;
  }
  return false;
}

sample_answer unwritten(const sample_case& what) {
  sample_answer answer;
  for (std::size_t i = 0; i < output::kCount; ++i) {
    const auto array = static_cast<output::array>(i);
    if (!is_given(what, array)) continue;
    const std::int64_t bytes = what.rows * entries_of(what, array) * entry_bytes(what, array);
    answer[i].assign(static_cast<std::size_t>(bytes + 2 * kGuardBytes), kUnwritten);
  }
  return answer;
}

sample_output output_at(const sample_case& what, const addresses<output::kCount>& at) {
  const auto inside = [&](output::array array) -> void* {
    return at[array] ? static_cast<std::byte*>(at[array]) + kGuardBytes : nullptr;
  };
  return {.tokens = inside(output::tokens),
          .tokens_as = named(kAnswers, what.answer).tokens_as,
          .status = static_cast<sample_status*>(inside(output::status)),
          .logprobs = static_cast<float*>(inside(output::logprobs)),
          .kept = static_cast<std::int32_t*>(inside(output::kept)),
          .top_n = what.top_n,
          .top_tokens = static_cast<std::int32_t*>(inside(output::top_tokens)),
          .top_logprobs = static_cast<float*>(inside(output::top_logprobs))};
}

template <std::size_t Count>
addresses<Count> addresses_of(byte_arrays<Count>& arrays) {
  addresses<Count> at{};
  for (std::size_t i = 0; i < Count; ++i) at[i] = arrays[i].empty() ? nullptr : arrays[i].data();
  return at;
}

/// The first array that differs; kCount if none does.
std::size_t first_changed(const byte_arrays<input::kCount>& now, const byte_arrays<input::kCount>& before) {
  return static_cast<std::size_t>(std::mismatch(now.begin(), now.end(), before.begin()).first - now.begin());
}

std::logic_error changed(std::string_view name) { return std::logic_error(fmt::format("input {} was changed", name)); }

sample_answer run_on_host(const sample_case& what, const sample_data& data) {
  sample_data used = data;
  sample_answer found = unwritten(what);
  const addresses<input::kCount> inputs = addresses_of(used.arrays);
  sample(stream(device::cpu()), data.logits_at(inputs), data.params_at(inputs), output_at(what, addresses_of(found)));
  const std::size_t at = first_changed(used.arrays, data.arrays);
  if (at != input::kCount) throw changed(input::kNames[at]);
  return found;
}

template <class T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

std::string entry_text(const sample_case& what, output::array array, const std::byte* from) {
  switch (array) {
    case output::status: return fmt::format("{}", load<std::uint8_t>(from));
    case output::logprobs:
    case output::top_logprobs: return fmt::format("{} ({:08X})", load<float>(from), load<std::uint32_t>(from));
    case output::tokens:
      if (entry_bytes(what, array) == sizeof(std::int64_t)) return fmt::format("{}", load<std::int64_t>(from));
      [[fallthrough]];
    default: return fmt::format("{}", load<std::int32_t>(from));
  }
}

/// Empty if an array is equal in both, else its first difference.
std::string difference_in(const sample_case& what, output::array array, const std::vector<std::byte>& found,
                          const std::vector<std::byte>& expected) {
  const std::string_view name = output::kNames[array];
  if (found.size() != expected.size())
    return fmt::format("{}: {} bytes; expected {}", name, found.size(), expected.size());
  const auto differs = std::mismatch(found.begin(), found.end(), expected.begin());
  if (differs.first == found.end()) return {};
  const std::int64_t byte = differs.first - found.begin() - kGuardBytes;
  const std::int64_t inside = std::ssize(found) - 2 * kGuardBytes;
  if (byte < 0 || byte >= inside) return fmt::format("{}: byte {} of {} was written", name, byte, inside);
  const std::int64_t size = entry_bytes(what, array);
  const std::int64_t entry = byte / size;
  const std::int64_t entries = entries_of(what, array);
  const std::int64_t at = kGuardBytes + entry * size;
  return fmt::format("{} row {} position {}: {}; expected {}", name, entry / entries, entry % entries,
                     entry_text(what, array, found.data() + at), entry_text(what, array, expected.data() + at));
}

}  // namespace

std::int64_t entries_of(const sample_case& what, output::array array) {
  return array == output::top_tokens || array == output::top_logprobs ? what.top_n : 1;
}

std::int64_t entry_bytes(const sample_case& what, output::array array) {
  if (array == output::status) return sizeof(sample_status);
  if (array == output::tokens && named(kAnswers, what.answer).tokens_as == index_type::i64) return sizeof(std::int64_t);
  return sizeof(std::int32_t);
}

std::vector<std::byte> row_bytes(const sample_case& what, const sample_answer& answer, output::array array,
                                 std::int64_t row) {
  const std::int64_t bytes = entries_of(what, array) * entry_bytes(what, array);
  const auto first = answer[array].begin() + kGuardBytes + row * bytes;
  return {first, first + bytes};
}

sample_answer expected_answer(const sample_case& what, const sample_data& data) {
  sample_data used = data;
  sample_answer expected = unwritten(what);
  const addresses<input::kCount> inputs = addresses_of(used.arrays);
  reference_sample(data.logits_at(inputs), data.params_at(inputs), output_at(what, addresses_of(expected)));
  return expected;
}

sample_on_device::sample_on_device(const sample_case& what, const sample_data& data, const stream& s)
    : what_(what), data_(data), stream_(s) {
  for (const std::vector<std::byte>& array : data.arrays) inputs_.push_back(std::make_unique<copy>(s, array));
  for (const std::vector<std::byte>& array : unwritten(what)) outputs_.push_back(std::make_unique<copy>(s, array));
}

void sample_on_device::upload(const sample_data& data) {
  for (std::size_t i = 0; i < input::kCount; ++i) {
    if (data.arrays[i].size() != data_.arrays[i].size()) throw std::logic_error("other data has other sizes");
    inputs_[i]->upload(stream_, data.arrays[i]);
  }
  const sample_answer empty = unwritten(what_);
  for (std::size_t i = 0; i < output::kCount; ++i) outputs_[i]->upload(stream_, empty[i]);
  data_ = data;
}

void sample_on_device::queue() {
  addresses<input::kCount> inputs{};
  addresses<output::kCount> outputs{};
  for (std::size_t i = 0; i < input::kCount; ++i) inputs[i] = inputs_[i]->data();
  for (std::size_t i = 0; i < output::kCount; ++i) outputs[i] = outputs_[i]->data();
  sample(stream_, data_.logits_at(inputs), data_.params_at(inputs), output_at(what_, outputs));
}

sample_answer sample_on_device::download() const {
  sample_answer found = unwritten(what_);
  for (std::size_t i = 0; i < output::kCount; ++i) outputs_[i]->download(stream_, found[i]);
  return found;
}

std::string sample_on_device::changed_input() const {
  byte_arrays<input::kCount> now = data_.arrays;
  for (std::size_t i = 0; i < input::kCount; ++i) inputs_[i]->download(stream_, now[i]);
  const std::size_t at = first_changed(now, data_.arrays);
  return at == input::kCount ? std::string() : std::string(input::kNames[at]);
}

sample_answer run_on_device(const sample_case& what, const sample_data& data, device where) {
  if (where.kind() == device_kind::cpu) return run_on_host(what, data);
  const stream s(where);
  sample_on_device arrays(what, data, s);
  arrays.queue();
  sample_answer found = arrays.download();
  if (const std::string name = arrays.changed_input(); !name.empty()) throw changed(name);
  return found;
}

std::string first_difference(const sample_case& what, const sample_answer& found, const sample_answer& expected) {
  for (const output::array array :
       {output::status, output::kept, output::tokens, output::logprobs, output::top_tokens, output::top_logprobs}) {
    std::string difference = difference_in(what, array, found[array], expected[array]);
    if (!difference.empty()) return difference;
  }
  return {};
}

std::string run_way(const sample_case& what, const sample_way& how, const sample_data& data,
                    const sample_answer& expected) {
  const forced_sample_way forced(how);
  std::string difference;
  try {
    difference = first_difference(what, run_on_device(what, data, how.where), expected);
  } catch (const std::exception& failure) {
    difference = std::string("threw: ") + failure.what();
  }
  if (difference.empty()) return {};
  return fmt::format("{}\n  {}=\"{}\" conformance_tests --gtest_filter='*Sample*EqualsTheReferenceToTheBit*'",
                     difference, kReplaySample, describe(what, how));
}

std::vector<sample_way> sample_ways_of(device where) {
  if (where.kind() != device_kind::cpu) {
    // Where an algorithm cannot take a step, forcing it runs another of the plan's. Forced, rows of an array of top_k
    // have launches of their own for each kind, and changed rows an overlay, however few they are.
    return {{where, "-", "plan"}, {where, "-", "stream_rows"}, {where, "-", "chip_rows"}, {where, "-", "memory_rows"}};
  }
  std::vector<sample_way> ways;
  for (const std::string_view isa : cpu::available_isas()) ways.push_back({where, std::string(isa), "plan"});
  return ways;
}

}  // namespace shortlist::conformance
