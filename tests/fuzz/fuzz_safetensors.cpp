// libFuzzer target: index files. Each input is read twice: as it is, and with the header's checksum made right, since a
// fuzzer that must guess 64 bits of a hash would never get past it.
#include <algorithm>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "io/safetensors.hpp"
#include "memory_file.hpp"

namespace {

using shortlist::fuzz::require;

void read_index(const std::string& bytes) {
  const shortlist::fuzz::memory_file input(bytes.data(), bytes.size());
  try {
    const shortlist::io::safetensors_file file(input.path());
    std::int64_t total = 0;
    for (const std::string& name : file.tensor_names()) {
      const auto& entry = file.tensor(name);
      require(entry.file_offset >= 8 && entry.bytes >= 0, "a tensor lies behind the header's length");
      require(entry.file_offset + entry.bytes <= static_cast<std::int64_t>(bytes.size()), "a tensor ends in the file");
      total += entry.bytes;
      std::string data(static_cast<std::size_t>(entry.bytes), '\0');
      file.read(name, 0, entry.bytes, data.data());
      require(bytes.compare(static_cast<std::size_t>(entry.file_offset), data.size(), data) == 0, "data == its bytes");
      try {
        file.verify(name);
      } catch (const shortlist::corrupt_file&) {
      }
    }
    require(total <= static_cast<std::int64_t>(bytes.size()), "tensors do not overlap");
  } catch (const shortlist::corrupt_file&) {
  }
}

std::string with_right_checksum(std::string bytes) {
  constexpr std::size_t kLengthBytes = 8;
  constexpr std::size_t kDigits = 16;
  const std::string key = R"("xxh3.header":")";
  if (bytes.size() < kLengthBytes) return bytes;
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), kLengthBytes);
  const std::size_t at = bytes.find(key, kLengthBytes);
  if (length > bytes.size() - kLengthBytes || at == std::string::npos) return bytes;
  const std::size_t digits = at + key.size();
  if (digits + kDigits > kLengthBytes + length) return bytes;
  bytes.replace(digits, kDigits, kDigits, '0');
  const XXH64_hash_t hash = XXH3_64bits(bytes.data() + kLengthBytes, length);
  char text[kDigits + 1];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
  bytes.replace(digits, kDigits, text);
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  const std::string input(reinterpret_cast<const char*>(data), bytes);
  read_index(input);
  if (const std::string repaired = with_right_checksum(input); repaired != input) read_index(repaired);
  return 0;
}
