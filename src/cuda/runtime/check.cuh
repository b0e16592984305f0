// CUDA calls that fail become the library's errors.
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "shortlist/error.hpp"

namespace shortlist::cuda {

[[noreturn]] inline void throw_cuda(cudaError_t code, const char* what) {
  const std::string message = std::string(what) + ": " + cudaGetErrorString(code);
  if (code == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // not sticky: clear it, so that the next call starts clean
    throw out_of_memory(message);
  }
  throw cuda_error(message);
}

inline void check(cudaError_t code, const char* what) {
  if (code != cudaSuccess) throw_cuda(code, what);
}

/// Makes a GPU current for the life of the object, and puts the caller's back.
class current_device {
 public:
  explicit current_device(int ordinal) : ordinal_(ordinal) {
    check(cudaGetDevice(&before_), "reading the current GPU");
    if (before_ != ordinal_) check(cudaSetDevice(ordinal_), "choosing the GPU");
  }
  ~current_device() {
    if (before_ != ordinal_) cudaSetDevice(before_);
  }
  current_device(const current_device&) = delete;
  current_device& operator=(const current_device&) = delete;

 private:
  int ordinal_;
  int before_ = 0;
};

}  // namespace shortlist::cuda
