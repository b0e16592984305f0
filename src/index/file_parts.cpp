// What reading the files of all kinds of index has in common.
#include "index/file_parts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace shortlist::index {

void throw_corrupt(const std::filesystem::path& path, const std::string& what) {
  throw corrupt_file(fmt::format("{}: {}", path.string(), what));
}

void require_metadata(const io::safetensors_file& file, const char* key, const char* value) {
  const std::string& found = file.metadata(key);
  if (found != value) throw_corrupt(file.path(), fmt::format("{} is '{}'; allowed is '{}'", key, found, value));
}

void stream_tensor(const io::safetensors_file& file, const char* name, std::int64_t chunk_bytes, verify checks,
                   const io::safetensors_file::chunk_function& use) {
  if (checks == verify::full) return file.read_checked(name, chunk_bytes, use);
  const std::int64_t bytes = file.tensor(name).bytes;
  std::vector<std::byte> chunk(static_cast<std::size_t>(std::min(bytes, chunk_bytes)));
  for (std::int64_t offset = 0; offset < bytes; offset += chunk_bytes) {
    const std::int64_t count = std::min(chunk_bytes, bytes - offset);
    file.read(name, offset, count, chunk.data());
    use(offset, {chunk.data(), static_cast<std::size_t>(count)});
  }
}

void read_tensor(const io::safetensors_file& file, const char* name, verify checks, void* out) {
  if (checks == verify::full) return file.read_checked(name, out);
  file.read(name, 0, file.tensor(name).bytes, out);
}

}  // namespace shortlist::index
