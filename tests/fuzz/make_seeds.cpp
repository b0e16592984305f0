// Writes the fuzz targets' seeds, small good files of each format, to <folder>/<target>/.
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "io/safetensors.hpp"

namespace {

template <class T>
std::string bytes_of(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

void write(const std::filesystem::path& path, const std::string& bytes) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
}

void write_vecs(const std::filesystem::path& folder, int element_bytes) {
  std::string bytes;
  for (int row = 0; row < 3; ++row) {
    bytes += bytes_of(std::int32_t{4}) + std::string(static_cast<std::size_t>(4 * element_bytes), 'x');
  }
  write(folder / ("elements_of_" + std::to_string(element_bytes)), bytes);
}

void write_bin(const std::filesystem::path& folder, int element_bytes) {
  write(folder / ("elements_of_" + std::to_string(element_bytes)),
        bytes_of(std::uint32_t{3}) + bytes_of(std::uint32_t{4}) +
            std::string(static_cast<std::size_t>(12 * element_bytes), 'x'));
}

void write_npy(const std::filesystem::path& path, int version, const std::string& descr, int element_bytes,
               const std::string& fortran_order = "False") {
  std::string header = "{'descr': '" + descr + "', 'fortran_order': " + fortran_order + ", 'shape': (3, 4), }\n";
  std::string bytes = "\x93NUMPY";
  bytes += static_cast<char>(version);
  bytes += '\0';
  bytes += bytes_of(static_cast<std::uint32_t>(header.size())).substr(0, version == 1 ? 2 : 4);
  write(path, bytes + header + std::string(static_cast<std::size_t>(12 * element_bytes), 'x'));
}

void write_index(const std::filesystem::path& path, const std::vector<shortlist::io::tensor_description>& tensors,
                 const std::vector<std::int64_t>& bytes) {
  std::filesystem::create_directories(path.parent_path());
  shortlist::io::safetensors_writer out(path, {{"format", "shortlist.flat_index"}, {"rows", "3"}}, tensors);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    out.write(tensors[i].name, std::string(static_cast<std::size_t>(bytes[i]), 'x').data(), bytes[i]);
  }
  out.commit();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
    return 2;
  }
  const std::filesystem::path folder = argv[1];
  for (const int element_bytes : {1, 4}) {
    write_vecs(folder / "vecs", element_bytes);
    write_bin(folder / "bin", element_bytes);
  }
  write_npy(folder / "npy" / "f4", 1, "<f4", 4);
  write_npy(folder / "npy" / "f2", 2, "<f2", 2);
  write_npy(folder / "npy" / "i8", 3, "<i8", 8);
  write_npy(folder / "npy" / "u1", 1, "|u1", 1);
  write_npy(folder / "npy" / "f8", 1, "<f8", 8);
  write_npy(folder / "npy" / "f4_fortran", 1, "<f4", 4, "True");
  write_index(folder / "safetensors" / "empty", {}, {});
  write_index(folder / "safetensors" / "flat", {{"vectors", "F32", {3, 4}}, {"ids", "I64", {3}}}, {48, 24});
  return 0;
}
