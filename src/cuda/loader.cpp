// Opens libshortlist_cuda.so, which lies beside libshortlist.so; absent or unusable, the CPU still serves.
#include <dlfcn.h>

#include "cuda/entry.hpp"

namespace shortlist::cuda {
namespace {

struct opened {
  const entry* found = nullptr;
  std::string why_not;
};

opened open_library() {
  constexpr const char* kName = "libshortlist_cuda.so";
  void* library = dlopen(kName, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char* reason = dlerror();
    return {nullptr, std::string("the CUDA backend cannot be loaded: ") + (reason ? reason : kName)};
  }
  const auto* found = static_cast<const entry*>(dlsym(library, "shortlist_cuda_entry"));
  if (!found) return {nullptr, std::string(kName) + " does not export shortlist_cuda_entry"};
  if (found->interface_version != kInterfaceVersion)
    return {nullptr, std::string(kName) + " is of another version of Shortlist"};
  return {found, {}};
}

}  // namespace

const entry* find(std::string& why_not) {
  static const opened library = open_library();
  why_not = library.why_not;
  return library.found;
}

}  // namespace shortlist::cuda
