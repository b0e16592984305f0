#include "cpu/sample/select.hpp"

#include <algorithm>
#include <bit>
#include <functional>

#include "core/sampling.hpp"

namespace shortlist::cpu {
namespace {

constexpr std::int64_t kMostBlock = 512;
constexpr std::int64_t kManyBlocks = 1024;  // of a row: enough to start the k best from, few to look through
constexpr std::int64_t kFewTokens = 64;     // are sorted to find a border among them
constexpr int kKeyBinBits = 11;             // three levels of bins tell all 32 bits of a logit apart
constexpr std::int64_t kWeighedTogether = 256;
constexpr float kNoLimit = std::numeric_limits<float>::quiet_NaN();

/// The next number above, NaN above +inf.
float next_above(float logit) { return core::from_ascending_key(core::ascending_key(logit) + 1); }

/// The least candidate's logit for which `holds`, which is true from some logit on, the largest at the latest.
template <class Predicate>
float least_logit(float largest, const Predicate& holds) {
  std::uint32_t low = core::ascending_key(kLeastLogit);
  std::uint32_t high = core::ascending_key(largest);
  while (low < high) {
    const std::uint32_t middle = low + (high - low) / 2;
    if (holds(core::from_ascending_key(middle))) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return core::from_ascending_key(high);
}

/// Calls each(weight of the token, token) for every token in turn.
template <class Each>
void for_each_weight(const sample_kernels& kernels, std::span<const std::uint64_t> tokens, const weight_scale& scale,
                     const Each& each) {
  float logits[kWeighedTogether];
  std::uint64_t weights[kWeighedTogether];
  for (std::size_t first = 0; first < tokens.size(); first += kWeighedTogether) {
    const auto some = tokens.subspan(first, std::min<std::size_t>(kWeighedTogether, tokens.size() - first));
    std::transform(some.begin(), some.end(), logits, token_logit);
    kernels.weigh_each(logits, static_cast<std::int64_t>(some.size()), scale, weights);
    for (std::size_t i = 0; i < some.size(); ++i) each(weights[i], some[i]);
  }
}

/// A logit that k logits of the row reach, as far as its blocks tell.
float reached_by(const scanned_row& row, std::int64_t k, sample_scratch& memory) {
  if (k > row.blocks) return kLeastLogit;
  float* ordered = memory.ordered(row.blocks);
  std::copy_n(row.maxima, row.blocks, ordered);
  std::nth_element(ordered, ordered + (k - 1), ordered + row.blocks, std::greater<>());
  return std::max(ordered[k - 1], kLeastLogit);
}

/// Calls each(first id, length) for every run of neighbouring blocks whose largest logits reach `least`.
template <class Each>
void for_each_run(const scanned_row& row, float least, const Each& each) {
  for (std::int64_t which = 0; which < row.blocks; ++which) {
    if (!(row.maxima[which] >= least)) continue;
    const std::int64_t first = which * row.block;
    while (which + 1 < row.blocks && row.maxima[which + 1] >= least) ++which;
    each(first, std::min((which + 1) * row.block, row.values.vocab) - first);
  }
}

/// Calls each(values, count, from) for the logits of a run before the part's tie_end and for those behind it.
template <class Each>
void for_each_side(const scanned_row& row, std::int64_t first, std::int64_t length, const row_part& part,
                   const Each& each) {
  const std::int64_t with_ties = std::clamp<std::int64_t>(part.tie_end - first, 0, length);
  if (with_ties > 0) each(row.values.from(first), with_ties, part.from);
  if (with_ties < length) each(row.values.from(first + with_ties), length - with_ties, next_above(part.from));
}

std::uint64_t weigh_run(const scanned_row& row, std::int64_t first, std::int64_t length, const row_part& part,
                        const weight_scale& scale) {
  const auto weigh = row.of_type(row.kernels.weigh);
  std::uint64_t sum = 0;
  for_each_side(row, first, length, part,
                [&](const void* values, std::int64_t count, float from) { sum += weigh(values, count, from, scale); });
  return sum;
}

}  // namespace

scanned_row scan(const open_row& values, const sample_kernels& kernels, sample_scratch& memory) {
  const std::int64_t wanted =
      static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(values.vocab))) / kManyBlocks;
  const std::int64_t block = std::clamp(wanted, kMinBlock, kMostBlock);
  const std::int64_t blocks = (values.vocab + block - 1) / block;
  float* maxima = memory.maxima(blocks);
  const bool has_nan = kernels.scan[static_cast<std::size_t>(values.type)](values.data, values.vocab, block, maxima);
  return {kernels, values, block, blocks, maxima, *std::max_element(maxima, maxima + blocks), has_nan};
}

row_part shorter(const row_part& a, const row_part& b) {
  if (a.from == b.from) return {a.from, std::min(a.tie_end, b.tie_end)};
  return a.from > b.from ? a : b;
}

float least_logit_from(float least, const weight_scale& scale) {
  return least_logit(scale.largest,
                     [&](float logit) { return core::exponent_of(logit, scale.largest, scale.steepness) >= least; });
}

weight_scale scale_of(const scanned_row& row, float steepness) {
  weight_scale scale{row.largest, steepness, kLeastLogit};
  scale.lightest = least_logit_from(kWeightlessExponent, scale);
  return scale;
}

std::int64_t best_token(const scanned_row& row) {
  const std::int64_t which = std::find(row.maxima, row.maxima + row.blocks, row.largest) - row.maxima;
  std::uint64_t tokens[kMostBlock];
  row.of_type(row.kernels.collect)(row.block_data(which), row.block_count(which), row.largest, kNoLimit,
                                   static_cast<std::uint32_t>(which * row.block), tokens);
  return token_id(tokens[0]);
}

std::span<std::uint64_t> best_tokens(const scanned_row& row, std::int64_t k, sample_scratch& memory) {
  const auto collect = row.of_type(row.kernels.collect);
  std::uint64_t* tokens = memory.tokens(2 * k + row.block);
  float from = reached_by(row, k, memory);
  std::int64_t found = 0;
  const auto prune = [&] {
    std::nth_element(tokens, tokens + (k - 1), tokens + found, std::greater<>());
    found = k;
  };
  for (std::int64_t which = 0; which < row.blocks; ++which) {
    if (!(row.maxima[which] >= from)) continue;
    found += collect(row.block_data(which), row.block_count(which), from, kNoLimit,
                     static_cast<std::uint32_t>(which * row.block), tokens + found);
    if (found < 2 * k) continue;
    prune();
    from = next_above(token_logit(tokens[k - 1]));  // a later token that ties with the least of k loses against it
  }
  if (found > k) prune();
  return {tokens, static_cast<std::size_t>(found)};
}

std::int64_t count_of(const scanned_row& row, const row_part& part) {
  const auto count_from = row.of_type(row.kernels.count_from);
  std::int64_t count = 0;
  for_each_run(row, part.from, [&](std::int64_t first, std::int64_t length) {
    for_each_side(row, first, length, part,
                  [&](const void* values, std::int64_t some, float from) { count += count_from(values, some, from); });
  });
  return count;
}

std::uint64_t weigh(const scanned_row& row, const row_part& part, const weight_scale& scale) {
  std::uint64_t sum = 0;
  for_each_run(row, std::max(part.from, scale.lightest),
               [&](std::int64_t first, std::int64_t length) { sum += weigh_run(row, first, length, part, scale); });
  return sum;
}

std::int64_t draw(const scanned_row& row, const row_part& part, const weight_scale& scale, std::uint32_t random,
                  sample_scratch& memory) {
  std::uint64_t* sums = memory.block_sums(row.blocks);
  std::uint64_t total = 0;
  for (std::int64_t which = 0; which < row.blocks; ++which) {
    const bool matters = row.maxima[which] >= std::max(part.from, scale.lightest);
    sums[which] = matters ? weigh_run(row, which * row.block, row.block_count(which), part, scale) : 0;
    total += sums[which];
  }
  std::uint64_t left = core::drawn_of(total, random);
  std::int64_t which = 0;
  while (sums[which] <= left) left -= sums[which++];

  std::uint64_t tokens[kMostBlock];
  const std::int64_t found =
      row.of_type(row.kernels.collect)(row.block_data(which), row.block_count(which), part.from, kNoLimit,
                                       static_cast<std::uint32_t>(which * row.block), tokens);
  std::int64_t drawn = -1;
  for_each_weight(row.kernels, {tokens, static_cast<std::size_t>(found)}, scale,
                  [&](std::uint64_t weight, std::uint64_t token) {
                    const bool tie_is_cut = token_id(token) >= part.tie_end && token_logit(token) == part.from;
                    if (drawn >= 0 || tie_is_cut) return;
                    if (weight > left) {
                      drawn = token_id(token);
                    } else {
                      left -= weight;
                    }
                  });
  return drawn;
}

// --- the border that a sum of weights reaches -----------------------------------------------------------------------

namespace {

/// A logit below which all tokens together weigh too little to hold the border of top_p, twice over: the vocabulary
/// times its weight is below what top_p leaves out of the largest logits of all blocks.
float least_at_border(const scanned_row& row, const weight_scale& scale, std::uint32_t top_p) {
  constexpr auto kF32 = static_cast<std::size_t>(value_type::f32);
  const std::uint64_t at_least = row.kernels.weigh[kF32](row.maxima, row.blocks, kLeastLogit, scale);
  const std::uint64_t left_out = at_least - core::share_of(at_least, top_p);
  const std::uint64_t weight = left_out / static_cast<std::uint64_t>(2 * row.values.vocab);
  const int exponent = static_cast<int>(std::bit_width(weight)) - 1 - core::kWeightBits;
  constexpr int kLeastExact = -32;  // lighter tokens gain too much by rounding for this bound
  return exponent < kLeastExact ? kLeastLogit : least_logit_from(static_cast<float>(exponent), scale);
}

}  // namespace

weight_bins::weight_bins(const scanned_row& row, const weight_scale& scale, std::uint32_t top_p, sample_scratch& memory)
    : row_(row), scale_(scale), memory_(memory), sums_(memory.bins(kBins + (1 << kKeyBinBits))) {
  std::fill_n(sums_, kBins, 0);
  const auto fill = row.of_type(row.kernels.fill_bins);
  const float from = least_at_border(row, scale, top_p);
  for_each_run(row, scale.lightest, [&](std::int64_t first, std::int64_t length) {
    total_ += fill(row.values.from(first), length, from, scale, sums_);
  });
  for (int bin = 0; bin < kBins; ++bin) total_ += sums_[bin];
}

namespace {

/// The bin in which the running sum reaches `limit`, which is lowered by the sum before it.
int bin_that_reaches(const std::uint64_t* sums, std::uint64_t& limit) {
  int bin = 0;
  while (sums[bin] < limit) limit -= sums[bin++];
  return bin;
}

/// The part that ends with the token with which the sum of the weights of `tokens`, in the one order, reaches `limit`.
/// `tokens` come by ascending id; `sums` has room for 2^kKeyBinBits.
row_part part_among(const scanned_row& row, std::span<std::uint64_t> tokens, const weight_scale& scale,
                    std::uint64_t limit, std::uint64_t* sums) {
  while (static_cast<std::int64_t>(tokens.size()) > kFewTokens) {
    const auto [least, most] = std::minmax_element(tokens.begin(), tokens.end());
    const std::uint32_t low = token_key(*least);
    const std::uint32_t high = token_key(*most);
    if (low == high) {
      std::uint64_t weight = 0;
      for_each_weight(row.kernels, tokens.first(1), scale, [&](std::uint64_t one, std::uint64_t) { weight = one; });
      const std::uint64_t taken = (limit + weight - 1) / weight;
      return {token_logit(tokens[0]), std::int64_t{token_id(tokens[taken - 1])} + 1};
    }
    const int shift = std::max(static_cast<int>(std::bit_width(high - low)) - kKeyBinBits, 0);
    const auto bin_within = [=](std::uint64_t token) { return static_cast<int>((high - token_key(token)) >> shift); };
    std::fill_n(sums, 1 << kKeyBinBits, 0);
    for_each_weight(row.kernels, tokens, scale,
                    [&](std::uint64_t weight, std::uint64_t token) { sums[bin_within(token)] += weight; });
    const int border = bin_that_reaches(sums, limit);
    const auto end =
        std::remove_if(tokens.begin(), tokens.end(), [&](std::uint64_t token) { return bin_within(token) != border; });
    tokens = {tokens.begin(), end};
  }
  std::sort(tokens.begin(), tokens.end(), std::greater<>());
  std::uint64_t last = tokens.front();
  for_each_weight(row.kernels, tokens, scale, [&](std::uint64_t weight, std::uint64_t token) {
    if (limit == 0) return;
    last = token;
    limit -= std::min(limit, weight);
  });
  return {token_logit(last), std::int64_t{token_id(last)} + 1};
}

}  // namespace

row_part weight_bins::part_below(std::uint64_t limit) const {
  limit = std::max<std::uint64_t>(limit, 1);  // the first token reaches 1 by itself
  const int border = bin_that_reaches(sums_, limit);
  const auto least_from_bin = [&](int bin) {
    return least_logit(scale_.largest, [&](float logit) {
      const float t = core::exponent_of(logit, scale_.largest, scale_.steepness);
      return t >= kWeightlessExponent && bin_of(t) <= bin;
    });
  };
  const float from = least_from_bin(border);
  const float below = border > 0 ? least_from_bin(border - 1) : kNoLimit;
  const auto collect = row_.of_type(row_.kernels.collect);
  std::uint64_t* tokens = memory_.tokens(row_.values.vocab);
  std::int64_t found = 0;
  for (std::int64_t which = 0; which < row_.blocks; ++which) {
    if (!(row_.maxima[which] >= from)) continue;
    found += collect(row_.block_data(which), row_.block_count(which), from, below,
                     static_cast<std::uint32_t>(which * row_.block), tokens + found);
  }
  return part_among(row_, {tokens, static_cast<std::size_t>(found)}, scale_, limit, sums_ + kBins);
}

}  // namespace shortlist::cpu
