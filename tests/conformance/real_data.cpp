#include "conformance/real_data.hpp"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <system_error>

namespace shortlist::conformance {
namespace {

namespace fs = std::filesystem;

struct close_pipe {
  void operator()(std::FILE* pipe) const { pclose(pipe); }
};

/// A file's contents, through `xz -dc` if it ends in .xz; empty if it is not there or does not unpack.
std::vector<std::byte> unpacked(const fs::path& path) {
  std::vector<std::byte> bytes;
  if (!fs::exists(path)) return bytes;
  const std::unique_ptr<std::FILE, close_pipe> pipe(popen(("xz -dc '" + path.string() + "'").c_str(), "r"));
  if (!pipe) return bytes;
  std::array<std::byte, 65536> piece;
  for (std::size_t n; (n = std::fread(piece.data(), 1, piece.size(), pipe.get())) > 0;) {
    bytes.insert(bytes.end(), piece.begin(), piece.begin() + static_cast<std::ptrdiff_t>(n));
  }
  return bytes;
}

/// The uint32 rows and uint32 dim at the head of a .u8bin or .ibin file.
std::array<std::uint32_t, 2> header_of(const std::vector<std::byte>& file) {
  std::array<std::uint32_t, 2> header{};
  if (file.size() >= sizeof header) std::memcpy(header.data(), file.data(), sizeof header);
  return header;
}

vectors bytes_of(const std::vector<std::byte>& file) {
  const auto [rows, dim] = header_of(file);
  return {rows, dim, element_type::u8, std::vector<std::byte>(file.begin() + 8, file.end())};
}

}  // namespace

std::optional<fs::path> repository_data(const std::string& folder) {
  std::vector<fs::path> candidates;
  if (const char* named = std::getenv("SHORTLIST_REPOSITORY_DATA")) candidates.emplace_back(named);
  candidates.emplace_back("data");
  std::error_code ignored;
  const fs::path here = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  for (const char* up : {"../data", "../../data", "../../../data", "../share/shortlist/data"}) {
    candidates.push_back(here / up);
  }
  for (const fs::path& candidate : candidates) {
    if (fs::exists(candidate / folder, ignored)) return candidate / folder;
  }
  return std::nullopt;
}

std::optional<byte_set> bigann10k() {
  const std::optional<fs::path> folder = repository_data("bigann10k");
  if (!folder) return std::nullopt;
  return byte_set{read_vectors(*folder / "base.u8bin"), read_vectors(*folder / "query.u8bin"),
                  read_ids(*folder / "gt100.ibin")};
}

std::optional<byte_set> fashion_mnist() {
  const char* root = std::getenv("SHORTLIST_DATA");
  if (!root) return std::nullopt;
  const fs::path folder = fs::path(root) / "fashion_mnist";
  const std::vector<std::byte> train = unpacked(folder / "train.u8bin.xz");
  const std::vector<std::byte> test = unpacked(folder / "test.u8bin.xz");
  const std::vector<std::byte> truth = unpacked(folder / "gt100_l2.ibin.xz");
  if (train.empty() || test.empty() || truth.empty()) return std::nullopt;
  byte_set set{bytes_of(train), bytes_of(test), {}};
  const auto [rows, k] = header_of(truth);
  set.truth = {rows, k, {}};
  std::vector<std::int32_t> ids(std::size_t{rows} * k);
  if (truth.size() != 8 + ids.size() * sizeof(std::int32_t)) return std::nullopt;
  std::memcpy(ids.data(), truth.data() + 8, ids.size() * sizeof(std::int32_t));
  set.truth.data.assign(ids.begin(), ids.end());
  return set;
}

}  // namespace shortlist::conformance
