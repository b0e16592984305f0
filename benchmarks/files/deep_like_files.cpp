// shortlist_deep_like: writes vectors of the deep-like set as fbin files, for what reads files: ivf_pq_peers.py, the
// program.
//
// usage: shortlist_deep_like ROWS QUERIES FOLDER     makes FOLDER/rows.fbin and FOLDER/queries.fbin
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "deep_like.hpp"
#include "shortlist/shortlist.hpp"

namespace {

using shortlist::benchmark::deep_like;

constexpr std::int64_t kMostVectors = 100'000'000;  // that a file is made of in one piece of memory

std::int64_t count_of(const char* name, std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > kMostVectors)
    throw std::invalid_argument(std::string(name) + " is " + std::string(text) + "; allowed is 1 to " +
                                std::to_string(kMostVectors));
  return value;
}

void write(const std::filesystem::path& file, std::int64_t count, const std::vector<float>& values) {
  shortlist::write_fbin(file, {values.data(), count, deep_like::kDim});
}

void write_files(std::int64_t rows, std::int64_t queries, const std::filesystem::path& folder) {
  const deep_like set;
  std::filesystem::create_directories(folder);
  std::vector<float> values(static_cast<std::size_t>(rows * deep_like::kDim));
  set.write_rows(0, rows, values.data());
  write(folder / "rows.fbin", rows, values);
  write(folder / "queries.fbin", queries, set.queries(queries));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fputs("usage: shortlist_deep_like ROWS QUERIES FOLDER\n", stderr);
    return 2;
  }
  try {
    write_files(count_of("ROWS", argv[1]), count_of("QUERIES", argv[2]), argv[3]);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "shortlist_deep_like: %s\n", failure.what());
    return 1;
  }
}
