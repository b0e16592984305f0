// See sample_data.hpp.
#include "conformance/sample_data.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>

#include "conformance/sample_values.hpp"
#include "conformance/top_k_cases.hpp"

namespace shortlist::conformance {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr std::int64_t kBitsOfWord = 32;

template <class T, std::size_t Count>
T any_of(const T (&table)[Count], random_numbers& random) {
  return table[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(Count)))];
}

bool is_array(const sample_case& what, input::array parameter) {
  switch (named(kParameters, what.parameters).arrays) {
    case arrays_of::none: return false;
    case arrays_of::seeds: return parameter == input::seed || parameter == input::offset;
    case arrays_of::some: return (what.seed >> (parameter - input::temperature)) % 2 == 0;
    case arrays_of::all: return true;
  }
  return false;
}

void set_penalties(sample_row& row, const named_penalties& by) {
  row.repetition = by.repetition;
  row.presence = by.presence;
  row.frequency = by.frequency;
}

/// Makes one parameter what sample_params does not allow.
void spoil(sample_row& row, random_numbers& random) {
  constexpr float kNotTemperatures[] = {-1.0f, -1e-45f, kNan, kInf, -kInf};
  constexpr float kNotMinPs[] = {-1e-45f, 0x1.000002p+0f, kNan, kInf};
  constexpr float kNotRepetitions[] = {0.0f, -1.0f, kNan, kInf};
  constexpr float kNotFinite[] = {kNan, kInf, -kInf};
  switch (random.below(6)) {
    case 0: row.temperature = any_of(kNotTemperatures, random); break;
    case 1: row.top_p = kNan; break;
    case 2: row.min_p = any_of(kNotMinPs, random); break;
    case 3: row.repetition = any_of(kNotRepetitions, random); break;
    case 4: row.presence = any_of(kNotFinite, random); break;
    default: row.frequency = any_of(kNotFinite, random);
  }
}

/// The case's parameters for the first row, any for the others.
void choose_parameters(const sample_case& what, bool is_first, random_numbers& random, sample_row& row) {
  row.temperature = is_first ? what.temperature : any_of(kTemperatures, random);
  row.top_k = is_first ? what.top_k : top_k_of(any_of(kTopKs, random), what.vocab);
  row.top_p = is_first ? what.top_p : any_of(kTopPs, random);
  row.min_p = is_first ? what.min_p : any_of(kMinPs, random);
  row.seed = random.bits();
  row.offset = random.bits();
  set_penalties(row, is_first ? named(kPenalties, what.penalties) : any_of(kPenalties, random));
}

/// Half of the tokens are a few that repeat; some are outside of the vocabulary, and -1 fills up the end.
std::vector<std::int32_t> make_history(std::int64_t most, std::int64_t vocab, random_numbers& random) {
  constexpr std::int64_t kOften = 5;
  if (most <= 0) return {};
  const std::int32_t outside[] = {-1, std::numeric_limits<std::int32_t>::min(), static_cast<std::int32_t>(vocab),
                                  std::numeric_limits<std::int32_t>::max()};
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(random.one_in(4) ? random.below(most + 1) : most));
  for (std::int32_t& token : tokens) {
    token = random.one_in(8)
                ? any_of(outside, random)
                : static_cast<std::int32_t>(random.below(random.one_in(2) ? std::min(kOften, vocab) : vocab));
  }
  if (random.one_in(2)) std::fill(tokens.begin() + std::ssize(tokens) / 2, tokens.end(), -1);
  return tokens;
}

std::vector<float> make_bias(const sample_case& what, random_numbers& random) {
  const named_bias& wanted = named(kBiases, what.bias);
  if (!wanted.is_given) return {};
  std::vector<float> bias(static_cast<std::size_t>(what.vocab));
  for (float& value : bias) {
    value = random.one_in(2) ? 0.0f : static_cast<float>(2.0 * random.normal());
    if (wanted.has_infinities && random.one_in(6)) value = -kInf;
    if (wanted.has_infinities && random.one_in(2 * what.vocab)) value = kInf;
  }
  return bias;
}

/// In one row of five nothing is allowed, unless all rows share it.
std::vector<std::uint8_t> make_mask(const sample_case& what, random_numbers& random) {
  const named_mask& wanted = named(kMasks, what.mask);
  if (!wanted.is_given) return {};
  std::vector<std::uint8_t> allowed(static_cast<std::size_t>(what.vocab));
  if (!wanted.is_shared && random.one_in(5)) return allowed;
  const std::int64_t sparsity = random.one_in(2) ? 2 : 30;
  for (std::uint8_t& token : allowed)
    token = random.one_in(sparsity) ? static_cast<std::uint8_t>(1 + random.below(255)) : 0;
  return allowed;
}

void append_bytes(std::vector<std::byte>& to, const void* from, std::size_t bytes) {
  const auto* first = static_cast<const std::byte*>(from);
  to.insert(to.end(), first, first + bytes);
}
template <class T>
void append(std::vector<std::byte>& to, T value) {
  append_bytes(to, &value, sizeof(T));
}

/// Logits and their gaps; the poison would be drawn, or make the row NaN, if it were read.
std::vector<std::byte> logit_bytes(const sample_case& what, const std::vector<sample_row>& rows, std::int64_t first,
                                   random_numbers& random) {
  const std::int64_t size = size_bytes(what.type);
  const std::int64_t elements = first + what.rows * what.row_stride() - what.row_gap;
  std::vector<std::byte> bytes(static_cast<std::size_t>(elements * size));
  const auto store = [&](std::int64_t element, std::uint64_t bits) {
    std::memcpy(bytes.data() + element * size, &bits, static_cast<std::size_t>(size));
  };
  const std::uint64_t poison[] = {bits_of(std::nan(""), what.type, random), bits_of(HUGE_VAL, what.type, random),
                                  bits_of(largest_of(what.type), what.type, random)};
  for (std::int64_t i = 0; i < elements; ++i) store(i, poison[static_cast<std::size_t>(i) % std::size(poison)]);
  for (std::int64_t row = 0; row < what.rows; ++row) {
    for (std::int64_t token = 0; token < what.vocab; ++token) {
      store(first + row * what.row_stride() + token * what.col_stride,
            rows[static_cast<std::size_t>(row)].logits[static_cast<std::size_t>(token)]);
    }
  }
  return bytes;
}

/// Compressed rows, which begin after a token that is no row's.
void lay_out_tokens(const std::vector<sample_row>& rows, std::vector<std::int32_t> sample_row::*member,
                    std::vector<std::byte>& begins, std::vector<std::byte>& tokens) {
  constexpr std::int32_t kNoRows = 0;
  append(tokens, kNoRows);
  std::int64_t begin = 1;
  append(begins, begin);
  for (const sample_row& row : rows) {
    const std::vector<std::int32_t>& own = row.*member;
    append_bytes(tokens, own.data(), own.size() * sizeof(std::int32_t));
    begin += std::ssize(own);
    append(begins, begin);
  }
}

/// Elements of [rows, a stride] from element `first` on, each row as `fill` makes it; one row if they share it.
template <class T, class Fill>
std::int64_t lay_out_rows(const sample_case& what, bool is_shared, std::int64_t first, std::int64_t length, T poison,
                          random_numbers& random, std::vector<std::byte>& bytes, Fill fill) {
  const std::int64_t stride = length + random.below(4);
  const std::int64_t rows = is_shared ? 1 : what.rows;
  std::vector<T> elements(static_cast<std::size_t>(first + (rows - 1) * stride + length), poison);
  for (std::int64_t row = 0; row < rows; ++row) {
    fill(static_cast<std::size_t>(row), elements.data() + first + row * stride);
  }
  append_bytes(bytes, elements.data(), elements.size() * sizeof(T));
  return is_shared ? 0 : stride;
}

void lay_out_mask(const sample_case& what, const std::vector<sample_row>& rows, random_numbers& random,
                  sample_data& data) {
  const named_mask& wanted = named(kMasks, what.mask);
  std::vector<std::byte>& bytes = data.arrays[input::mask];
  data.common.allowed.kind = wanted.kind;
  if (wanted.kind == mask_kind::bytes) {
    data.common.allowed.row_stride = lay_out_rows<std::uint8_t>(
        what, wanted.is_shared, data.first, what.vocab, 0xFF, random, bytes,
        [&](std::size_t row, std::uint8_t* to) { std::copy(rows[row].allowed.begin(), rows[row].allowed.end(), to); });
    return;
  }
  const std::int64_t words = (what.vocab + kBitsOfWord - 1) / kBitsOfWord;
  data.common.allowed.row_stride = lay_out_rows<std::uint32_t>(
      what, wanted.is_shared, data.first, words, ~0u, random, bytes, [&](std::size_t row, std::uint32_t* to) {
        // Bits from the vocabulary's end on stay set.
        for (std::int64_t token = 0; token < what.vocab; ++token) {
          if (!rows[row].allowed[static_cast<std::size_t>(token)])
            to[token / kBitsOfWord] &= ~(1u << token % kBitsOfWord);
        }
      });
}

/// A parameter as an array, with poison in its place among the common ones; or as the common one.
template <class T>
void lay_out_parameter(const sample_case& what, const std::vector<sample_row>& rows, input::array parameter,
                       T sample_row::*member, T poison, std::vector<std::byte>& bytes, per_row<T>& common) {
  if (!is_array(what, parameter)) {
    common = rows.front().*member;
    return;
  }
  for (const sample_row& row : rows) append(bytes, row.*member);
  common = poison;
}

template <class T>
const T* as(void* address) {
  return static_cast<const T*>(address);
}

}  // namespace

std::vector<sample_row> make_rows(const sample_case& what) {
  random_numbers random(what.seed);
  const named_history& history = named(kHistories, what.history);
  const bool has_bad_rows = named(kParameters, what.parameters).has_bad_rows;
  std::vector<sample_row> rows(static_cast<std::size_t>(what.rows));
  row_numbers numbers;
  numbers.type = what.type;
  numbers.values.resize(static_cast<std::size_t>(what.vocab));
  for (numbers.index = 0; numbers.index < what.rows; ++numbers.index) {
    sample_row& row = rows[static_cast<std::size_t>(numbers.index)];
    fill_logits(what.distribution, numbers, random);
    for (const double value : numbers.values) row.logits.push_back(bits_of(value, what.type, random));
    choose_parameters(what, numbers.index == 0, random, row);
    if (has_bad_rows && (numbers.index == what.rows - 1 || random.one_in(4))) spoil(row, random);
    row.prompt = make_history(history.prompt, what.vocab, random);
    row.generated = make_history(history.generated, what.vocab, random);
    row.bias = make_bias(what, random);
    row.allowed = make_mask(what, random);
  }
  return rows;
}

sample_params sample_data::params_at(const addresses<input::kCount>& at) const {
  sample_params made = common;
  const auto point = [&]<class T>(per_row<T>& parameter, input::array array) { parameter.rows = as<T>(at[array]); };
  point(made.temperature, input::temperature);
  point(made.top_k, input::top_k);
  point(made.top_p, input::top_p);
  point(made.min_p, input::min_p);
  point(made.seed, input::seed);
  point(made.offset, input::offset);
  point(made.repetition_penalty, input::repetition);
  point(made.presence_penalty, input::presence);
  point(made.frequency_penalty, input::frequency);
  made.prompt = {as<std::int64_t>(at[input::prompt_begins]), as<std::int32_t>(at[input::prompt_tokens])};
  made.generated = {as<std::int64_t>(at[input::generated_begins]), as<std::int32_t>(at[input::generated_tokens])};
  if (at[input::bias]) made.bias.values = as<float>(at[input::bias]) + first;
  if (at[input::mask]) {
    const std::int64_t element = made.allowed.kind == mask_kind::bytes ? 1 : sizeof(std::uint32_t);
    made.allowed.data = as<std::byte>(at[input::mask]) + first * element;
  }
  return made;
}

value_matrix sample_data::logits_at(const addresses<input::kCount>& at) const {
  value_matrix made = logits;
  made.data = as<std::byte>(at[input::logits]) + first * size_bytes(logits.type);
  return made;
}

sample_data lay_out(const sample_case& what, const std::vector<sample_row>& rows) {
  random_numbers random(what.seed);
  sample_data data;
  byte_arrays<input::kCount>& arrays = data.arrays;
  sample_params& common = data.common;
  data.first = random.below(4);
  data.logits = {nullptr, what.type, what.rows, what.vocab, what.row_stride(), what.col_stride};
  arrays[input::logits] = logit_bytes(what, rows, data.first, random);

  const auto parameter = [&]<class T>(input::array which, T sample_row::*member, T poison, per_row<T>& into) {
    lay_out_parameter(what, rows, which, member, poison, arrays[which], into);
  };
  parameter(input::temperature, &sample_row::temperature, kNan, common.temperature);
  parameter(input::top_k, &sample_row::top_k, 1, common.top_k);
  parameter(input::top_p, &sample_row::top_p, kNan, common.top_p);
  parameter(input::min_p, &sample_row::min_p, kNan, common.min_p);
  parameter(input::seed, &sample_row::seed, std::uint64_t{1}, common.seed);
  parameter(input::offset, &sample_row::offset, std::uint64_t{1}, common.offset);
  parameter(input::repetition, &sample_row::repetition, kNan, common.repetition_penalty);
  parameter(input::presence, &sample_row::presence, kNan, common.presence_penalty);
  parameter(input::frequency, &sample_row::frequency, kNan, common.frequency_penalty);
  common.min_p_order = what.min_p_order == "first" ? min_p_order::first : min_p_order::last;

  const named_history& history = named(kHistories, what.history);
  if (history.prompt != named_history::kAbsent) {
    lay_out_tokens(rows, &sample_row::prompt, arrays[input::prompt_begins], arrays[input::prompt_tokens]);
  }
  if (history.generated != named_history::kAbsent) {
    lay_out_tokens(rows, &sample_row::generated, arrays[input::generated_begins], arrays[input::generated_tokens]);
  }
  if (const named_bias& bias = named(kBiases, what.bias); bias.is_given) {
    common.bias.row_stride = lay_out_rows<float>(
        what, bias.is_shared, data.first, what.vocab, kNan, random, arrays[input::bias],
        [&](std::size_t row, float* to) { std::copy(rows[row].bias.begin(), rows[row].bias.end(), to); });
  }
  if (named(kMasks, what.mask).is_given) lay_out_mask(what, rows, random, data);
  return data;
}

}  // namespace shortlist::conformance
