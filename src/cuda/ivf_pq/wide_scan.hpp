// The scan of lists whose rows registers do not hold: see wide_scan.cu.
#pragma once

#include "cuda/ivf_pq/filter.hpp"

namespace shortlist::cuda {

bool has_wide_scan(const core::ivf_pq_shape& shape);
/// Pairs of an item, at most; of codes, or of pages of so many halves a row.
std::int32_t queries_of_wide_item(const core::ivf_pq_shape& shape, bool sample);
std::int32_t queries_of_wide_halves(std::int64_t halves, bool sample);
/// The same of a full pass whose lists have few queries: no more than warps on their own multiply sooner.
std::int32_t queries_of_small_item(const core::ivf_pq_shape& shape);
/// Least distances of groups of rows, into `minima`; or rows that reach the threshold, into `hits`.
void launch_wide_scan(cudaStream_t stream, const filter_batch& batch, bool samples, int multiprocessors);

struct wide_args;

/// The full scan, by Hopper's matrix units, of rows of at most so many halves: see wide_scan_hopper.cu.
inline constexpr std::int64_t kMaxHopperHalves = 2048;
/// Queries of an item that it has room for.
std::int32_t queries_of_hopper_item(std::int64_t halves);
void launch_hopper_scan(cudaStream_t stream, wide_args args, int multiprocessors);

}  // namespace shortlist::cuda
