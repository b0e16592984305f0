// What an index file holds, without loading it.
#include "shortlist/index_file.hpp"

#include <fmt/format.h>

#include "index/checks.hpp"
#include "index/file_parts.hpp"
#include "io/safetensors.hpp"

namespace shortlist {

std::string_view to_string(index_kind value) { return value == index_kind::flat ? "flat" : "ivf_pq"; }

index_summary summarize_index(const std::filesystem::path& path) {
  return index::with_host_memory([&] {
    const io::safetensors_file file(path);
    const std::string& format = file.metadata("format");
    if (format == index::kFlatFormat) return index::summary_of_flat(file);
    if (format == index::kIvfPqFormat) return index::summary_of_ivf_pq(file);
    index::throw_corrupt(
        path, fmt::format("format is '{}'; allowed is '{}' or '{}'", format, index::kFlatFormat, index::kIvfPqFormat));
  });
}

}  // namespace shortlist
