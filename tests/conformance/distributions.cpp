// See distributions.hpp. A distribution is a function that fills one row (or query) with numbers; a shared step encodes
// them as the element type.
#include "conformance/distributions.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

namespace shortlist::conformance {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

/// splitmix64: small, quick, and the same everywhere, which the standard library's distributions are not.
class random_bits {
 public:
  explicit random_bits(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(n)); }
  /// In [0, 1).
  float uniform() { return static_cast<float>(next() >> 40) * 0x1p-24f; }
  /// About normal: the sum of four uniform numbers, scaled to variance 1.
  float normal() {
    const std::uint64_t bits = next();
    const std::uint64_t sum = (bits & 0xFFFF) + ((bits >> 16) & 0xFFFF) + ((bits >> 32) & 0xFFFF) + (bits >> 48);
    return (static_cast<float>(sum) - 131070.0f) * 2.6429e-5f;
  }
  bool one_in(std::int64_t n) { return below(n) == 0; }

 private:
  std::uint64_t state_;
};

/// What a distribution knows when it fills a row.
struct place {
  element_type type = element_type::f32;
  bool is_query = false;
  std::int64_t index = 0;  ///< of the row or query
  std::int64_t count = 0;  ///< of rows or queries
  std::int64_t dim = 0;
};

bool is_integer(element_type type) { return type == element_type::i8 || type == element_type::u8; }

/// The middle and the spread of ordinary numbers of a type.
float center_of(element_type type) { return type == element_type::u8 ? 128.0f : 0.0f; }
float spread_of(element_type type) { return is_integer(type) ? 40.0f : 1.0f; }

float largest_of(element_type type) {
  switch (type) {
    case element_type::f32: return std::numeric_limits<float>::max();
    case element_type::f16: return 65504.0f;
    case element_type::bf16: return std::bit_cast<float>(0x7F7F0000u);
    case element_type::i8: return 127.0f;
    case element_type::u8: return 255.0f;
  }
  return 0.0f;
}

float smallest_denormal_of(element_type type) {
  if (type == element_type::f16) return 0x1p-24f;
  if (type == element_type::bf16) return 0x1p-133f;
  return 0x1p-149f;
}

using numbers = std::vector<float>;
using fill_function = void (*)(const place&, random_bits&, numbers&);

void fill_normal(const place& at, random_bits& random, numbers& out) {
  for (float& value : out) value = center_of(at.type) + spread_of(at.type) * random.normal();
}

void fill_uniform(const place& at, random_bits& random, numbers& out) {
  const bool bytes = is_integer(at.type);
  for (float& value : out) {
    value = bytes ? 256.0f * random.uniform() - (at.type == element_type::i8 ? 128.0f : 0.0f)
                  : 2.0f * random.uniform() - 1.0f;
  }
}

void fill_all_equal(const place& at, random_bits& random, numbers& out) {
  if (at.is_query) return fill_normal(at, random, out);
  std::fill(out.begin(), out.end(), is_integer(at.type) ? 7.0f : 0.375f);
}

/// Nine rows of ten are the same one.
void fill_ties_90(const place& at, random_bits& random, numbers& out) {
  if (at.is_query || random.one_in(10)) return fill_normal(at, random, out);
  random_bits same(12345);
  fill_normal(at, same, out);
}

/// Scores rise with the position, slowly enough for ties in narrow types. The query points along element 0 from beyond
/// the last row, so that this holds for all metrics (for cosine from dim 2 on).
void fill_ramp(const place& at, random_bits& random, numbers& out, float position) {
  const float unit = is_integer(at.type) ? 30.0f : 1.0f;
  if (at.is_query) {
    std::fill(out.begin(), out.end(), unit / 64);
    out[0] = unit * (8.0f + random.uniform());
  } else {
    std::fill(out.begin(), out.end(), is_integer(at.type) ? 2.0f : 0.0625f);
    out[0] = 4.0f * unit * position;
  }
}
void fill_ascending(const place& at, random_bits& random, numbers& out) {
  fill_ramp(at, random, out, static_cast<float>(at.index) / static_cast<float>(at.count));
}
void fill_descending(const place& at, random_bits& random, numbers& out) {
  fill_ramp(at, random, out, static_cast<float>(at.count - at.index) / static_cast<float>(at.count));
}

/// Elements that differ in their last bits only.
void fill_narrow_band(const place& at, random_bits& random, numbers& out) {
  if (is_integer(at.type)) {
    for (float& value : out) value = static_cast<float>(100 + random.below(2));
    return;
  }
  const float step = at.type == element_type::f32 ? 0x1p-23f : at.type == element_type::f16 ? 0x1p-10f : 0x1p-7f;
  for (float& value : out) value = 1.0f + static_cast<float>(random.below(4)) * step;
}

/// Ordinary rows, of which about a quarter have an element of `special()`.
template <class Special>
void fill_with_specials(const place& at, random_bits& random, numbers& out, Special special) {
  fill_normal(at, random, out);
  const bool has_special = at.is_query ? at.index % 3 == 2 : random.one_in(4);
  if (!has_special || (is_integer(at.type) && !at.is_query)) return;
  const std::int64_t how_many = 1 + random.below(2);
  for (std::int64_t i = 0; i < how_many; ++i) out[static_cast<std::size_t>(random.below(at.dim))] = special();
}

void fill_infinities(const place& at, random_bits& random, numbers& out) {
  fill_with_specials(at, random, out, [&] { return random.one_in(2) ? kInf : -kInf; });
}

/// NaN with any sign and payload, quiet and signalling.
float any_nan(random_bits& random) {
  const auto bits = static_cast<std::uint32_t>(random.next());
  return std::bit_cast<float>(bits | 0x7F800000u | 0x00010000u);
}
void fill_nans(const place& at, random_bits& random, numbers& out) {
  fill_with_specials(at, random, out, [&] { return any_nan(random); });
}
void fill_all_nan(const place& at, random_bits& random, numbers& out) {
  fill_normal(at, random, out);
  if (!at.is_query) out[static_cast<std::size_t>(random.below(at.dim))] = any_nan(random);
}

void fill_denormals(const place& at, random_bits& random, numbers& out) {
  if (at.is_query && at.index % 2 == 0) return fill_normal(at, random, out);
  for (float& value : out) value = static_cast<float>(random.below(2001) - 1000) * smallest_denormal_of(at.type);
}

/// One element of one row is the largest number of its type, or for integers every element of that row is.
void fill_one_huge(const place& at, random_bits& random, numbers& out) {
  fill_normal(at, random, out);
  if (at.is_query || at.index != at.count / 2) return;
  if (is_integer(at.type)) return std::fill(out.begin(), out.end(), largest_of(at.type));
  out[static_cast<std::size_t>(random.below(at.dim))] = largest_of(at.type);
}

/// Exponents over most of the range.
void fill_mixed_magnitudes(const place& at, random_bits& random, numbers& out) {
  const std::int64_t range = at.type == element_type::f16 ? 14 : 60;
  for (float& value : out) value = std::ldexp(random.normal(), static_cast<int>(random.below(2 * range + 1) - range));
}

/// Zeros of both signs, and numbers whose products underflow to zeros of both signs.
void fill_signed_zeros(const place& at, random_bits& random, numbers& out) {
  const float tiny = at.is_query ? 0x1p-130f : at.type == element_type::f16 ? 0x1p-24f : 0x1p-80f;
  const float choice[] = {0.0f, -0.0f, tiny, -tiny};
  for (float& value : out) value = choice[random.below(4)];
  if (at.is_query && at.index % 4 == 3) std::fill(out.begin(), out.end(), -0.0f);
}

/// Three rows of ten are zero vectors, and so is each fourth query.
void fill_zero_vectors(const place& at, random_bits& random, numbers& out) {
  fill_normal(at, random, out);
  const bool zero = at.is_query ? at.index % 4 == 1 : random.below(10) < 3;
  if (zero) std::fill(out.begin(), out.end(), random.one_in(2) ? 0.0f : -0.0f);
}

/// All rows are close to one point, closer than eight bits can tell.
void fill_one_cluster(const place& at, random_bits& random, numbers& out) {
  if (at.is_query) return fill_normal(at, random, out);
  const float noise = is_integer(at.type) ? 1.0f : at.type == element_type::f32 ? 1e-4f : 2e-2f;
  for (float& value : out) value = (is_integer(at.type) ? 100.0f : 1.0f) + noise * random.normal();
}

/// One element of eight is not zero.
void fill_sparse(const place& at, random_bits& random, numbers& out) {
  fill_normal(at, random, out);
  for (float& value : out) value = random.one_in(8) ? value : 0.0f;
}

/// A few elements dwarf the others.
void fill_heavy_tailed(const place& at, random_bits& random, numbers& out) {
  for (float& value : out) {
    const float normal = random.normal();
    value = center_of(at.type) + spread_of(at.type) * normal * normal * normal * normal * normal / 16.0f;
  }
}

/// Eight vectors, of which every row and query is one.
void fill_query_duplicates(const place& at, random_bits&, numbers& out) {
  random_bits same(static_cast<std::uint64_t>(777 + at.index % 8));
  fill_normal(at, same, out);
}

struct named_fill {
  std::string_view name;
  fill_function fill;
  bool for_integers;
};

constexpr named_fill kFills[] = {
    {"normal", fill_normal, true},
    {"uniform", fill_uniform, true},
    {"all_equal", fill_all_equal, true},
    {"ties_90", fill_ties_90, true},
    {"ascending", fill_ascending, true},
    {"descending", fill_descending, true},
    {"narrow_band", fill_narrow_band, true},
    {"infinities", fill_infinities, true},  // integers: in the queries
    {"nans", fill_nans, true},              // the same
    {"all_nan", fill_all_nan, false},
    {"denormals", fill_denormals, false},
    {"one_huge", fill_one_huge, true},
    {"mixed_magnitudes", fill_mixed_magnitudes, false},
    {"signed_zeros", fill_signed_zeros, false},
    {"zero_vectors", fill_zero_vectors, true},
    {"one_cluster", fill_one_cluster, true},
    {"sparse", fill_sparse, true},
    {"heavy_tailed", fill_heavy_tailed, true},
    {"query_duplicates", fill_query_duplicates, true},
};

const named_fill& find_fill(std::string_view name) {
  for (const named_fill& fill : kFills) {
    if (fill.name == name) return fill;
  }
  throw std::invalid_argument("no distribution is named " + std::string(name));
}

/// fp32 to fp16, cut off towards zero; a NaN stays one.
std::uint16_t half_bits(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<std::uint16_t>(sign | 0x7C00u | ((bits >> 13) & 0x3FFu) | 1u);
  if (magnitude == 0x7F800000u) return static_cast<std::uint16_t>(sign | 0x7C00u);
  if (magnitude >= 0x47800000u) return static_cast<std::uint16_t>(sign | 0x7BFFu);  // 65536 and more: the largest
  if (magnitude >= 0x38800000u) return static_cast<std::uint16_t>(sign | ((magnitude - 0x38000000u) >> 13));
  return static_cast<std::uint16_t>(sign | static_cast<std::uint32_t>(std::fabs(value) * 0x1p24f));
}

/// fp32 to bf16, cut off; a NaN stays one.
std::uint16_t brain_bits(float value) {
  const auto upper = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
  return std::isnan(value) ? static_cast<std::uint16_t>(upper | 0x0001u) : upper;
}

template <class T, class Convert>
void encode_as(const float* from, std::int64_t count, std::byte* to, Convert convert) {
  for (std::int64_t i = 0; i < count; ++i) {
    const T element = convert(from[i]);
    std::memcpy(to + i * static_cast<std::int64_t>(sizeof(T)), &element, sizeof(T));
  }
}

}  // namespace

void encode(const float* from, std::int64_t count, element_type type, std::byte* to) {
  switch (type) {
    case element_type::f32: return encode_as<float>(from, count, to, [](float v) { return v; });
    case element_type::f16: return encode_as<std::uint16_t>(from, count, to, half_bits);
    case element_type::bf16: return encode_as<std::uint16_t>(from, count, to, brain_bits);
    case element_type::i8:
      return encode_as<std::int8_t>(from, count, to, [](float v) {
        return static_cast<std::int8_t>(std::clamp(std::floor(v), -128.0f, 127.0f));
      });
    case element_type::u8:
      return encode_as<std::uint8_t>(
          from, count, to, [](float v) { return static_cast<std::uint8_t>(std::clamp(std::floor(v), 0.0f, 255.0f)); });
  }
}

const std::vector<std::string_view>& distributions() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> all;
    for (const named_fill& fill : kFills) all.push_back(fill.name);
    return all;
  }();
  return names;
}

bool is_meaningful(std::string_view distribution, element_type type) {
  return !is_integer(type) || find_fill(distribution).for_integers;
}

dataset make_dataset(element_type type, std::string_view distribution, std::int64_t rows, std::int64_t dim,
                     std::int64_t queries, std::uint64_t seed) {
  const fill_function fill = find_fill(distribution).fill;
  random_bits random(seed);
  dataset data;
  data.type = type;
  data.rows = rows;
  data.dim = dim;
  data.queries = queries;
  data.row_stride = dim + (random.one_in(3) ? 1 + random.below(5) : 0);
  data.query_stride = dim + (random.one_in(3) ? 1 + random.below(5) : 0);

  const std::int64_t row_bytes = data.row_stride * size_bytes(type);
  data.row_data.assign(static_cast<std::size_t>(rows * row_bytes), std::byte{0xFF});  // 0xFFFF.. is a NaN
  data.query_data.assign(static_cast<std::size_t>(queries * data.query_stride), any_nan(random));
  numbers line(static_cast<std::size_t>(dim));
  for (std::int64_t row = 0; row < rows; ++row) {
    fill({type, false, row, rows, dim}, random, line);
    encode(line.data(), dim, type, data.row_data.data() + row * row_bytes);
  }
  for (std::int64_t query = 0; query < queries; ++query) {
    fill({type, true, query, queries, dim}, random, line);
    std::copy(line.begin(), line.end(), data.query_data.begin() + query * data.query_stride);
  }
  return data;
}

}  // namespace shortlist::conformance
