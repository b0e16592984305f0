// Sorting the k best of each row, for a k that no selection kernel sorts by itself.
//
// Why it is fast: one stable radix sort takes many rows at once, whatever their number and length, since its keys hold
// the row above and the value below; what moves with a key is only where its entry stood. The low bits that a widened
// fp16 or bf16 always has are left out. An fp64 fills the key: it is sorted by value first, then, stably, by row.
// Steps of a chunk of rows: keys and places -> CUB's radix sort -> values, then indices, copied aside and gathered.
// Entries come by ascending column, and padding comes last with NaN's key: a stable sort keeps both where they belong.
// Limit: a pass over key and place (24 bytes there and back) for each eight bits of key and row.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <cub/device/device_radix_sort.cuh>
#include <limits>

#include "cuda/runtime/launch.cuh"
#include "cuda/runtime/stream_memory.cuh"
#include "cuda/top_k/row_parts.cuh"
#include "cuda/top_k/sort_rows.hpp"
#include "shortlist/error.hpp"

namespace shortlist::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kKeyBits = 32;                                 // of fp32, fp16 and bf16; the row stands above them
constexpr std::int64_t kChunkBytes = std::int64_t{1} << 30;  // of temporary memory, unless one row needs more
constexpr std::int64_t kAlignment = 256;

/// Keys and places, twice each, as the sort goes from one to the other.
constexpr std::int64_t kEntryBytes = 2 * (sizeof(std::uint64_t) + sizeof(std::uint32_t));

/// Whole rows of the output, [first_row, first_row + rows).
struct rows_chunk {
  std::int64_t first_row;
  std::int64_t rows;
  std::int64_t entries;  // rows x k, below 2^32
};

struct keys_args {
  core::top_k_request request;
  rows_chunk chunk;
  std::uint64_t* keys;
  std::uint32_t* places;
};

struct row_keys_args {
  const std::uint32_t* places;
  std::uint64_t* keys;
  std::int64_t entries;
  std::int64_t k;
};

struct gather_args {
  const void* from;
  const std::uint32_t* places;
  void* to;
  std::int64_t entries;
};

__device__ __forceinline__ std::int64_t thread_entry() {
  return static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
}

/// The value of an entry: from the output, or, if values are not asked for, from the matrix.
template <class Stored>
__device__ __forceinline__ Stored entry_value(const core::top_k_request& request, std::int64_t row, std::int64_t at) {
  const top_k_output& out = request.out;
  if (out.values) return static_cast<const Stored*>(out.values)[at];
  const std::int64_t column = out.indices_as == index_type::i32 ? static_cast<const std::int32_t*>(out.indices)[at]
                                                                : static_cast<const std::int64_t*>(out.indices)[at];
  const value_matrix& matrix = request.matrix;
  return static_cast<const Stored*>(matrix.data)[row * matrix.row_stride + column * matrix.col_stride];
}

/// Keys ascend from the best to the worst: the complements of top k's own.
template <class Stored>
__global__ void __launch_bounds__(kThreads) keys_kernel(const __grid_constant__ keys_args args) {
  const std::int64_t entry = thread_entry();
  if (entry >= args.chunk.entries) return;
  const auto k = static_cast<std::uint32_t>(args.request.options.k);  // both fit: 32-bit division is far cheaper
  const std::uint32_t row_of_chunk = static_cast<std::uint32_t>(entry) / k;
  const std::int64_t rank = static_cast<std::uint32_t>(entry) % k;
  const std::int64_t row = args.chunk.first_row + row_of_chunk;
  key_for<Stored> key = 0;  // padding's, and NaN's
  if (rank < span_of(args.request, row).count) {
    const Stored value = entry_value<Stored>(args.request, row, row * k + rank);
    key = key_of_value(value, args.request.options.order == order::smallest);
  }
  std::uint64_t sorted_by = static_cast<key_for<Stored>>(~key);
  if constexpr (sizeof(Stored) < sizeof(std::uint64_t))
    sorted_by |= static_cast<std::uint64_t>(row_of_chunk) << kKeyBits;
  args.keys[entry] = sorted_by;
  args.places[entry] = static_cast<std::uint32_t>(entry);
}

/// Keys for sorting by row what is sorted by value.
__global__ void __launch_bounds__(kThreads) row_keys_kernel(const __grid_constant__ row_keys_args args) {
  const std::int64_t entry = thread_entry();
  if (entry < args.entries) args.keys[entry] = args.places[entry] / static_cast<std::uint32_t>(args.k);
}

template <class Word>
__global__ void __launch_bounds__(kThreads) gather_kernel(const __grid_constant__ gather_args args) {
  const std::int64_t entry = thread_entry();
  if (entry < args.entries)
    static_cast<Word*>(args.to)[entry] = static_cast<const Word*>(args.from)[args.places[entry]];
}

launch_shape shape_for(std::int64_t entries) {
  return {.grid = dim3(static_cast<unsigned>((entries + kThreads - 1) / kThreads)), .threads = kThreads};
}

/// CUB's sort, by the bits [low_bit, high_bit); asks only for `temporary_bytes` if `temporary` is null.
void sort_pairs(cudaStream_t stream, void* temporary, std::size_t& temporary_bytes,
                cub::DoubleBuffer<std::uint64_t>& keys, cub::DoubleBuffer<std::uint32_t>& places, std::int64_t entries,
                int low_bit, int high_bit) {
  check(cub::DeviceRadixSort::SortPairs(temporary, temporary_bytes, keys, places, entries, low_bit, high_bit, stream),
        "sorting the k best of each row");
}

constexpr std::int64_t rounded_up(std::int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

/// The memory of a chunk: two arrays of keys, one after the other, two of places, and what CUB asks for.
class sort_memory {
 public:
  sort_memory(cudaStream_t stream, std::int64_t entries)
      : entries_(entries),
        temporary_bytes_(temporary_bytes(stream, entries)),
        memory_(stream, rounded_up(entries * kEntryBytes) + static_cast<std::int64_t>(temporary_bytes_)) {}

  std::uint64_t* keys() const { return static_cast<std::uint64_t*>(memory_.data()); }
  std::uint32_t* places() const { return reinterpret_cast<std::uint32_t*>(keys() + 2 * entries_); }
  cub::DoubleBuffer<std::uint64_t> both_keys() const { return {keys(), keys() + entries_}; }
  cub::DoubleBuffer<std::uint32_t> both_places() const { return {places(), places() + entries_}; }
  void* temporary() const { return reinterpret_cast<unsigned char*>(keys()) + rounded_up(entries_ * kEntryBytes); }
  std::size_t temporary_bytes() const { return temporary_bytes_; }
  /// For the output's own entries while they are gathered: the keys, once they have sorted, are free.
  void* aside() const { return memory_.data(); }

 private:
  static std::size_t temporary_bytes(cudaStream_t stream, std::int64_t entries) {
    std::size_t bytes = 0;
    cub::DoubleBuffer<std::uint64_t> keys;
    cub::DoubleBuffer<std::uint32_t> places;
    sort_pairs(stream, nullptr, bytes, keys, places, entries, 0, 64);
    return bytes;
  }

  std::int64_t entries_;
  std::size_t temporary_bytes_;
  stream_memory memory_;
};

void gather(cudaStream_t stream, void* entries_of_out, std::int64_t word_bytes, const std::uint32_t* places,
            const sort_memory& memory, std::int64_t entries) {
  check(cudaMemcpyAsync(memory.aside(), entries_of_out, static_cast<std::size_t>(entries * word_bytes),
                        cudaMemcpyDeviceToDevice, stream),
        "copying the k best of each row");
  const gather_args args{memory.aside(), places, entries_of_out, entries};
  const auto kernel = word_bytes == 2   ? gather_kernel<std::uint16_t>
                      : word_bytes == 4 ? gather_kernel<std::uint32_t>
                                        : gather_kernel<std::uint64_t>;
  launch(kernel, shape_for(entries), stream, args, "launching the gathering of the k best");
}

/// Bits of a widened value that follow from its others.
template <class Stored>
constexpr int kConstantBits = std::is_same_v<Stored, bfloat16>  ? 16
                              : std::is_same_v<Stored, float16> ? 13
                                                                : 0;

template <class Stored>
void sort_chunk(cudaStream_t stream, const core::top_k_request& request, const rows_chunk& chunk,
                const sort_memory& memory) {
  const int row_bits = std::bit_width(static_cast<std::uint64_t>(chunk.rows - 1));
  auto keys = memory.both_keys();
  auto places = memory.both_places();
  std::size_t temporary_bytes = memory.temporary_bytes();
  const auto sort = [&](int low_bit, int high_bit) {
    sort_pairs(stream, memory.temporary(), temporary_bytes, keys, places, chunk.entries, low_bit, high_bit);
  };

  const keys_args args{request, chunk, keys.Current(), places.Current()};
  launch(keys_kernel<Stored>, shape_for(chunk.entries), stream, args, "launching the keys of the k best");
  if constexpr (sizeof(Stored) < sizeof(std::uint64_t)) {
    sort(kConstantBits<Stored>, kKeyBits + row_bits);
  } else {
    sort(0, 64);
    if (row_bits > 0) {
      const row_keys_args by_row{places.Current(), keys.Current(), chunk.entries, request.options.k};
      launch(row_keys_kernel, shape_for(chunk.entries), stream, by_row, "launching the rows of the k best");
      sort(0, row_bits);
    }
  }

  const std::int64_t first = chunk.first_row * request.options.k;
  const auto gather_from = [&](void* out, std::int64_t word_bytes) {
    if (out)
      gather(stream, static_cast<unsigned char*>(out) + first * word_bytes, word_bytes, places.Current(), memory,
             chunk.entries);
  };
  gather_from(request.out.values, size_bytes(request.matrix.type));
  gather_from(request.out.indices, request.out.indices_as == index_type::i32 ? 4 : 8);
}

}  // namespace

void launch_sort_rows(cudaStream_t stream, const core::top_k_request& request) {
  const std::int64_t rows = request.matrix.rows;
  const std::int64_t k = request.options.k;
  if (rows == 0 || k == 1 || request.out.mask) return;
  if (k > std::numeric_limits<std::uint32_t>::max()) throw unsupported("sorting 2^32 or more values of a row on a GPU");
  const std::int64_t chunk_rows = std::clamp<std::int64_t>(kChunkBytes / kEntryBytes / k, 1, rows);
  const sort_memory memory(stream, chunk_rows * k);
  for (std::int64_t first = 0; first < rows; first += chunk_rows) {
    const std::int64_t here = std::min(chunk_rows, rows - first);
    const rows_chunk chunk{first, here, here * k};
    switch (request.matrix.type) {
      case value_type::f32: sort_chunk<float>(stream, request, chunk, memory); break;
      case value_type::f16: sort_chunk<float16>(stream, request, chunk, memory); break;
      case value_type::bf16: sort_chunk<bfloat16>(stream, request, chunk, memory); break;
      case value_type::f64: sort_chunk<double>(stream, request, chunk, memory); break;
    }
  }
}

}  // namespace shortlist::cuda
