// See docs/sampling.md, which the names and the numbers of the steps below follow.
#include "reference/sample.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>

namespace shortlist::reference {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

__extension__ typedef unsigned __int128 uint128;

// --- Logits ---------------------------------------------------------------------------------------------------------

/// IEEE binary16, from the standard's formula.
float half_value(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int fraction = bits & 1023;
  float magnitude = 0.0f;
  if (exponent == 31) {
    magnitude = fraction == 0 ? kInf : std::numeric_limits<float>::quiet_NaN();
  } else if (exponent == 0) {
    magnitude = std::ldexp(static_cast<float>(fraction), -24);
  } else {
    magnitude = std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
  }
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

template <class T>
T load(const value_matrix& logits, std::int64_t row, std::int64_t token) {
  const std::int64_t element = row * logits.row_stride + token * logits.col_stride;
  T value;
  std::memcpy(&value, static_cast<const std::byte*>(logits.data) + element * size_bytes(logits.type), sizeof(T));
  return value;
}

float logit_at(const value_matrix& logits, std::int64_t row, std::int64_t token) {
  switch (logits.type) {
    case value_type::f32: return load<float>(logits, row, token);
    case value_type::f16: return half_value(load<std::uint16_t>(logits, row, token));
    case value_type::bf16: {
      const std::uint32_t upper = load<std::uint16_t>(logits, row, token);
      return std::bit_cast<float>(upper << 16);
    }
    case value_type::f64: break;  // refused at the border
  }
  return std::numeric_limits<float>::quiet_NaN();
}

// --- Parameters -----------------------------------------------------------------------------------------------------

template <class T>
T value_of(const per_row<T>& parameter, std::int64_t row) {
  return parameter.rows ? parameter.rows[row] : parameter.common;
}

/// Those of one row.
struct row_parameters {
  float temperature;
  std::int32_t top_k;
  float top_p;
  float min_p;
  float repetition;
  float presence;
  float frequency;
};

row_parameters parameters_of(const sample_params& params, std::int64_t row) {
  return {.temperature = value_of(params.temperature, row),
          .top_k = value_of(params.top_k, row),
          .top_p = value_of(params.top_p, row),
          .min_p = value_of(params.min_p, row),
          .repetition = value_of(params.repetition_penalty, row),
          .presence = value_of(params.presence_penalty, row),
          .frequency = value_of(params.frequency_penalty, row)};
}

bool are_in_range(const row_parameters& p) {
  return p.temperature >= 0.0f && std::isfinite(p.temperature) &&  //
         !std::isnan(p.top_p) &&                                   //
         p.min_p >= 0.0f && p.min_p <= 1.0f &&                     //
         p.repetition > 0.0f && std::isfinite(p.repetition) &&     //
         std::isfinite(p.presence) && std::isfinite(p.frequency);
}

// --- Steps 1 to 3: penalties, bias, mask
// ------------------------------------------------------------------------------

/// How often each token of the vocabulary is in a row of `rows`.
std::vector<std::int64_t> counts_in(const token_rows& rows, std::int64_t row, std::int64_t vocab) {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(vocab), 0);
  if (!rows.begins) return counts;
  for (std::int64_t i = rows.begins[row]; i < rows.begins[row + 1]; ++i) {
    const std::int64_t token = rows.tokens[i];
    if (token >= 0 && token < vocab) ++counts[static_cast<std::size_t>(token)];
  }
  return counts;
}

float penalized(float x, std::int64_t n, const row_parameters& p) {
  x = x > 0.0f ? x / p.repetition : x * p.repetition;
  if (n > 0) {
    const float times = p.frequency * static_cast<float>(n);
    x = x - times;
    x = x - p.presence;
  }
  return x;
}

bool is_allowed(const token_mask& mask, std::int64_t row, std::int64_t token) {
  if (!mask.data) return true;
  if (mask.kind == mask_kind::bytes) {
    return static_cast<const std::uint8_t*>(mask.data)[row * mask.row_stride + token] != 0;
  }
  const std::uint32_t word = static_cast<const std::uint32_t*>(mask.data)[row * mask.row_stride + token / 32];
  return ((word >> (token % 32)) & 1) != 0;
}

std::vector<float> logits_of(const value_matrix& logits, std::int64_t row, const sample_params& params,
                             const row_parameters& p) {
  const std::int64_t vocab = logits.cols;
  const std::vector<std::int64_t> in_prompt = counts_in(params.prompt, row, vocab);
  const std::vector<std::int64_t> in_generated = counts_in(params.generated, row, vocab);
  std::vector<float> all;
  for (std::int64_t token = 0; token < vocab; ++token) {
    float x = logit_at(logits, row, token);
    const std::int64_t n = in_generated[static_cast<std::size_t>(token)];
    if (n > 0 || in_prompt[static_cast<std::size_t>(token)] > 0) x = penalized(x, n, p);
    if (params.bias.values) x = x + params.bias.values[row * params.bias.row_stride + token];
    if (!is_allowed(params.allowed, row, token)) x = -kInf;
    all.push_back(x);
  }
  return all;
}

// --- Steps 4 to 6: status, temperature, candidates
// --------------------------------------------------------------------

sample_status status_of(const std::vector<float>& all) {
  for (const float x : all) {
    if (std::isnan(x)) return sample_status::nan_logit;
  }
  for (const float x : all) {
    if (x > -kInf) return sample_status::ok;
  }
  return sample_status::nothing_allowed;
}

std::vector<candidate> candidates_of(const std::vector<float>& all, float temperature) {
  constexpr float kLog2e = 0x1.715476p+0f;
  const float m = *std::max_element(all.begin(), all.end());
  const float quotient = kLog2e / (temperature == 0.0f ? 1.0f : temperature);
  const float c = std::min(quotient, 0x1p100f);
  std::vector<candidate> found;
  for (std::size_t token = 0; token < all.size(); ++token) {
    const float x = all[token];
    if (!(x > -kInf)) continue;
    const float below = x - m;
    const float t = x == m ? 0.0f : below * c;
    found.push_back({static_cast<std::int64_t>(token), x, t, weight(t)});
  }
  // Stable, and ids ascend: of equals the smaller id stays first.
  std::stable_sort(found.begin(), found.end(), [](const candidate& a, const candidate& b) { return a.x > b.x; });
  return found;
}

std::uint64_t sum_of_weights(const std::vector<candidate>& some) {
  std::uint64_t sum = 0;
  for (const candidate& c : some) sum += c.weight;
  return sum;
}

// --- Steps 7 to 11: the filters, each of which keeps a first part of what is there
// --------------------------------------

void keep_min_p(std::vector<candidate>& kept, float min_p) {
  if (!(min_p > 0.0f)) return;
  const float least = log2(min_p);
  std::size_t remain = 0;
  while (remain < kept.size() && kept[remain].t >= least) ++remain;
  kept.resize(remain);
}

void keep_top_k(std::vector<candidate>& kept, std::int32_t top_k) {
  if (top_k < 1) return;
  const std::size_t remain = std::min(kept.size(), static_cast<std::size_t>(top_k));
  kept.resize(remain);
}

void keep_top_p(std::vector<candidate>& kept, float top_p) {
  if (!(top_p < 1.0f)) return;
  const std::uint64_t share = top_p_share(top_p, sum_of_weights(kept));
  std::size_t remain = 1;
  std::uint64_t before = kept[0].weight;
  while (remain < kept.size() && before < share) {
    before += kept[remain].weight;
    ++remain;
  }
  kept.resize(remain);
}

// --- Outputs --------------------------------------------------------------------------------------------------------

void store_token(const sample_output& out, std::int64_t row, std::int64_t token) {
  if (out.tokens_as == index_type::i32) {
    static_cast<std::int32_t*>(out.tokens)[row] = static_cast<std::int32_t>(token);
  } else {
    static_cast<std::int64_t*>(out.tokens)[row] = token;
  }
}

void store_top(const sample_output& out, std::int64_t at, std::int64_t token, float logprob) {
  if (out.top_tokens) out.top_tokens[at] = static_cast<std::int32_t>(token);
  if (out.top_logprobs) out.top_logprobs[at] = logprob;
}

void store(const sample_output& out, std::int64_t row, const filtered_row& filtered, const sample_params& params) {
  const bool ok = filtered.status == sample_status::ok;
  const float nan = std::bit_cast<float>(0x7FC00000u);
  const std::vector<candidate>& candidates = filtered.candidates;
  const std::uint64_t sum = sum_of_weights(candidates);

  std::int64_t token = -1;
  float logprob = nan;
  if (ok) {
    const candidate drawn = draw(filtered, value_of(params.seed, row), value_of(params.offset, row));
    token = drawn.token;
    logprob = log_probability(drawn.t, sum);
  }
  store_token(out, row, token);
  if (out.status) out.status[row] = filtered.status;
  if (out.logprobs) out.logprobs[row] = logprob;
  if (out.kept) out.kept[row] = static_cast<std::int32_t>(filtered.kept.size());
  for (std::int64_t i = 0; i < out.top_n; ++i) {
    const std::int64_t at = row * out.top_n + i;
    if (i < static_cast<std::int64_t>(candidates.size())) {
      const candidate& c = candidates[static_cast<std::size_t>(i)];
      store_top(out, at, c.token, log_probability(c.t, sum));
    } else {
      store_top(out, at, -1, ok ? -kInf : nan);
    }
  }
}

}  // namespace

// --- Section 2
// --------------------------------------------------------------------------------------------------------

float exp2(float t) {
  constexpr float kCoefficients[] = {0x1p+0f,        0x1.62e430p-1f,  0x1.ebfbe0p-3f, 0x1.c6af6cp-5f,
                                     0x1.3b29e4p-7f, 0x1.5f0896p-10f, 0x1.446c82p-13f};
  constexpr float kRound = 0x1.8p+23f;
  const float shifted = t + kRound;
  const float n = shifted - kRound;
  const float f = t - n;
  float p = kCoefficients[6];
  for (int i = 5; i >= 0; --i) p = std::fma(p, f, kCoefficients[i]);
  return std::ldexp(p, static_cast<int>(n));
}

std::uint64_t weight(float t) {
  if (!(t >= -64.0f)) return 0;
  return static_cast<std::uint64_t>(std::nearbyint(std::ldexp(static_cast<double>(exp2(t)), 40)));
}

std::uint64_t top_p_share(float top_p, std::uint64_t sum) {
  if (!(top_p > 0.0f)) return 0;
  const auto share = static_cast<std::uint64_t>(std::nearbyint(std::ldexp(static_cast<double>(top_p), 32)));
  return static_cast<std::uint64_t>(uint128{share} * sum >> 32);
}

std::uint64_t drawn_share(std::uint32_t u, std::uint64_t sum) {
  return static_cast<std::uint64_t>(uint128{u} * sum >> 24);
}

// --- Section 3
// --------------------------------------------------------------------------------------------------------

float log2(float x) {
  constexpr float kCoefficients[] = {0x1.715476p+0f, -0x1.715470p-1f, 0x1.ec7080p-2f, -0x1.715a68p-2f,
                                     0x1.2782e6p-2f, -0x1.eac696p-3f, 0x1.a265f4p-3f, -0x1.865fecp-3f,
                                     0x1.80ab48p-3f, -0x1.cebec2p-4f};
  constexpr float kM = 0x1.6a09e6p-1f;
  int e = 0;
  if (x < 0x1p-126f) {
    x = x * 0x1p24f;
    e = -24;
  }
  int n = 0;
  float significand = std::frexp(x, &n);  // in [0.5, 1)
  if (significand < kM) {
    significand = significand * 2.0f;
    n = n - 1;
  }
  const float g = significand - 1.0f;
  float q = kCoefficients[9];
  for (int i = 8; i >= 0; --i) q = std::fma(q, g, kCoefficients[i]);
  return std::fma(q, g, static_cast<float>(e + n));
}

float log_probability(float t, std::uint64_t sum) {
  constexpr float kLn2 = 0x1.62e430p-1f;
  const float l = log2(static_cast<float>(sum)) - 40.0f;
  const float difference = t - l;
  return difference * kLn2;
}

// --- Section 4
// --------------------------------------------------------------------------------------------------------

std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57} * counter[2];
    const auto high0 = static_cast<std::uint32_t>(product0 >> 32);
    const auto high1 = static_cast<std::uint32_t>(product1 >> 32);
    counter = {high1 ^ counter[1] ^ key[0], static_cast<std::uint32_t>(product1), high0 ^ counter[3] ^ key[1],
               static_cast<std::uint32_t>(product0)};
    key = {key[0] + 0x9E3779B9u, key[1] + 0xBB67AE85u};
  }
  return counter;
}

// --- Section 1
// --------------------------------------------------------------------------------------------------------

filtered_row filter(const value_matrix& logits, std::int64_t row, const sample_params& params) {
  const row_parameters p = parameters_of(params, row);
  filtered_row result;
  if (!are_in_range(p)) {
    result.status = sample_status::bad_parameter;
    return result;
  }
  const std::vector<float> all = logits_of(logits, row, params, p);
  result.status = status_of(all);
  if (result.status != sample_status::ok) return result;

  result.candidates = candidates_of(all, p.temperature);
  result.kept = result.candidates;
  if (params.min_p_order == min_p_order::first) keep_min_p(result.kept, p.min_p);
  keep_top_k(result.kept, p.top_k);
  keep_top_p(result.kept, p.top_p);
  if (params.min_p_order == min_p_order::last) keep_min_p(result.kept, p.min_p);
  if (p.temperature == 0.0f) result.kept.resize(1);
  std::sort(result.kept.begin(), result.kept.end(),
            [](const candidate& a, const candidate& b) { return a.token < b.token; });
  return result;
}

candidate draw(const filtered_row& row, std::uint64_t seed, std::uint64_t offset) {
  const auto lower = [](std::uint64_t x) { return static_cast<std::uint32_t>(x); };
  const auto upper = [](std::uint64_t x) { return static_cast<std::uint32_t>(x >> 32); };
  const std::uint32_t u = philox({lower(offset), upper(offset), 0, 0}, {lower(seed), upper(seed)})[0] >> 8;
  const std::uint64_t r = drawn_share(u, sum_of_weights(row.kept));
  std::size_t i = 0;
  std::uint64_t sum = row.kept[0].weight;
  while (sum <= r) sum += row.kept[++i].weight;  // ends: r is less than the sum of all
  return row.kept[i];
}

void sample(const value_matrix& logits, const sample_params& params, const sample_output& out) {
  for (std::int64_t row = 0; row < logits.rows; ++row) store(out, row, filter(logits, row, params), params);
}

}  // namespace shortlist::reference
