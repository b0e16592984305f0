// Row-wise top k, a block a row: any type, strides, width and k.
//
// Why it is right: the border is found by counting, whatever the data, and every column is written at its place. Rows
// whose keys fit in shared memory are read once; longer ones are read anew at every pass, from L2 where they fit there.
// Steps: keys -> a bracket of keys, interpolated while the row has a shape, halved and tightened to values that are
// there otherwise -> tiles of columns in order: ballots, a scan over the warps, stores. Limit: bytes(in) + bytes(out)
// over read bandwidth. Measured share: docs/kernels.md.
#include <algorithm>
#include <cmath>

#include "core/normal.hpp"
#include "core/order.hpp"
#include "core/score.hpp"
#include "cuda/device/cluster.cuh"
#include "cuda/device/score.cuh"
#include "cuda/runtime/launch.cuh"
#include "cuda/top_k/any_rows.hpp"

namespace shortlist::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarp;
constexpr int kGuesses = 8;
constexpr std::int64_t kSharedBytes = 227 * 1024;
constexpr std::uint32_t kInfinityKey = 0xFF800000u;
constexpr std::uint32_t kMinusInfinityKey = 0x007FFFFFu;

struct block_args {
  core::top_k_request request;
  float deviations;
  float eps;
  std::int32_t max_iter;
  bool stops_by_eps;
  bool stops_by_count;
};

/// 64-bit keys for fp64: the same order as that of the 32-bit ones.
__device__ __forceinline__ std::uint64_t key_of(double value) {
  if (value != value) return 0;
  const auto bits = static_cast<std::uint64_t>(__double_as_longlong(value + 0.0));
  return bits >> 63 ? ~bits : bits | (std::uint64_t{1} << 63);
}
__device__ __forceinline__ std::uint32_t key_of(float value) { return core::score_key(value, metric::inner_product); }

template <class Stored>
struct keyed {
  using key = std::uint32_t;
  static __device__ __forceinline__ key of(Stored value, bool negated) {
    const float wide = core::widen(value);
    return key_of(negated ? -wide : wide);
  }
};
template <>
struct keyed<double> {
  using key = std::uint64_t;
  static __device__ __forceinline__ key of(double value, bool negated) { return key_of(negated ? -value : value); }
};

template <class Key>
struct block_scratch {
  std::int64_t totals[2][kWarps];
  Key keys[2][kWarps];
  float floats[2][kWarps];
  std::int32_t sure[kWarps];
  std::int32_t fill[kWarps];
};

template <class Key>
struct selection {
  Key from;
  Key fill_from;
  std::int64_t sure;
  std::int64_t fill;
};

/// A row, and the sums of a block over it. Every thread gets every result.
template <class Stored, bool Resident>
class block_row {
 public:
  using key = typename keyed<Stored>::key;

  __device__ block_row(block_scratch<key>& scratch, key* kept) : scratch_(scratch), kept_(kept) {}

  __device__ void open(const Stored* values, std::int64_t stride, std::int64_t count, bool negated) {
    values_ = values;
    stride_ = stride;
    count_ = count;
    negated_ = negated;
    __syncthreads();  // the row before is done with
    if constexpr (Resident) {
      for (std::int64_t i = threadIdx.x; i < count; i += kThreads)
        kept_[i] = keyed<Stored>::of(values[i * stride], negated);
      __syncthreads();
    }
  }

  __device__ __forceinline__ key at(std::int64_t i) const {
    if constexpr (Resident) return kept_[i];
    return keyed<Stored>::of(values_[i * stride_], negated_);
  }
  __device__ __forceinline__ std::int64_t count() const { return count_; }

  __device__ std::int64_t count_from(key from) {
    std::int64_t mine = 0;
    for (std::int64_t i = threadIdx.x; i < count_; i += kThreads) mine += at(i) >= from ? 1 : 0;
    return sum_of(mine);
  }
  /// The least key >= from, and the most below limit.
  __device__ void tighten(key from, key limit, key& least, key& most) {
    key low = ~key{0};
    key high = 0;
    for (std::int64_t i = threadIdx.x; i < count_; i += kThreads) {
      const key k = at(i);
      if (k >= from && k < low) low = k;
      if (k < limit && k > high) high = k;
    }
    least = ~most_of(~low);
    most = most_of(high);
  }
  __device__ void moments(float& mean, float& deviation) {
    float sum = 0.0f;
    float squares = 0.0f;
    if constexpr (sizeof(key) == 4) {
      for (std::int64_t i = threadIdx.x; i < count_; i += kThreads) {
        const key k = at(i);
        const float value =
            k == core::kNanKey ? core::float_from_bits(core::kCanonicalNan) : core::from_ascending_key(k);
        sum += value;
        squares += value * value;
      }
    }
    sum = float_sum_of(sum);
    squares = float_sum_of(squares);
    mean = sum / static_cast<float>(count_);
    deviation = sqrtf(fmaxf(squares / static_cast<float>(count_) - mean * mean, 0.0f));
  }

 private:
  __device__ std::int64_t sum_of(std::int64_t value) {
    for (int o = kWarp / 2; o > 0; o >>= 1) value += __shfl_xor_sync(kFullWarp, value, o);
    std::int64_t* totals = scratch_.totals[turn_ ^= 1];
    if (threadIdx.x % kWarp == 0) totals[threadIdx.x / kWarp] = value;
    __syncthreads();
    std::int64_t all = 0;
    for (int w = 0; w < kWarps; w++) all += totals[w];
    return all;
  }
  __device__ key most_of(key value) {
    for (int o = kWarp / 2; o > 0; o >>= 1) value = max(value, __shfl_xor_sync(kFullWarp, value, o));
    key* keys = scratch_.keys[key_turn_ ^= 1];
    if (threadIdx.x % kWarp == 0) keys[threadIdx.x / kWarp] = value;
    __syncthreads();
    key all = 0;
    for (int w = 0; w < kWarps; w++) all = max(all, keys[w]);
    return all;
  }
  __device__ float float_sum_of(float value) {
    for (int o = kWarp / 2; o > 0; o >>= 1) value += __shfl_xor_sync(kFullWarp, value, o);
    float* floats = scratch_.floats[float_turn_ ^= 1];
    if (threadIdx.x % kWarp == 0) floats[threadIdx.x / kWarp] = value;
    __syncthreads();
    float all = 0.0f;
    for (int w = 0; w < kWarps; w++) all += floats[w];
    return all;
  }

  block_scratch<key>& scratch_;
  key* kept_;
  const Stored* values_ = nullptr;
  std::int64_t stride_ = 0;
  std::int64_t count_ = 0;
  bool negated_ = false;
  int turn_ = 0;
  int key_turn_ = 0;
  int float_turn_ = 0;
};

/// The exact border. @pre 1 <= k <= the row's columns.
template <class Row>
__device__ selection<typename Row::key> find_border(Row& row, std::int64_t k, float deviations) {
  using key = typename Row::key;
  float mean = 0.0f;
  float deviation = 0.0f;
  row.moments(mean, deviation);
  const bool has_shape = isfinite(mean) && isfinite(deviation) && deviation > 0.0f;
  key low = 0;
  key high = ~key{0};
  std::int64_t at_low = row.count();
  std::int64_t at_high = 0;
  float at = mean + deviations * deviation;
  float step = 0.25f;
  for (int pass = 0;; pass++) {
    const bool guesses = has_shape && pass < kGuesses;
    if (!guesses) {
      key most = 0;
      row.tighten(low, high, low, most);
      if (low >= most) return {most + 1, most, at_high, k - at_high};
      high = most + 1;
    }
    key from = low + (high - low) / 2;
    if (guesses) {
      if (low > kMinusInfinityKey && high < kInfinityKey) {
        const float low_value = core::from_ascending_key(static_cast<std::uint32_t>(low));
        const float share = (static_cast<float>(at_low - k) + 0.5f) / static_cast<float>(at_low - at_high);
        at = low_value +
             (core::from_ascending_key(static_cast<std::uint32_t>(high)) - low_value) * fminf(0.9f, fmaxf(0.1f, share));
      }
      if (isfinite(at)) from = core::ascending_key(at);
    }
    from = min(max(from, low + 1), high - 1);
    const std::int64_t reached = row.count_from(from);
    if (reached == k) return {from, from, k, 0};
    if (reached > k) {
      low = from;
      at_low = reached;
      at += step * deviation;
    } else {
      high = from;
      at_high = reached;
      at -= step * deviation;
    }
    step *= 1.5f;
    if (high - low <= 1) return {low + 1, low, at_high, k - at_high};
  }
}

__device__ __forceinline__ float midpoint(float low, float high) {
  const float sum = __fadd_rn(low, high);
  return isfinite(sum) ? __fmul_rn(sum, 0.5f) : __fadd_rn(__fmul_rn(low, 0.5f), __fmul_rn(high, 0.5f));
}

/// Algorithms 1 and 2. @pre all values are finite.
template <class Row>
__device__ selection<std::uint32_t> bisect(const block_args& args, Row& row, std::int64_t k, std::uint32_t least,
                                           std::uint32_t most) {
  float low = core::from_ascending_key(least);
  float high = core::from_ascending_key(most);
  const float width = __fmul_rn(args.eps, fabsf(high));
  for (int pass = 0;; pass++) {
    const float middle = midpoint(low, high);
    if (args.stops_by_count ? pass == args.max_iter
                            : !(__fsub_rn(high, low) > width) || middle <= low || middle >= high)
      break;
    const std::uint32_t from = core::ascending_key(middle);
    const std::int64_t reached = row.count_from(from);
    if (args.stops_by_eps && reached == k) return {from, from, k, 0};
    (reached < k ? high : low) = middle;
  }
  const std::uint32_t low_key = core::ascending_key(low);
  if (args.stops_by_count) return {low_key, low_key, k, 0};
  const std::uint32_t high_key = core::ascending_key(high);
  const std::int64_t above = row.count_from(high_key);
  return {high_key, low_key, min(above, k), max(k - above, std::int64_t{0})};
}

template <class Stored>
__device__ __forceinline__ Stored padding(bool negated) {
  if constexpr (sizeof(Stored) == 8) return negated ? HUGE_VAL : -HUGE_VAL;
  if constexpr (sizeof(Stored) == 4) return core::float_from_bits(negated ? 0x7F800000u : 0xFF800000u);
  return Stored{};
}
template <>
__device__ __forceinline__ float16 padding<float16>(bool negated) {
  return {static_cast<std::uint16_t>(negated ? 0x7C00 : 0xFC00)};
}
template <>
__device__ __forceinline__ bfloat16 padding<bfloat16>(bool negated) {
  return {static_cast<std::uint16_t>(negated ? 0x7F80 : 0xFF80)};
}

template <class Stored>
__device__ __forceinline__ void write_entry(const top_k_output& out, std::int64_t to, Stored value,
                                            std::int64_t column) {
  if (out.values) static_cast<Stored*>(out.values)[to] = value;
  if (!out.indices) return;
  if (out.indices_as == index_type::i32) {
    static_cast<std::int32_t*>(out.indices)[to] = static_cast<std::int32_t>(column);
  } else {
    static_cast<std::int64_t*>(out.indices)[to] = column;
  }
}

template <class Stored, bool Resident>
__global__ void __launch_bounds__(kThreads) any_rows_kernel(const __grid_constant__ block_args args) {
  using row_type = block_row<Stored, Resident>;
  using key = typename row_type::key;
  __shared__ block_scratch<key> scratch;
  const core::top_k_request& request = args.request;
  const value_matrix& matrix = request.matrix;
  const top_k_output& out = request.out;
  const std::int64_t k = request.options.k;
  const bool negated = request.options.order == order::smallest;
  const bool sorts = request.options.sorted && !out.mask;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  row_type row(scratch, reinterpret_cast<key*>(dynamic_shared()));
  for (std::int64_t index = blockIdx.x; index < matrix.rows; index += gridDim.x) {
    const std::int64_t begin = request.ragged.begins ? request.ragged.begins[index] : 0;
    const std::int64_t end = request.ragged.ends ? request.ragged.ends[index] : matrix.cols;
    const std::int64_t count = end - begin;
    const auto* values =
        static_cast<const Stored*>(matrix.data) + index * matrix.row_stride + begin * matrix.col_stride;
    row.open(values, matrix.col_stride, count, negated);
    const std::int64_t best = min(k, count);
    selection<key> chosen{~key{0}, ~key{0}, 0, 0};
    if (best > 0) {
      bool early = false;
      if constexpr (sizeof(key) == 4) {
        if ((args.stops_by_eps || args.stops_by_count) && count > k) {
          key least = 0;
          key most = 0;
          row.tighten(0, ~key{0}, least, most);
          early = least > kMinusInfinityKey && most < kInfinityKey;
          if (early) chosen = bisect(args, row, k, least, most);
        }
      }
      if (!early) chosen = find_border(row, best, args.deviations);
    }

    std::uint8_t* mask = out.mask ? out.mask + index * matrix.cols : nullptr;
    if (mask) {
      for (std::int64_t c = threadIdx.x; c < matrix.cols; c += kThreads)
        if (c < begin || c >= end) mask[c] = 0;
    }
    std::int64_t sure_before = 0;
    std::int64_t fill_before = 0;
    for (std::int64_t start = 0; start < count; start += kThreads) {
      const std::int64_t i = start + threadIdx.x;
      const key mine = i < count ? row.at(i) : 0;
      const bool sure = i < count && mine >= chosen.from;
      const bool fill = i < count && !sure && mine >= chosen.fill_from;
      const unsigned sure_lanes = __ballot_sync(kFullWarp, sure);
      const unsigned fill_lanes = __ballot_sync(kFullWarp, fill);
      __syncthreads();  // the tile before has read the totals
      if (lane == 0) {
        scratch.sure[warp] = __popc(sure_lanes);
        scratch.fill[warp] = __popc(fill_lanes);
      }
      __syncthreads();
      std::int64_t my_sure = sure_before + __popc(sure_lanes & ((1u << lane) - 1u));
      std::int64_t my_fill = fill_before + __popc(fill_lanes & ((1u << lane) - 1u));
      for (int w = 0; w < kWarps; w++) {
        if (w < warp) {
          my_sure += scratch.sure[w];
          my_fill += scratch.fill[w];
        }
        sure_before += scratch.sure[w];
        fill_before += scratch.fill[w];
      }
      const bool selected = (sure && my_sure < chosen.sure) || (fill && my_fill < chosen.fill);
      if (mask) {
        if (i < count) mask[begin + i] = selected ? 1 : 0;
      } else if (selected) {
        std::int64_t place = min(my_sure, chosen.sure) + min(my_fill, chosen.fill);
        if (sorts) {  // among those that are selected: all above, and of equal ones the columns before
          place = 0;
          std::int64_t sure_seen = 0;
          std::int64_t fill_seen = 0;
          for (std::int64_t j = 0; j < count; j++) {
            const key other = row.at(j);
            const bool other_sure = other >= chosen.from && sure_seen++ < chosen.sure;
            const bool other_fill = other < chosen.from && other >= chosen.fill_from && fill_seen++ < chosen.fill;
            place += (other_sure || other_fill) && (other > mine || (other == mine && j < i)) ? 1 : 0;
          }
        }
        write_entry<Stored>(out, index * k + place, values[i * matrix.col_stride], begin + i);
      }
    }
    if (!mask) {
      for (std::int64_t place = best + threadIdx.x; place < k; place += kThreads)
        write_entry<Stored>(out, index * k + place, padding<Stored>(negated), -1);
    }
  }
}

template <class Stored>
void launch_type(cudaStream_t stream, const block_args& args, int multiprocessors) {
  using key = typename keyed<Stored>::key;
  const std::int64_t key_bytes = args.request.matrix.cols * static_cast<std::int64_t>(sizeof(key));
  const bool resident = key_bytes <= kSharedBytes - static_cast<std::int64_t>(sizeof(block_scratch<key>)) - 1024;
  const launch_shape how{
      .grid = dim3(static_cast<unsigned>(std::min<std::int64_t>(args.request.matrix.rows, 4 * multiprocessors))),
      .threads = kThreads,
      .shared_bytes = resident ? key_bytes : 0};
  launch(resident ? any_rows_kernel<Stored, true> : any_rows_kernel<Stored, false>, how, stream, args,
         "launching the row-wise top k");
}

}  // namespace

void launch_any_rows(cudaStream_t stream, const core::top_k_request& request, int multiprocessors) {
  block_args args{};
  args.request = request;
  const double share =
      (static_cast<double>(request.options.k) + 0.5) / (static_cast<double>(request.matrix.cols) + 1.0);
  args.deviations = static_cast<float>(core::upper_quantile(share));
  args.stops_by_eps = request.options.eps.has_value();
  args.eps = request.options.eps.value_or(0.0f);
  args.stops_by_count = request.options.max_iter.has_value();
  args.max_iter = request.options.max_iter.value_or(0);
  switch (request.matrix.type) {
    case value_type::f32: return launch_type<float>(stream, args, multiprocessors);
    case value_type::f16: return launch_type<float16>(stream, args, multiprocessors);
    case value_type::bf16: return launch_type<bfloat16>(stream, args, multiprocessors);
    case value_type::f64: return launch_type<double>(stream, args, multiprocessors);
  }
}

}  // namespace shortlist::cuda
