// libFuzzer target: npy files.
#include "memory_file.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  using enum shortlist::vector_format;
  shortlist::fuzz::read_as({npy}, data, bytes);
  return 0;
}
