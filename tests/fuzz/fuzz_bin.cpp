// libFuzzer target: fbin, u8bin, i8bin and ibin files.
#include "memory_file.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  using enum shortlist::vector_format;
  shortlist::fuzz::read_as({fbin, u8bin, i8bin, ibin}, data, bytes);
  return 0;
}
