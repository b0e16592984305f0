// What certified searches on a GPU count.
#pragma once

namespace shortlist::cuda {

/// What searches did, added up since the workspace was made. It stands at the workspace's start.
struct certified_counters {
  unsigned long long rescored;           ///< rows whose score was computed
  unsigned long long certified_queries;  ///< answered through the plane
  unsigned long long full_queries;       ///< answered, at least in part, by reading all rows
};

}  // namespace shortlist::cuda
