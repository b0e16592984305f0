// Real data sets: those of this repository, and Fashion-MNIST where it is.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "shortlist/shortlist.hpp"

namespace shortlist::conformance {

/// A folder of this repository's data/: named by the environment, below the working folder, or beside the program as it
/// was built or installed.
std::optional<std::filesystem::path> repository_data(const std::string& folder);

/// Rows, queries and ground truth of bytes under squared L2.
struct byte_set {
  vectors base, queries;
  id_table truth;
};

inline constexpr const char* kNoBigann10k = "no data/bigann10k; name its parent with SHORTLIST_REPOSITORY_DATA";
inline constexpr const char* kNoFashionMnist =
    "no fashion_mnist with train, test and gt100_l2 to unpack in the folder that SHORTLIST_DATA names";

std::optional<byte_set> bigann10k();
std::optional<byte_set> fashion_mnist();

}  // namespace shortlist::conformance
