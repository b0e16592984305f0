// Flat search kernels in vector instructions: one source for AVX-512, AVX2 and NEON, compiled once for each.
//
// The 128 partial sums of a score are 128 / lanes vectors. Elements i, i + 128, ... of a row always meet the same lane
// of the same vector, so a block of 128 elements is one fused multiply-add per vector.
//
// One query (row_sums): eight vectors at a time stay in registers, which hides the latency of the multiply-add. AVX-512
// has eight in all; AVX2 goes over a row twice, NEON four times, and takes every second (fourth) vector each time, so
// that the tree's adds for s = 64, 32, ... pair whole vectors, and a pass leaves one vector to pair with another's.
// The adds below a vector's width are done for as many rows at once as there are lanes, by transposing.
//
// Many queries (tile_sums): a tile of rows x queries, one vector position at a time, each loaded element serving a
// whole row or column of the tile. Rows and queries are packed in the order in which the tile reads them; positions
// come in bit-reversed order, so that at most log2(positions) results wait for their partner in the tree.
//
// Limit: one query, the bytes of the rows over the read bandwidth; many, the rate of multiply-adds.
#include "cpu/targets.hpp"
// Highway compiles this file once for each target, each time in a namespace of its own.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/flat/simd_kernels.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// Highway's headers come first: foreach_target includes this file again from here.
#include <utility>

#include "core/score.hpp"
#include "cpu/flat/kernels.hpp"
#include "hwy/cache_control.h"

HWY_BEFORE_NAMESPACE();
namespace shortlist::cpu::HWY_NAMESPACE {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_NEON

namespace hn = hwy::HWY_NAMESPACE;

using float_tag = hn::ScalableTag<float>;
using vector = hn::Vec<float_tag>;
constexpr float_tag kFloats;
constexpr hn::RebindToSigned<float_tag> kInts;

constexpr int kLanes = HWY_LANES(float);
constexpr int kPositions = core::kPartialSums / kLanes;  // vectors that hold the partial sums
constexpr int kAccumulators = 8;                         // of them in registers during row_sums
constexpr int kPasses = kPositions / kAccumulators;

// Rows x queries of a tile: as many sums as the registers hold beside the operands. The rows stream through the first
// cache and the queries stay in it, so the wider side are the queries.
constexpr int kTileRows = HWY_TARGET == HWY_AVX2 ? 3 : 6;
constexpr int kTileQueries = 4;
static_assert(kBlockRows % kTileRows == 0 && kBlockRows % kLanes == 0 && kSumsSlack >= kLanes);

// How far ahead of the row that is summed its successors are fetched.
constexpr std::int64_t kPrefetchBytes = 8192;
constexpr std::int64_t kLineBytes = 64;
constexpr int kSecondCache = 2;  // the locality that __builtin_prefetch takes for it

// Compilers inline a lambda of this size only when told to.
#undef SHORTLIST_INLINE_LAMBDA
#define SHORTLIST_INLINE_LAMBDA HWY_ATTR __attribute__((always_inline))

template <class Body, int... I>
HWY_INLINE void unroll_over(Body&& body, std::integer_sequence<int, I...>) {
  (body(std::integral_constant<int, I>()), ...);
}

/// body(0), ..., body(Count - 1), with constants: arrays that they index stay in registers.
template <int Count, class Body>
HWY_INLINE void unroll(Body&& body) {
  unroll_over(body, std::make_integer_sequence<int, Count>());
}

/// `value` with its log2(count) bits in reverse.
constexpr int bit_reversed(int value, int count) {
  int reversed = 0;
  for (int bit = 1; bit < count; bit *= 2) reversed = 2 * reversed + ((value & bit) != 0 ? 1 : 0);
  return reversed;
}

constexpr int log2_of(int count) { return count <= 1 ? 0 : 1 + log2_of(count / 2); }

// ---- elements

HWY_INLINE vector load_wide(const float* from) { return hn::LoadU(kFloats, from); }
HWY_INLINE vector load_wide(const float16* from) {
  const hn::Rebind<hwy::float16_t, float_tag> narrow;
  return hn::PromoteTo(kFloats, hn::LoadU(narrow, reinterpret_cast<const hwy::float16_t*>(from)));
}
HWY_INLINE vector load_wide(const bfloat16* from) {
  const hn::Rebind<hwy::bfloat16_t, float_tag> narrow;
  return hn::PromoteTo(kFloats, hn::LoadU(narrow, reinterpret_cast<const hwy::bfloat16_t*>(from)));
}
HWY_INLINE vector load_wide(const std::int8_t* from) {
  const hn::Rebind<std::int8_t, float_tag> narrow;
  return hn::ConvertTo(kFloats, hn::PromoteTo(kInts, hn::LoadU(narrow, from)));
}
HWY_INLINE vector load_wide(const std::uint8_t* from) {
  const hn::Rebind<std::uint8_t, float_tag> narrow;
  return hn::ConvertTo(kFloats, hn::PromoteTo(kInts, hn::LoadU(narrow, from)));
}

struct dot_step {
  static HWY_INLINE vector next(vector query, vector row, vector sum) { return hn::MulAdd(query, row, sum); }
};
struct l2_step {
  static HWY_INLINE vector next(vector query, vector row, vector sum) {
    const vector difference = hn::Sub(query, row);
    return hn::MulAdd(difference, difference, sum);
  }
};

/// How many steps a vector position takes: one in each whole block of 128 elements, and one in the rest if it begins
/// within it. The rest of a vector beyond dim is padding, which changes no sum.
struct steps {
  explicit steps(std::int64_t dim)
      : blocks(dim / core::kPartialSums), rest_positions((dim % core::kPartialSums + kLanes - 1) / kLanes) {}
  std::int64_t of(int position) const { return blocks + (position < rest_positions ? 1 : 0); }
  std::int64_t all() const { return blocks * kPositions + rest_positions; }

  std::int64_t blocks;
  std::int64_t rest_positions;
};

// ---- the tree below a vector's width

/// Four rows' vectors; within each 128-bit block, the sums of lanes 0..3 of the four (s = 2, 1), in order.
HWY_INLINE vector sum_blocks(vector a, vector b, vector c, vector d) {
  const hn::Repartition<double, float_tag> pairs;
  const vector ab = hn::Add(hn::InterleaveLower(kFloats, a, b), hn::InterleaveUpper(kFloats, a, b));
  const vector cd = hn::Add(hn::InterleaveLower(kFloats, c, d), hn::InterleaveUpper(kFloats, c, d));
  const auto ab_pairs = hn::BitCast(pairs, ab);
  const auto cd_pairs = hn::BitCast(pairs, cd);
  return hn::Add(hn::BitCast(kFloats, hn::InterleaveLower(pairs, ab_pairs, cd_pairs)),
                 hn::BitCast(kFloats, hn::InterleaveUpper(pairs, ab_pairs, cd_pairs)));
}

/// The sums of the lanes of each of kLanes vectors, by the tree: lane i is the sum of v[i].
HWY_INLINE vector sum_lanes(const vector* v) {
#if HWY_TARGET == HWY_NEON
  return sum_blocks(v[0], v[1], v[2], v[3]);
#else
  // s = half a vector: a row in each half.
  vector halves[kLanes / 2];
  unroll<kLanes / 2>([&](auto i) SHORTLIST_INLINE_LAMBDA {
    halves[i] = hn::Add(hn::ConcatLowerLower(kFloats, v[i + kLanes / 2], v[i]),
                        hn::ConcatUpperUpper(kFloats, v[i + kLanes / 2], v[i]));
  });
#if HWY_TARGET == HWY_AVX2
  return sum_blocks(halves[0], halves[1], halves[2], halves[3]);
#else
  // s = 4: a row in each quarter.
  vector quarters[4];
  unroll<4>([&](auto i) SHORTLIST_INLINE_LAMBDA {
    quarters[i] = hn::Add(hn::OddEvenBlocks(hn::SwapAdjacentBlocks(halves[i + 4]), halves[i]),
                          hn::OddEvenBlocks(halves[i + 4], hn::SwapAdjacentBlocks(halves[i])));
  });
  return sum_blocks(quarters[0], quarters[1], quarters[2], quarters[3]);
#endif
#endif
}

// ---- one query

/// The tree of one row down to a single vector. Meanwhile as many bytes from `ahead` on travel to the first cache.
template <class Step, class Query, class T>
HWY_INLINE vector row_vector(const Query* query, const T* row, const steps& count, const std::byte* ahead) {
  vector waiting[kPasses > 1 ? log2_of(kPasses) : 1];
  vector result = hn::Zero(kFloats);
  unroll<kPasses>([&](auto pass) SHORTLIST_INLINE_LAMBDA {
    constexpr int kFirst = bit_reversed(pass, kPasses);
    constexpr int kBlockLines = static_cast<int>(core::kPartialSums * sizeof(T) / kLineBytes);
    const std::byte* row_ahead = ahead;
    vector p[kAccumulators];
    unroll<kAccumulators>([&](auto i) SHORTLIST_INLINE_LAMBDA { p[i] = hn::Zero(kFloats); });
    const Query* q = query + kFirst * kLanes;
    const T* x = row + kFirst * kLanes;
    for (std::int64_t block = 0; block < count.blocks; ++block) {
      unroll<kBlockLines>([&](auto line) SHORTLIST_INLINE_LAMBDA {
        if constexpr (line * kPasses / kBlockLines == pass) hwy::Prefetch(row_ahead + line * kLineBytes);
      });
      row_ahead += kBlockLines * kLineBytes;
      unroll<kAccumulators>([&](auto i) SHORTLIST_INLINE_LAMBDA {
        constexpr int kOffset = i * kPasses * kLanes;
        p[i] = Step::next(load_wide(q + kOffset), load_wide(x + kOffset), p[i]);
      });
      q += core::kPartialSums;
      x += core::kPartialSums;
    }
    if (count.rest_positions > 0) {
      if constexpr (pass == 0) hwy::Prefetch(row_ahead);
      unroll<kAccumulators>([&](auto i) SHORTLIST_INLINE_LAMBDA {
        constexpr int kOffset = i * kPasses * kLanes;
        if (kFirst + i * kPasses < count.rest_positions) {
          p[i] = Step::next(load_wide(q + kOffset), load_wide(x + kOffset), p[i]);
        }
      });
    }
    unroll<4>([&](auto i) SHORTLIST_INLINE_LAMBDA { p[i] = hn::Add(p[i], p[i + 4]); });
    unroll<2>([&](auto i) SHORTLIST_INLINE_LAMBDA { p[i] = hn::Add(p[i], p[i + 2]); });
    result = hn::Add(p[0], p[1]);
    unroll<log2_of(kPasses)>([&](auto level) SHORTLIST_INLINE_LAMBDA {
      constexpr int kOnes = (1 << level) - 1;  // passes that end in so many one bits have met their partners below
      if constexpr ((pass & kOnes) == kOnes) {
        if constexpr ((pass >> level & 1) != 0) {
          result = hn::Add(waiting[level], result);
        } else {
          waiting[level] = result;
        }
      }
    });
  });
  return result;
}

/// sums[i] = the sum of vector_of(i), a whole vector of rows at a time.
template <class VectorOf>
HWY_INLINE void sum_rows(std::int64_t count, float* sums, const VectorOf& vector_of) {
  for (std::int64_t first = 0; first < count; first += kLanes) {
    const int present = static_cast<int>(HWY_MIN(kLanes, count - first));
    HWY_ALIGN float lanes[kLanes * kLanes] = {};
    for (int r = 0; r < present; ++r) hn::Store(vector_of(first + r), kFloats, lanes + r * kLanes);
    vector v[kLanes];
    unroll<kLanes>([&](auto r) SHORTLIST_INLINE_LAMBDA { v[r] = hn::Load(kFloats, lanes + r * kLanes); });
    hn::StoreU(sum_lanes(v), kFloats, sums + first);
  }
}

template <class Step, class T>
void row_sums(const float* query, row_span rows, std::int64_t dim, float* sums) {
  const steps count(dim);
  sum_rows(rows.count, sums, [&](std::int64_t i) SHORTLIST_INLINE_LAMBDA {
    const std::byte* row = rows.data + i * rows.stride_bytes;
    return row_vector<Step>(query, reinterpret_cast<const T*>(row), count, row + kPrefetchBytes);
  });
}

template <class Step, class T>
void scattered_sums(const float* query, scattered_rows rows, std::int64_t dim, float* sums) {
  const steps count(dim);
  // Of a row's rest, row_vector fetches the first line.
  const auto row_bytes = static_cast<std::int64_t>(sizeof(T)) * dim;
  const std::int64_t rest = count.blocks * core::kPartialSums * static_cast<std::int64_t>(sizeof(T)) + kLineBytes;
  sum_rows(rows.count, sums, [&](std::int64_t i) SHORTLIST_INLINE_LAMBDA {
    const std::byte* ahead = rows.rows[HWY_MIN(i + kScatteredAhead, rows.known - 1)];
    for (std::int64_t at = rest; at < row_bytes; at += kLineBytes) hwy::Prefetch(ahead + at);
    return row_vector<Step>(query, reinterpret_cast<const T*>(rows.rows[i]), count, ahead);
  });
}

template <class T>
void square_sums(row_span rows, std::int64_t dim, float* sums) {
  const steps count(dim);
  sum_rows(rows.count, sums, [&](std::int64_t i) SHORTLIST_INLINE_LAMBDA {
    const std::byte* row = rows.data + i * rows.stride_bytes;
    return row_vector<dot_step>(reinterpret_cast<const T*>(row), reinterpret_cast<const T*>(row), count,
                                row + kPrefetchBytes);
  });
}

// ---- many queries

/// Where position p of a tile begins among its packed vectors, counted in steps: positions lie in bit-reversed order.
struct packed_layout {
  explicit packed_layout(const steps& count) {
    std::int64_t begin = 0;
    for (int m = 0; m < kPositions; ++m) {
      const int position = bit_reversed(m, kPositions);
      begin_of[position] = begin;
      begin += count.of(position);
    }
  }
  std::int64_t begin_of[kPositions];
};

/// Packs `present` vectors of elements as columns of a tile that is Width wide; load(column, element) widens kLanes
/// elements, padding where there are none.
template <int Width, class Load>
HWY_INLINE void pack_tile(const steps& count, const packed_layout& layout, float* HWY_RESTRICT packed,
                          const Load& load) {
  for (int column = 0; column < Width; ++column) {
    float* to = packed + column * kLanes;
    for (std::int64_t block = 0; block < count.blocks; ++block) {
      for (int position = 0; position < kPositions; ++position) {
        hn::Store(load(column, block * core::kPartialSums + position * kLanes), kFloats,
                  to + (layout.begin_of[position] + block) * Width * kLanes);
      }
    }
    for (int position = 0; position < count.rest_positions; ++position) {
      hn::Store(load(column, count.blocks * core::kPartialSums + position * kLanes), kFloats,
                to + (layout.begin_of[position] + count.blocks) * Width * kLanes);
    }
  }
}

template <class T>
void pack_rows(row_span rows, std::int64_t dim, float* packed) {
  const steps count(dim);
  const packed_layout layout(count);
  for (std::int64_t first = 0; first < rows.count; first += kTileRows) {
    pack_tile<kTileRows>(count, layout, packed + first * count.all() * kLanes,
                         [&](int column, std::int64_t element) SHORTLIST_INLINE_LAMBDA {
                           const std::int64_t row = HWY_MIN(first + column, rows.count - 1);
                           return load_wide(reinterpret_cast<const T*>(rows.data + row * rows.stride_bytes) + element);
                         });
  }
}

void pack_queries(const float* queries, std::int64_t stride, std::int64_t count, std::int64_t dim, float* packed) {
  const steps of_dim(dim);
  pack_tile<kTileQueries>(of_dim, packed_layout(of_dim), packed,
                          [&](int column, std::int64_t element) SHORTLIST_INLINE_LAMBDA {
                            const float* from = queries + column * stride + element;
                            if (column < count && element + kLanes <= dim) return hn::LoadU(kFloats, from);
                            HWY_ALIGN float lanes[kLanes];
                            for (int lane = 0; lane < kLanes; ++lane) {
                              lanes[lane] = column < count && element + lane < dim ? from[lane] : core::kQueryPadding;
                            }
                            return hn::Load(kFloats, lanes);
                          });
}

/// The tree of a tile down to a vector for each pair; that of row r and query q goes to out[q * kBlockRows + r].
/// Meanwhile `lines` cache lines from `ahead` on travel to the second cache, a few at each position.
template <class Step>
HWY_INLINE void tile_vectors(const float* HWY_RESTRICT q, const float* HWY_RESTRICT x, const steps& count,
                             const std::byte* ahead, std::int64_t lines, float* HWY_RESTRICT out) {
  constexpr int kPairs = kTileRows * kTileQueries;
  vector waiting[log2_of(kPositions)][kPairs];
  const auto at_position = [&](auto m) SHORTLIST_INLINE_LAMBDA {
    const std::byte* ahead_end = ahead + lines * (m + 1) / kPositions * kLineBytes;
    for (const std::byte* line = ahead + lines * m / kPositions * kLineBytes; line < ahead_end; line += kLineBytes) {
      __builtin_prefetch(line, 0, kSecondCache);
    }
    vector p[kPairs];
    unroll<kPairs>([&](auto i) SHORTLIST_INLINE_LAMBDA { p[i] = hn::Zero(kFloats); });
    for (std::int64_t step = count.of(bit_reversed(m, kPositions)); step > 0; --step) {
      vector row[kTileRows];
      unroll<kTileRows>([&](auto r) SHORTLIST_INLINE_LAMBDA { row[r] = hn::Load(kFloats, x + r * kLanes); });
      unroll<kTileQueries>([&](auto c) SHORTLIST_INLINE_LAMBDA {
        const vector query = hn::Load(kFloats, q + c * kLanes);
        unroll<kTileRows>([&](auto r) SHORTLIST_INLINE_LAMBDA {
          constexpr int kPair = c * kTileRows + r;
          p[kPair] = Step::next(query, row[r], p[kPair]);
        });
      });
      x += kTileRows * kLanes;
      q += kTileQueries * kLanes;
    }
    int level = 0;
    for (; (m >> level & 1) != 0; ++level) {
      unroll<kPairs>([&](auto i) SHORTLIST_INLINE_LAMBDA { p[i] = hn::Add(waiting[level][i], p[i]); });
    }
    if (m + 1 < kPositions) {
      unroll<kPairs>([&](auto i) SHORTLIST_INLINE_LAMBDA { waiting[level][i] = p[i]; });
    } else {
      unroll<kPairs>([&](auto i) SHORTLIST_INLINE_LAMBDA {
        hn::Store(p[i], kFloats, out + (i / kTileRows * kBlockRows + i % kTileRows) * kLanes);
      });
    }
  };
  // AVX2's positions are short, so that their branches show: unrolled it is 8 % faster at dim 384, AVX-512 7 % slower.
  if constexpr (HWY_TARGET == HWY_AVX2) {
    unroll<kPositions>(at_position);
  } else {
    for (int m = 0; m < kPositions; ++m) at_position(m);
  }
}

template <class Step>
void tile_sums(const float* packed_queries, const float* packed_rows, std::int64_t rows, std::int64_t dim,
               fetch_ahead ahead, float* sums) {
  const steps count(dim);
  const std::int64_t tiles = (rows + kTileRows - 1) / kTileRows;
  const std::int64_t lines = (ahead.bytes + kLineBytes - 1) / kLineBytes;
  HWY_ALIGN float vectors[kTileQueries * kBlockRows * kLanes];
  for (std::int64_t tile = 0; tile < tiles; ++tile) {
    const std::int64_t first_line = lines * tile / tiles;
    tile_vectors<Step>(packed_queries, packed_rows + tile * kTileRows * count.all() * kLanes, count,
                       ahead.data + first_line * kLineBytes, lines * (tile + 1) / tiles - first_line,
                       vectors + tile * kTileRows * kLanes);
  }
  for (int query = 0; query < kTileQueries; ++query) {
    for (std::int64_t r = 0; r < rows; r += kLanes) {
      vector v[kLanes];
      const float* from = vectors + (query * kBlockRows + r) * kLanes;
      unroll<kLanes>([&](auto i) SHORTLIST_INLINE_LAMBDA { v[i] = hn::Load(kFloats, from + i * kLanes); });
      hn::StoreU(sum_lanes(v), kFloats, sums + query * kBlockRows + r);
    }
  }
}

// ---- selection

/// core::score_key in the lanes, with the sign bit flipped, so that signed comparison orders it.
template <metric By>
HWY_INLINE hn::Vec<decltype(kInts)> signed_keys(vector score) {
  const auto bits = hn::BitCast(kInts, hn::Add(score, hn::Zero(kFloats)));  // -0 + 0 == +0
  const auto ascending = hn::Xor(bits, hn::And(hn::ShiftRight<31>(bits), hn::Set(kInts, 0x7FFFFFFF)));
  const auto key = core::smaller_is_better(By) ? hn::Not(ascending) : ascending;
  return hn::IfThenElse(hn::RebindMask(kInts, hn::IsNaN(score)), hn::Set(kInts, INT32_MIN), key);
}

template <metric By>
HWY_INLINE vector scores_of(vector sums, vector query_inverse_norm, vector inverse_norms) {
  if constexpr (By != metric::cosine) return sums;
  const vector zero = hn::Zero(kFloats);
  const vector cosine = hn::Mul(hn::Mul(sums, query_inverse_norm), inverse_norms);
  const auto is_zero_vector = hn::Or(hn::Lt(query_inverse_norm, zero), hn::Lt(inverse_norms, zero));
  return hn::IfThenElse(is_zero_vector, hn::Set(kFloats, core::worst_score(By)), cosine);
}

template <metric By>
void collect(const scored_rows& rows, candidates& found) {
  const vector query_inverse_norm = hn::Set(kFloats, rows.query_inverse_norm);
  const auto min_key = hn::Set(kInts, static_cast<std::int32_t>(found.min_key ^ core::kSignBit));
  for (std::int64_t i = 0; i < rows.count; i += kLanes) {
    const int present = static_cast<int>(HWY_MIN(kLanes, rows.count - i));
    vector inverse_norms = query_inverse_norm;
    if constexpr (By == metric::cosine) {
      if (present == kLanes) {
        inverse_norms = hn::LoadU(kFloats, rows.inverse_norms + i);
      } else {  // nothing may be read past the last row's
        HWY_ALIGN float lanes[kLanes] = {};
        for (int lane = 0; lane < present; ++lane) lanes[lane] = rows.inverse_norms[i + lane];
        inverse_norms = hn::Load(kFloats, lanes);
      }
    }
    const vector scores = scores_of<By>(hn::LoadU(kFloats, rows.sums + i), query_inverse_norm, inverse_norms);
    const auto keys = signed_keys<By>(scores);
    if (HWY_LIKELY(hn::AllTrue(kInts, hn::Lt(keys, min_key)))) continue;
    HWY_ALIGN std::int32_t lanes[kLanes];
    hn::Store(keys, kInts, lanes);
    for (int lane = 0; lane < present; ++lane) {  // without branches, which would be mispredicted for each row let in
      const std::uint32_t key = static_cast<std::uint32_t>(lanes[lane]) ^ core::kSignBit;
      found.keys[found.size] = core::row_key(key, rows.first + static_cast<std::uint32_t>(i + lane));
      found.size += key >= found.min_key ? 1 : 0;
    }
  }
}

const flat_kernels kKernels = {
    .tile_queries = kTileQueries,
    .row_sums = {{row_sums<dot_step, float>, row_sums<l2_step, float>},
                 {row_sums<dot_step, float16>, row_sums<l2_step, float16>},
                 {row_sums<dot_step, bfloat16>, row_sums<l2_step, bfloat16>},
                 {row_sums<dot_step, std::int8_t>, row_sums<l2_step, std::int8_t>},
                 {row_sums<dot_step, std::uint8_t>, row_sums<l2_step, std::uint8_t>}},
    .scattered_sums = {{scattered_sums<dot_step, float>, scattered_sums<l2_step, float>},
                       {scattered_sums<dot_step, float16>, scattered_sums<l2_step, float16>},
                       {scattered_sums<dot_step, bfloat16>, scattered_sums<l2_step, bfloat16>},
                       {scattered_sums<dot_step, std::int8_t>, scattered_sums<l2_step, std::int8_t>},
                       {scattered_sums<dot_step, std::uint8_t>, scattered_sums<l2_step, std::uint8_t>}},
    .square_sums = {square_sums<float>, square_sums<float16>, square_sums<bfloat16>, square_sums<std::int8_t>,
                    square_sums<std::uint8_t>},
    .pack_rows = {pack_rows<float>, pack_rows<float16>, pack_rows<bfloat16>, pack_rows<std::int8_t>,
                  pack_rows<std::uint8_t>},
    .pack_queries = pack_queries,
    .tile_sums = {tile_sums<dot_step>, tile_sums<l2_step>},
    .collect = {collect<metric::inner_product>, collect<metric::cosine>, collect<metric::l2>},
};

#endif
}  // namespace shortlist::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shortlist::cpu {

const flat_kernels& simd_flat_kernels(isa which) {
#if HWY_TARGETS & HWY_AVX3
  if (has_avx512(which)) return N_AVX3::kKernels;
#endif
#if HWY_TARGETS & HWY_AVX2
  if (which == isa::avx2) return N_AVX2::kKernels;
#endif
#if HWY_TARGETS & HWY_NEON
  if (has_neon(which)) return N_NEON::kKernels;
#endif
  return scalar_flat_kernels();
}

const flat_kernels& current_flat_kernels() {
  const isa which = current_isa();
  return which == isa::scalar ? scalar_flat_kernels() : simd_flat_kernels(which);
}

}  // namespace shortlist::cpu
#endif
