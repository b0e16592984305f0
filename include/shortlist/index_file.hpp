// What an index file holds, without loading it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

#include "shortlist/types.hpp"

namespace shortlist {

enum class index_kind : std::uint8_t { flat, ivf_pq };

/// "flat", "ivf_pq".
std::string_view to_string(index_kind value);

struct index_summary {
  index_kind kind = index_kind::flat;
  std::int64_t rows = 0;
  std::int64_t dim = 0;
  shortlist::metric metric = shortlist::metric::inner_product;
  element_type type = element_type::f32;
  std::vector<std::filesystem::path> segments;  ///< further files that hold the rows of an IVF-PQ index that grew
};

/// Reads and checks the file's header alone. @throws io_error; corrupt_file if it is no index of a known kind.
index_summary summarize_index(const std::filesystem::path& path);

}  // namespace shortlist
