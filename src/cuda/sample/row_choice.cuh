// What is kept of a row and drawn: from a list of its best, or from the whole of it. See sample_rows.cu.
#pragma once

#include <type_traits>

#include "cuda/sample/row_draw.cuh"

namespace shortlist::cuda::sampling {

/// The tokens that top_k, or what amounts to it, leaves; 0 if all.
__device__ __forceinline__ std::uint32_t wanted_by_count(const core::row_params& params) {
  const bool only_best = params.greedy || (!params.top_p_off && params.top_p == 0);
  return only_best ? 1 : static_cast<std::uint32_t>(params.top_k);
}

__device__ __forceinline__ float minimum_exponent(const core::row_params& params) {
  return params.min_p_off ? core::float_from_bits(0xFF800000u) : params.least_exponent;
}

/// How many of keys[0, n), best first, are above min_p. All threads come.
__device__ __forceinline__ std::uint32_t count_by_min_p(const std::uint64_t* keys, std::uint32_t n,
                                                        const row_filter& filter, const core::row_params& params) {
  return count_first(keys, n, [&](std::uint64_t key) { return filter.exponent_of_key(key) >= params.least_exponent; });
}

/// Draws from keys[0, n), best first: filters in their order, then the draw. The first block comes.
__device__ __forceinline__ void draw_from_many(const core::sample_request& request, std::int64_t row,
                                               std::uint64_t* keys, std::uint32_t n, std::uint64_t full,
                                               const row_filter& filter, sample_scratch& scratch) {
  const core::row_params& params = scratch.params;
  const bool min_p_first = request.params.min_p_order == min_p_order::first;
  std::uint32_t kept = n;
  if (!params.min_p_off && min_p_first) kept = count_by_min_p(keys, kept, filter, params);
  if (!params.top_p_off && kept > 1) {
    const std::uint64_t target = core::share_of(weight_of_keys(keys, kept, filter, scratch), params.top_p);
    kept = count_by_weight(keys, kept, 0, target, filter, scratch);
  }
  if (!params.min_p_off && !min_p_first) kept = count_by_min_p(keys, kept, filter, params);
  const std::uint64_t total = weight_of_keys(keys, kept, filter, scratch);
  const std::uint64_t place = core::drawn_of(total, core::philox(params.seed, params.offset));
  std::uint64_t* room = keys == scratch.list ? scratch.ordered : scratch.list;
  draw_from_keys(keys, room, kept, place, filter, scratch, [&](std::uint64_t key) {
    write_draw(request.out, row, core::position_of(key), filter.exponent_of_key(key), full, kept);
  });
}

/// The same for keys in any order, no more than threads: comparing each with each gives every key its rank and the
/// weight before it, which serve all filters. @param wanted the best of them remain.
__device__ __forceinline__ void draw_from_few(const core::sample_request& request, std::int64_t row,
                                              const std::uint64_t* keys, std::uint32_t n, std::uint32_t wanted,
                                              std::uint64_t full, const row_filter& filter, sample_scratch& scratch) {
  static_assert(sizeof(scratch.ordered) >= kThreads * sizeof(ulonglong2));
  const core::row_params& params = scratch.params;
  auto* pairs = reinterpret_cast<ulonglong2*>(scratch.ordered);  // keys and their weights
  const std::uint64_t own_key = threadIdx.x < n ? keys[threadIdx.x] : core::kNoRow;
  const std::uint64_t own_weight = weight_of(filter.exponent_of_key(own_key));
  const std::uint32_t random = core::philox(params.seed, params.offset);
  __syncthreads();  // all keys have been read
  if (threadIdx.x < n) pairs[threadIdx.x] = make_ulonglong2(own_key, own_weight);
  __syncthreads();

  std::uint32_t shift = 0;  // 2^shift threads compare for one key
  while (shift < 5 && n << (shift + 1) <= kThreads) shift++;
  const std::uint32_t helpers = 1u << shift;
  const std::uint32_t helper = threadIdx.x & (helpers - 1);
  const std::uint32_t slot = threadIdx.x >> shift;
  const ulonglong2 mine = slot < n ? pairs[slot] : make_ulonglong2(core::kNoRow, 0);
  const bool counts = slot < n && helper == 0;
  std::uint32_t rank = 0;
  std::uint64_t before = 0;
#pragma unroll 4
  for (std::uint32_t j = helper; j < n; j += helpers) {
    const ulonglong2 other = pairs[j];
    if (other.x <= mine.x) continue;
    rank++;
    before += other.y;
  }
  const auto add_helpers = [&](auto value) {
#pragma unroll 1
    for (std::uint32_t apart = helpers / 2; apart > 0; apart /= 2)
      value += __shfl_xor_sync(kFullWarp, value, static_cast<int>(apart));
    return value;
  };
  rank = add_helpers(rank);
  before = add_helpers(before);

  std::uint32_t kept = min(n, wanted);
  const auto keep = [&](bool condition) {
    kept = static_cast<std::uint32_t>(__syncthreads_count(counts && rank < kept && condition));
  };
  const auto weight_of_kept = [&] {
    if (counts && rank == kept - 1) {
      scratch.told = before + mine.y;
      scratch.told_key = mine.x;
    }
    __syncthreads();
    return scratch.told;
  };
  const float exponent = filter.exponent_of_key(mine.x);
  const bool min_p_first = request.params.min_p_order == min_p_order::first;
  if (!params.min_p_off && min_p_first) keep(exponent >= params.least_exponent);
  if (!params.top_p_off && kept > 1) keep(before < core::share_of(weight_of_kept(), params.top_p));
  if (!params.min_p_off && !min_p_first) keep(exponent >= params.least_exponent);
  const std::uint64_t place = core::drawn_of(weight_of_kept(), random);
  const std::uint64_t cut = scratch.told_key;

  const std::uint32_t token = core::position_of(mine.x);
  std::uint64_t up_to = 0;
#pragma unroll 4
  for (std::uint32_t j = helper; j < n; j += helpers) {
    const ulonglong2 other = pairs[j];
    up_to += other.x >= cut && core::position_of(other.x) <= token ? other.y : 0;
  }
  up_to = add_helpers(up_to);
  if (counts && rank < kept && place < up_to && up_to - mine.y <= place)
    write_draw(request.out, row, token, exponent, full, kept);
}

/// Draws from the list of the best, which holds all that top_k can leave. The first block comes, after the meeting at
/// which the list was complete.
__device__ __forceinline__ void draw_from_list(const core::sample_request& request, std::int64_t row,
                                               std::uint32_t blocks, const row_filter& filter,
                                               sample_scratch& scratch) {
  const std::uint32_t n = min(scratch.listed, kListed);
  const bool weighs_all = request.out.logprobs || request.out.top_n > 0;
  const std::uint64_t full = weighs_all ? sum_of_segments(scratch.segment_weight, blocks, scratch) : 0;
  std::uint64_t* keys = scratch.list;
  if (request.out.top_n > 0 || n > kThreads) keys = in_order(scratch.list, scratch.ordered, n);
  if (request.out.top_n > 0) write_best(request.out, row, keys, n, filter, full);
  const std::uint32_t wanted = wanted_by_count(scratch.params);
  if (n <= kThreads)
    draw_from_few(request, row, keys, n, wanted, full, filter, scratch);
  else
    draw_from_many(request, row, keys, min(n, wanted), full, filter, scratch);
}

/// What a search for the border of top_p found.
struct weight_border {
  std::uint64_t before;  // the weight of what is surely kept, if the list has the border
  std::uint64_t target;
  bool listed;
};

/// Weighs what passes the filter, and lists the bin of exponents that holds the border of top_p; what is kept before it
/// is given to the first block. Narrower bins where a list overflows; gives up on ties. All threads of the cluster
/// come.
template <class Part>
__device__ __forceinline__ weight_border list_border(const Part& part, const row_filter& filter, float least_kept,
                                                     sample_scratch& scratch) {
  constexpr float kWindow = 20.0f;  // exponents: beyond, weights are below a millionth of the best one's
  constexpr int kTries = 3;
  exponent_bins bins{0.0f, static_cast<float>(kBins - 2) / kWindow};
  for (int i = 0; i < kTries; i++) {
    const auto target_of = [&](std::uint64_t total) { return core::share_of(total, scratch.params.top_p); };
    const found_bin at = weigh_bins(part, filter, bins, scratch, target_of);
    if (at.bin == kFirstBin || (at.bin == kLastBin && i > 0)) break;
    if (at.bin == kLastBin) {
      bins.start = -kWindow;
      continue;
    }
    weigh_kept(part, filter, scratch, [&](float x, std::uint32_t token, float exponent) {
      const std::uint32_t bin = bins.of(exponent);
      if (bin > at.bin || !(exponent >= least_kept) || !filter.reaches_cut(x, token)) return standing::out;
      return bin == at.bin ? standing::border : standing::kept;
    });
    if (listed_by_all(scratch) <= kListed) return {at.before, target_of(at.total), true};
    cluster_sync();  // all have seen that the list is too long
    empty_list(part, scratch);
    bins.start -= static_cast<float>(at.bin - 1) / bins.per_unit;
    bins.per_unit *= static_cast<float>(kBins - 2);
  }
  return {0, 0, false};
}

/// Decides the border's list, and adds what of it is kept to the segments. @param before the weight of what is kept
/// without the list. @returns how many are kept; `cut` is that of the row. The first block comes.
template <class Part>
__device__ __forceinline__ std::uint32_t settle_border(const Part& part, const row_filter& filter,
                                                       const weight_border& border, float least_kept,
                                                       std::uint64_t& cut, bool& right, sample_scratch& scratch) {
  const std::uint32_t n = min(scratch.listed, kListed);
  const std::uint64_t* keys = in_order(scratch.list, scratch.ordered, n);
  const std::uint32_t by_weight = count_by_weight(keys, n, border.before, border.target, filter, scratch);
  right = border.before < border.target &&
          (by_weight < n || border.before + weight_of_keys(keys, n, filter, scratch) >= border.target);
  if (by_weight > 0) cut = keys[by_weight - 1];
  const std::uint32_t kept =
      count_first(keys, by_weight, [&](std::uint64_t key) { return filter.exponent_of_key(key) >= least_kept; });
  for (std::uint32_t i = threadIdx.x; i < kept; i += kThreads) {
    const std::uint32_t segment = part.segment_of(core::position_of(keys[i]));
    auto* words = reinterpret_cast<std::uint32_t*>(&scratch.segment_kept_weight[segment]);
    add_in_words(words[0], words[1], weight_of(filter.exponent_of_key(keys[i])));
  }
  __syncthreads();
  return kept;
}

/// Draws from the segments, in the block that has the one that is drawn. @param filter of what is kept, but for the
/// cut, which is drawn.cut. @param listed how many of the border's list are kept. @param right whether to draw at all;
/// of the first block, as `drawn` and `listed`. @returns that. All threads of the cluster come.
template <class Part>
__device__ __forceinline__ bool finish_draw(const core::sample_request& request, std::int64_t row, const Part& part,
                                            row_filter filter, drawn_segment drawn, std::uint32_t listed, bool right,
                                            sample_scratch& scratch) {
  if (part.rank == 0 && right) {
    drawn.kept = listed + static_cast<std::uint32_t>(sum_of_segments(scratch.segment_kept, part.blocks, scratch));
    drawn.full = sum_of_segments(scratch.segment_weight, part.blocks, scratch);
    draw_segment(part.blocks, drawn, scratch);
  } else if (part.rank == 0 && threadIdx.x < part.blocks) {
    of_block(&scratch.drawn, threadIdx.x)->found = false;
  }
  cluster_sync();
  drawn = scratch.drawn;
  filter.cut = drawn.cut;
  if (drawn.found && drawn.segment % part.blocks == part.rank) {
    draw_from_segment(part, filter, drawn, scratch, [&](float x, std::uint32_t token) {
      write_draw(request.out, row, token, filter.exponent(x), drawn.full, drawn.kept);
    });
  }
  return drawn.found;
}

/// Filters by top_p and draws, with a border that counting guessed and weighing confirms. @returns whether it was
/// right. All threads of the cluster come; the list is empty.
template <class Part, class Filter>
__device__ __forceinline__ bool draw_by_guess(const core::sample_request& request, std::int64_t row, const Part& part,
                                              Filter filter, float least_kept, sample_scratch& scratch) {
  const weight_bracket bracket = guess_bracket(part, filter, scratch);
  if (!bracket.found) return false;
  weigh_bracket(part, filter, bracket, least_kept, scratch);
  cluster_sync();
  drawn_segment drawn{.cut = filter.cut};
  std::uint32_t listed = 0;
  bool right = true;
  if (part.rank == 0) {
    const std::uint64_t passing = sum_of_segments(scratch.segment_passing, part.blocks, scratch);
    const weight_border border{sum_of_segments(scratch.segment_before, part.blocks, scratch),
                               core::share_of(passing, scratch.params.top_p), true};
    listed = settle_border(part, filter, border, least_kept, drawn.cut, right, scratch);
  }
  filter.floor = least_kept;
  return finish_draw(request, row, part, filter, drawn, listed, right, scratch);
}

/// Filters the whole row, and draws from it. All threads of the cluster come; the list is empty.
template <class Part>
__device__ __forceinline__ void draw_from_row(const core::sample_request& request, std::int64_t row, const Part& part,
                                              row_filter filter, sample_scratch& scratch) {
  const core::row_params& params = scratch.params;
  const float least = minimum_exponent(params);
  if (request.params.min_p_order == min_p_order::first) filter.floor = least;
  if (params.top_k > 0) {
    const std::uint64_t wanted = params.top_k;
    filter.cut = search_cut(
        part, filter, scratch, wanted, [](float) { return std::uint64_t{1}; },
        [&](std::uint64_t total) { return min(total, wanted); });
  }
  weight_border border{0, 0, false};
  if (!params.top_p_off) {
    const bool whole = params.top_k == 0 && params.min_p_off && core::is_finite(filter.largest);
    if (whole ? draw_by_guess(request, row, part, whole_row_filter{filter}, least, scratch)
              : draw_by_guess(request, row, part, filter, least, scratch))
      return;
    empty_list(part, scratch);
    border = list_border(part, filter, least, scratch);
    if (!border.listed) {
      filter.cut = search_cut(
          part, filter, scratch, 0, [&](float x) { return weight_of(filter.exponent(x)); },
          [&](std::uint64_t total) { return core::share_of(total, params.top_p); });
    }
  }
  filter.floor = least;
  if (!border.listed) {
    weigh_kept(part, filter, scratch, [&](float x, std::uint32_t token, float) {
      return filter.passes(x, token) ? standing::kept : standing::out;
    });
    cluster_sync();
  }
  drawn_segment drawn{.cut = filter.cut};
  std::uint32_t listed = 0;
  bool right = true;
  if (part.rank == 0 && border.listed) listed = settle_border(part, filter, border, least, drawn.cut, right, scratch);
  finish_draw(request, row, part, filter, drawn, listed, true, scratch);
}

/// Samples a row whose groups' best keys are shared, of which `best` is the best. All threads of the cluster come.
template <class Part>
__device__ __forceinline__ void choose_token(const core::sample_request& request, std::int64_t row, const Part& part,
                                             std::uint32_t best, sample_scratch& scratch) {
  if (!scratch.params.valid || best == kNanGroup || best < kLeastKey) {
    const sample_status status = !scratch.params.valid ? sample_status::bad_parameter
                                 : best == kNanGroup   ? sample_status::nan_logit
                                                       : sample_status::nothing_allowed;
    if (part.rank == 0) write_failure(request.out, row, status);
    return;
  }

  const row_filter filter{core::from_ascending_key(best), scratch.params.steepness, kEveryCandidate,
                          core::float_from_bits(0xFF800000u)};
  const auto top_n = static_cast<std::uint32_t>(request.out.top_n);
  if (request.out.logprobs || top_n > 0) weigh_row(part, filter, scratch);
  const std::uint32_t wanted = wanted_by_count(scratch.params);
  if (wanted > 0 && wanted <= kListed) {
    list_best(part, filter, max(wanted, top_n), scratch);
    if (part.rank != 0) return;
    draw_from_list(request, row, part.blocks, filter, scratch);
  } else {
    draw_from_row(request, row, part, filter, scratch);
    if (top_n > 0) {
      cluster_sync();
      empty_list(part, scratch);
      list_best(part, filter, top_n, scratch);
      if (part.rank == 0) {
        const std::uint32_t n = min(scratch.listed, kListed);
        const std::uint64_t* keys = in_order(scratch.list, scratch.ordered, n);
        write_best(request.out, row, keys, n, filter, sum_of_segments(scratch.segment_weight, part.blocks, scratch));
      }
    }
  }
}

}  // namespace shortlist::cuda::sampling
