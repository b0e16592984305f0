// Stands in for the CUDA backend in a build without it.
#include "cuda/entry.hpp"

namespace shortlist::cuda {

const entry* find(std::string& why_not) {
  why_not = "this build of Shortlist has no CUDA backend (configure with SHORTLIST_CUDA=ON and a CUDA compiler)";
  return nullptr;
}

}  // namespace shortlist::cuda
