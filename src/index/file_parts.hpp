// What reading the files of all kinds of index has in common.
#pragma once

#include <cstdint>
#include <string>

#include "io/safetensors.hpp"
#include "shortlist/error.hpp"
#include "shortlist/flat_index.hpp"

namespace shortlist::index {

/// Large enough for full speed of disk and bus, small beside any index worth streaming.
inline constexpr std::int64_t kFileChunkBytes = std::int64_t{64} << 20;

[[noreturn]] void throw_corrupt(const std::filesystem::path& path, const std::string& what);

void require_metadata(const io::safetensors_file& file, const char* key, const char* value);

/// A name that the file gives, read by one of the public parsers.
template <class Parse>
auto parse_metadata(const io::safetensors_file& file, const char* key, Parse parse) {
  try {
    return parse(file.metadata(key));
  } catch (const invalid_argument& failure) {
    throw_corrupt(file.path(), failure.what());
  }
}

/// `use` gets a tensor's bytes in order, in chunks of `chunk_bytes`.
void stream_tensor(const io::safetensors_file& file, const char* name, std::int64_t chunk_bytes, verify checks,
                   const io::safetensors_file::chunk_function& use);
/// A whole tensor.
void read_tensor(const io::safetensors_file& file, const char* name, verify checks, void* out);

}  // namespace shortlist::index
