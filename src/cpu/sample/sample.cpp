// Sampling on the CPU: one worker a row.
//
// Why it is fast: one pass over the row leaves the largest logit of every block, and whatever comes later reads only
// the blocks that reach its threshold. With top_k the k-th largest block already bounds the k best from below, so
// that a few dozen logits are ever compared, sorted and weighed. Without it the row is weighed by vector code, and
// top_p's border is found by sums over bins of t, of which one alone is looked into.
// Steps of a row: open (only if it is penalised, biased, masked or strided) -> scan -> filters -> draw -> outputs.
// Limit: bytes of the logits over the read bandwidth; measured share: docs/benchmarks.md.
#include "cpu/sample/sample.hpp"

#include <algorithm>
#include <functional>
#include <span>

#include "core/sampling.hpp"
#include "cpu/parallel.hpp"
#include "cpu/rows.hpp"
#include "cpu/sample/kernels.hpp"
#include "cpu/sample/open.hpp"
#include "cpu/sample/scratch.hpp"
#include "cpu/sample/select.hpp"

namespace shortlist::cpu {
namespace {

constexpr std::int64_t kMostListed = 4096;  // best tokens that are sorted; for more, the row is searched for the border

/// The request, and what all its rows share.
struct job {
  const core::sample_request& request;
  const sample_kernels& kernels;
};

/// A row on its way: scanned, with its parameters made ready.
struct row_in_work {
  const scanned_row& row;
  const core::row_params& params;
  const weight_scale& scale;
  min_p_order order;

  bool min_p_comes(min_p_order when) const { return !params.min_p_off && order == when; }
  float exponent(float logit) const { return core::exponent_of(logit, scale.largest, scale.steepness); }
  row_part reaching_min_p() const { return {least_logit_from(params.least_exponent, scale), row.values.vocab}; }
};

struct drawn_token {
  std::int64_t id;
  std::int64_t kept;
};

/// The candidates of a row, the k best at most, best first.
std::span<std::uint64_t> sorted_best(const scanned_row& row, std::int64_t k, sample_scratch& memory) {
  const std::span<std::uint64_t> tokens = best_tokens(row, std::min(k, row.values.vocab), memory);
  std::sort(tokens.begin(), tokens.end(), std::greater<>());
  return tokens;
}

/// How many of the tokens, best first, reach min_p.
std::size_t count_reaching_min_p(const row_in_work& work, std::span<const std::uint64_t> tokens) {
  const auto reaches = [&](std::uint64_t token) {
    return work.exponent(token_logit(token)) >= work.params.least_exponent;
  };
  return static_cast<std::size_t>(std::partition_point(tokens.begin(), tokens.end(), reaches) - tokens.begin());
}

void weigh_tokens(const row_in_work& work, std::span<const std::uint64_t> tokens, sample_scratch& memory) {
  float* logits = memory.listed_logits(static_cast<std::int64_t>(tokens.size()));
  std::transform(tokens.begin(), tokens.end(), logits, token_logit);
  const auto count = static_cast<std::int64_t>(tokens.size());
  work.row.kernels.weigh_each(logits, count, work.scale, memory.weights(count));
}

/// Filters and draws from the top_k best tokens, which come best first.
drawn_token draw_from_list(const row_in_work& work, std::span<const std::uint64_t> tokens, sample_scratch& memory) {
  if (work.min_p_comes(min_p_order::first)) tokens = tokens.first(count_reaching_min_p(work, tokens));
  weigh_tokens(work, tokens, memory);
  const std::uint64_t* weights = memory.weights(static_cast<std::int64_t>(tokens.size()));
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) total += weights[i];
  if (!work.params.top_p_off) {
    const std::uint64_t limit = core::share_of(total, work.params.top_p);
    total = weights[0];
    std::size_t kept = 1;
    while (kept < tokens.size() && total < limit) total += weights[kept++];
    tokens = tokens.first(kept);
  }
  if (work.min_p_comes(min_p_order::last)) {
    const std::size_t kept = count_reaching_min_p(work, tokens);
    for (std::size_t i = kept; i < tokens.size(); ++i) total -= weights[i];
    tokens = tokens.first(kept);
  }
  std::uint64_t* by_id = memory.by_id(static_cast<std::int64_t>(tokens.size()));
  for (std::size_t i = 0; i < tokens.size(); ++i) by_id[i] = (std::uint64_t{token_id(tokens[i])} << 32) | i;
  std::sort(by_id, by_id + tokens.size());
  std::uint64_t left = core::drawn_of(total, core::philox(work.params.seed, work.params.offset));
  const auto weight_of = [&](std::uint64_t place) { return weights[static_cast<std::uint32_t>(place)]; };
  while (weight_of(*by_id) <= left) left -= weight_of(*by_id++);
  return {static_cast<std::int64_t>(*by_id >> 32), static_cast<std::int64_t>(tokens.size())};
}

/// Filters and draws over the whole row.
drawn_token draw_from_row(const row_in_work& work, bool count_kept, sample_scratch& memory) {
  const scanned_row& row = work.row;
  row_part part = all_candidates(row);
  if (work.min_p_comes(min_p_order::first)) part = work.reaching_min_p();
  if (work.params.top_k > 0) {
    const std::span<const std::uint64_t> best = best_tokens(row, work.params.top_k, memory);
    if (static_cast<std::int64_t>(best.size()) == work.params.top_k) {
      const std::uint64_t last = *std::min_element(best.begin(), best.end());
      part = shorter(part, {token_logit(last), std::int64_t{token_id(last)} + 1});
    }
  }
  if (!work.params.top_p_off) {
    const weight_bins bins(row, work.scale, work.params.top_p, memory);
    const bool is_whole = part.from == kLeastLogit && part.tie_end == row.values.vocab;
    const std::uint64_t total = is_whole ? bins.total() : weigh(row, part, work.scale);
    part = shorter(part, bins.part_below(core::share_of(total, work.params.top_p)));
  }
  if (work.min_p_comes(min_p_order::last)) part = shorter(part, work.reaching_min_p());
  const std::uint32_t random = core::philox(work.params.seed, work.params.offset);
  return {draw(row, part, work.scale, random, memory), count_kept ? count_of(row, part) : 0};
}

// --- outputs --------------------------------------------------------------------------------------------------------

void write_token(const sample_output& out, std::int64_t row, std::int64_t id) {
  if (out.tokens_as == index_type::i32) {
    static_cast<std::int32_t*>(out.tokens)[row] = static_cast<std::int32_t>(id);
  } else {
    static_cast<std::int64_t*>(out.tokens)[row] = id;
  }
}

void write_refusal(const sample_output& out, std::int64_t row, sample_status why) {
  const float nan = core::float_from_bits(core::kCanonicalNan);
  write_token(out, row, -1);
  if (out.status) out.status[row] = why;
  if (out.logprobs) out.logprobs[row] = nan;
  if (out.kept) out.kept[row] = 0;
  if (out.top_tokens) std::fill_n(out.top_tokens + row * out.top_n, out.top_n, -1);
  if (out.top_logprobs) std::fill_n(out.top_logprobs + row * out.top_n, out.top_n, nan);
}

/// Writes the top_n best of `best`, which come best first.
void write_best(const row_in_work& work, const sample_output& out, std::int64_t row,
                std::span<const std::uint64_t> best, std::uint64_t total) {
  const auto some = best.first(std::min<std::size_t>(best.size(), static_cast<std::size_t>(out.top_n)));
  if (out.top_tokens) {
    std::int32_t* to = out.top_tokens + row * out.top_n;
    to = std::transform(some.begin(), some.end(), to,
                        [](std::uint64_t token) { return static_cast<std::int32_t>(token_id(token)); });
    std::fill(to, out.top_tokens + (row + 1) * out.top_n, -1);
  }
  if (out.top_logprobs) {
    float* to = out.top_logprobs + row * out.top_n;
    to = std::transform(some.begin(), some.end(), to, [&](std::uint64_t token) {
      return core::log_probability(work.exponent(token_logit(token)), total);
    });
    std::fill(to, out.top_logprobs + (row + 1) * out.top_n, kMinusInfinity);
  }
}

void sample_row(const job& all, std::int64_t index, sample_scratch& memory) {
  const core::sample_request& request = all.request;
  const sample_output& out = request.out;
  const core::row_params params = core::params_of(request.params, index, request.logits.cols);
  if (!params.valid) {
    write_refusal(out, index, sample_status::bad_parameter);
    return;
  }
  const scanned_row row = scan(open(request, all.kernels, index, params.by, memory), all.kernels, memory);
  if (row.has_nan || row.largest == kMinusInfinity) {
    write_refusal(out, index, row.has_nan ? sample_status::nan_logit : sample_status::nothing_allowed);
    return;
  }
  const weight_scale scale = scale_of(row, params.steepness);
  const row_in_work work{row, params, scale, request.params.min_p_order};

  drawn_token drawn{};
  std::span<std::uint64_t> best;
  if (params.greedy) {
    drawn = {best_token(row), 1};
  } else if (params.top_k > 0 && params.top_k <= kMostListed) {
    best = sorted_best(row, std::max(params.top_k, out.top_n), memory);
    const auto listed = std::min<std::size_t>(best.size(), static_cast<std::size_t>(params.top_k));
    drawn = draw_from_list(work, best.first(listed), memory);
  } else {
    drawn = draw_from_row(work, out.kept != nullptr, memory);
  }
  write_token(out, index, drawn.id);
  if (out.status) out.status[index] = sample_status::ok;
  if (out.kept) out.kept[index] = static_cast<std::int32_t>(drawn.kept);
  if (!out.logprobs && out.top_n == 0) return;

  const std::uint64_t total = weigh(row, all_candidates(row), scale);
  if (out.logprobs) out.logprobs[index] = core::log_probability(work.exponent(row.values.logit(drawn.id)), total);
  if (out.top_n == 0) return;
  if (best.empty()) best = sorted_best(row, out.top_n, memory);
  write_best(work, out, index, best, total);
}

}  // namespace

void sample(const core::sample_request& request) {
  const default_float_environment environment;
  const value_matrix& logits = request.logits;
  const job work{request, current_sample_kernels()};
  row_queue rows(logits.rows, logits.cols * size_bytes(logits.type));
  const double values = static_cast<double>(logits.rows) * static_cast<double>(logits.cols);
  for_each_slot(rows.slots(values), [&](int) {
    thread_scratch<sample_scratch> memory;
    rows.drain([&](std::int64_t index) { sample_row(work, index, *memory); });
  });
}

}  // namespace shortlist::cpu
