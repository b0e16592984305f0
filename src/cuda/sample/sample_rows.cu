// Sampling: a row of logits by a cluster of blocks, which hold it on the chip from the one time that it is read.
//
// Why it is fast: a row is read once, by 16-byte loads of up to eight blocks; all later passes touch shared memory.
// With top_k on, a cut that the k best surely reach comes for nothing from the best of 128 disjoint groups of tokens,
// and what reaches it is a list of about 1.5 k in the first block, which alone orders, weighs and draws. Without top_k,
// counts of exponents guess where top_p's border is; one weighing confirms it, and only the border's tokens are listed.
// Steps: load -> penalties, bias, mask, if there are any -> best of groups, shared -> list of the best, or cuts of the
// whole row -> draw: from the list; or a segment by the sums of the kept weights, then its token.
// Exact for any data: sums are integers; a list that overflows is shortened by a cut that is searched by counting, and
// a border bin that overflows by weighing, keys and tokens as one number, so that no ties are left.
// Limit: bytes(logits) over read bandwidth. Measured share: docs/kernels.md.
// History, 64 x 128,256 bf16, k 50: appended by remote atomics 31.7 us -> shares of the list, all clusters resident at
// once, groups cut within a warp 22.8.
#include <algorithm>
#include <cstdint>
#include <optional>

#include "cuda/runtime/launch.cuh"
#include "cuda/runtime/stream_memory.cuh"
#include "cuda/sample/row_draw.cuh"
#include "cuda/sample/row_load.cuh"
#include "cuda/sample/sample_rows.hpp"
#include "cuda/top_k/row_parts.cuh"

namespace shortlist::cuda {
namespace {

using namespace sampling;

constexpr std::int64_t kMostHeld = 16'384;  // logits a block: two of fp32 share a multiprocessor, five of 16 bits
constexpr std::int64_t kLeastHeld = 2'048;  // fewer a block do not pay for its part in the meetings
constexpr std::int64_t kWantedBlocks = 2;   // a multiprocessor, where rows are few
constexpr std::int64_t kMemoryBytes = std::int64_t{256} << 20;  // of rows that are held in global memory
constexpr std::int64_t kMostGrid = std::int64_t{1} << 30;

struct sample_args {
  core::sample_request request;
  float* memory;  // [blocks, kWarps, segment] of rows that are not held on the chip; else null
  std::int64_t first_row;
  std::uint32_t segment;
};

/// The tokens that top_k, or what amounts to it, leaves; 0 if all.
__device__ __forceinline__ std::uint32_t wanted_by_count(const core::row_params& params) {
  const bool only_best = params.greedy || (!params.top_p_off && params.top_p == 0);
  return only_best ? 1 : static_cast<std::uint32_t>(params.top_k);
}

__device__ __forceinline__ float minimum_exponent(const core::row_params& params) {
  return params.min_p_off ? minus_infinity<float>() : params.least_exponent;
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

/// The same for keys that are no more than threads: one sum over all weights serves all filters. @param weights room
/// for as many as keys.
__device__ __forceinline__ void draw_from_few(const core::sample_request& request, std::int64_t row,
                                              const std::uint64_t* keys, std::uint64_t* weights, std::uint32_t n,
                                              std::uint64_t full, const row_filter& filter, sample_scratch& scratch) {
  const core::row_params& params = scratch.params;
  const std::uint32_t i = threadIdx.x;
  const float exponent = i < n ? filter.exponent_of_key(keys[i]) : minus_infinity<float>();
  const std::uint64_t weight = core::weight_of(exponent);
  std::uint64_t total = 0;
  const std::uint64_t before = sum_before(weight, scratch, total);
  if (i < n) weights[i] = weight;
  std::uint32_t kept = n;
  const auto keep = [&](bool mine) { kept = static_cast<std::uint32_t>(__syncthreads_count(i < kept && mine)); };
  const auto weight_of_kept = [&] {
    if (i == kept - 1) scratch.told = before + weight;
    __syncthreads();
    return scratch.told;
  };
  const bool min_p_first = request.params.min_p_order == min_p_order::first;
  if (!params.min_p_off && min_p_first) keep(exponent >= params.least_exponent);
  if (!params.top_p_off && kept > 1) keep(before < core::share_of(weight_of_kept(), params.top_p));
  if (!params.min_p_off && !min_p_first) keep(exponent >= params.least_exponent);
  const std::uint64_t place = core::drawn_of(weight_of_kept(), core::philox(params.seed, params.offset));

  std::uint32_t helpers = 1;  // threads that add up for one token
  while (helpers < kWarp && kept * helpers * 2 <= kThreads) helpers *= 2;
  const std::uint32_t place_of_mine = i / helpers;
  const std::uint64_t mine = place_of_mine < kept ? keys[place_of_mine] : core::kNoRow;
  const std::uint32_t token = core::position_of(mine);
  std::uint64_t up_to = 0;
#pragma unroll 4
  for (std::uint32_t other = i % helpers; other < kept; other += helpers)
    up_to += core::position_of(keys[other]) <= token ? weights[other] : 0;
#pragma unroll 1
  for (std::uint32_t offset = helpers / 2; offset > 0; offset /= 2)
    up_to += __shfl_xor_sync(kFullWarp, up_to, static_cast<int>(offset));
  if (place_of_mine >= kept || i % helpers != 0) return;
  if (place < up_to && up_to - weights[place_of_mine] <= place)
    write_draw(request.out, row, token, filter.exponent_of_key(mine), full, kept);
}

/// Draws from the list of the best, which holds all that top_k can leave. The first block comes, after the meeting at
/// which the list was complete.
__device__ __forceinline__ void draw_from_list(const core::sample_request& request, std::int64_t row,
                                               std::uint32_t blocks, const row_filter& filter,
                                               sample_scratch& scratch) {
  const std::uint32_t n = min(scratch.listed, kListed);
  std::uint64_t* keys = in_order(scratch.list, scratch.ordered, n);
  const bool weighs_all = request.out.logprobs || request.out.top_n > 0;
  const std::uint64_t full = weighs_all ? sum_of_segments(scratch.segment_weight, blocks, scratch) : 0;
  write_best(request.out, row, keys, n, filter, full);
  const std::uint32_t wanted = min(n, wanted_by_count(scratch.params));
  if (n <= kThreads)
    draw_from_few(request, row, keys, scratch.list, wanted, full, filter, scratch);
  else
    draw_from_many(request, row, keys, wanted, full, filter, scratch);
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
template <class Held>
__device__ __forceinline__ weight_border list_border(const row_part<Held>& part, const row_filter& filter,
                                                     float least_kept, sample_scratch& scratch) {
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
template <class Held>
__device__ __forceinline__ std::uint32_t settle_border(const row_part<Held>& part, const row_filter& filter,
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
    add_in_words(words[0], words[1], core::weight_of(filter.exponent_of_key(keys[i])));
  }
  __syncthreads();
  return kept;
}

/// Draws from the segments, in the block that has the one that is drawn. @param filter of what is kept, but for the
/// cut, which is drawn.cut. @param listed how many of the border's list are kept. @param right whether to draw at all;
/// of the first block, as `drawn` and `listed`. @returns that. All threads of the cluster come.
template <class Held>
__device__ __forceinline__ bool finish_draw(const core::sample_request& request, std::int64_t row,
                                            const row_part<Held>& part, row_filter filter, drawn_segment drawn,
                                            std::uint32_t listed, bool right, sample_scratch& scratch) {
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
template <class Held, class Filter>
__device__ __forceinline__ bool draw_by_guess(const core::sample_request& request, std::int64_t row,
                                              const row_part<Held>& part, Filter filter, float least_kept,
                                              sample_scratch& scratch) {
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
template <class Held>
__device__ __forceinline__ void draw_from_row(const core::sample_request& request, std::int64_t row,
                                              const row_part<Held>& part, row_filter filter, sample_scratch& scratch) {
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
          part, filter, scratch, 0, [&](float x) { return core::weight_of(filter.exponent(x)); },
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

template <class Stored, class Held>
__device__ __forceinline__ row_part<Held> part_of(const sample_args& args, const Stored* row, unsigned char* shared) {
  const value_matrix& logits = args.request.logits;
  row_part<Held> part;
  part.segment = args.segment;
  part.blocks = cluster_size();
  part.rank = cluster_rank();
  part.shift = logits.col_stride == 1 || logits.cols == 1
                   ? static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(row) % 16 / sizeof(Stored))
                   : 0;
  part.vocab = static_cast<std::uint32_t>(logits.cols);
  part.held = reinterpret_cast<Held*>(shared);
  return part;
}

/// Blocks that a multiprocessor has room for: shared memory's share of kMostHeld logits decides.
template <class Stored, bool Plain>
constexpr int blocks_held = Plain && sizeof(Stored) == 2 ? 5 : 2;

/// @tparam Plain the logits are held as they are stored; else as fp32, penalties, bias and mask applied.
template <class Stored, bool Plain>
__global__ void __launch_bounds__(kThreads, blocks_held<Stored, Plain>)
    sample_rows_kernel(const __grid_constant__ sample_args args) {
  using held = std::conditional_t<Plain, Stored, float>;
  const core::sample_request& request = args.request;
  const value_matrix& logits = request.logits;
  auto& scratch = *reinterpret_cast<sample_scratch*>(dynamic_shared());
  const std::int64_t row = args.first_row + blockIdx.x / cluster_size();
  const Stored* values = static_cast<const Stored*>(logits.data) + row * logits.row_stride;
  cluster_arrive();
  auto part = part_of<Stored, held>(args, values, reinterpret_cast<unsigned char*>(&scratch + 1));
  if constexpr (!Plain) {
    if (args.memory) part.held = args.memory + std::int64_t{blockIdx.x} * kWarps * args.segment;
  }
  if (threadIdx.x == 0) {
    scratch.params = core::params_of(request.params, row, logits.cols);
    scratch.listed = 0;
    scratch.appended = 0;
  }
  float most = logits.col_stride == 1 || logits.cols == 1 ? load_part(part, values)
                                                          : load_part_apart(part, values, logits.col_stride);
  __syncthreads();
  if constexpr (!Plain) {
    const bool has_history = request.params.prompt.begins || request.params.generated.begins;
    if (has_history && scratch.params.valid && !penalize_few(part, request, row, scratch))
      penalize_many(part, request, row, scratch);
    most = change_part(part, request, row);
  }
  cluster_wait();  // all blocks have begun
  share_groups(part, most, scratch);
  const std::uint32_t best = best_of_groups(scratch);
  if (!scratch.params.valid || best == kNanGroup || best < kLeastKey) {
    const sample_status status = !scratch.params.valid ? sample_status::bad_parameter
                                 : best == kNanGroup   ? sample_status::nan_logit
                                                       : sample_status::nothing_allowed;
    if (part.rank == 0) write_failure(request.out, row, status);
    return;
  }

  const row_filter filter{core::from_ascending_key(best), scratch.params.steepness, kEveryCandidate,
                          minus_infinity<float>()};
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
    if (part.rank != 0) return;
  }
  cluster_sync();  // the others may still look at this block's memory, until they end
}

/// Blocks a row: enough to hold it, and more where rows are few.
int blocks_of(const core::sample_request& request, int multiprocessors) {
  int blocks = 1;
  const auto grow_while = [&](auto condition) {
    while (blocks < kMostBlocks && condition()) blocks *= 2;
  };
  grow_while([&] { return request.logits.cols > kMostHeld * blocks; });
  grow_while([&] {
    return request.logits.cols >= 2 * kLeastHeld * blocks &&
           request.logits.rows * blocks < kWantedBlocks * multiprocessors;
  });
  return blocks;
}

bool is_plain(const sample_params& params) {
  return !params.prompt.begins && !params.generated.begins && !params.bias.values && !params.allowed.data;
}

template <class Stored, bool Plain>
void launch_rows(cudaStream_t stream, bool on_chip, const core::sample_request& request, int multiprocessors) {
  using held = std::conditional_t<Plain, Stored, float>;
  constexpr std::int64_t kMostShift = 16 / static_cast<std::int64_t>(sizeof(Stored)) - 1;
  const int blocks = blocks_of(request, multiprocessors);
  const std::int64_t segments = std::int64_t{blocks} * kWarps;
  const std::int64_t least = (request.logits.cols + kMostShift + segments - 1) / segments;
  const std::int64_t segment = (least + kSegmentUnit - 1) / kSegmentUnit * kSegmentUnit;
  const std::int64_t row_bytes = segments * segment * static_cast<std::int64_t>(sizeof(held));
  const std::int64_t rows = request.logits.rows;
  const std::int64_t at_once =
      std::clamp(on_chip ? kMostGrid / blocks : kMemoryBytes / row_bytes, std::int64_t{1}, rows);
  std::optional<stream_memory> memory;
  if (!on_chip) memory.emplace(stream, at_once * row_bytes);
  for (std::int64_t first = 0; first < rows; first += at_once) {
    const sample_args args{request, memory ? static_cast<float*>(memory->data()) : nullptr, first,
                           static_cast<std::uint32_t>(segment)};
    launch_shape shape;
    shape.grid = dim3(static_cast<unsigned>(std::min(at_once, rows - first) * blocks));
    shape.threads = kThreads;
    shape.shared_bytes = static_cast<std::int64_t>(sizeof(sample_scratch)) + (on_chip ? row_bytes / blocks : 0);
    shape.cluster = blocks;
    launch(sample_rows_kernel<Stored, Plain>, shape, stream, args, "starting to sample rows");
  }
}

}  // namespace

void launch_sample_rows(cudaStream_t stream, core::sample_algorithm algorithm, const core::sample_request& request,
                        int multiprocessors) {
  const bool on_chip = algorithm == core::sample_algorithm::chip_rows;
  by_stored_type(request.logits.type, [&](auto stored) {
    using stored_type = decltype(stored);
    if (on_chip && is_plain(request.params))
      launch_rows<stored_type, true>(stream, on_chip, request, multiprocessors);
    else
      launch_rows<stored_type, false>(stream, on_chip, request, multiprocessors);
  });
}

}  // namespace shortlist::cuda
