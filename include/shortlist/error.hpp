// The errors that the library throws. Every message names the argument, its value and what is allowed.
#pragma once

#include <stdexcept>
#include <string>

namespace shortlist {

/// The base of all errors of this library.
class error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// An argument is outside of what the call allows; nothing was changed.
class invalid_argument : public error {
 public:
  using error::error;
};

/// The request is valid, but this build, machine or device cannot serve it.
class unsupported : public error {
 public:
  using error::error;
};

/// Host or device memory ran out; nothing was changed.
class out_of_memory : public error {
 public:
  using error::error;
};

/// A file's contents contradict its format or its checksums.
class corrupt_file : public error {
 public:
  using error::error;
};

/// The operating system refused to open, read, write, flush or rename a file.
class io_error : public error {
 public:
  using error::error;
};

/// A progress callback asked for the end of the call; nothing was changed.
class cancelled : public error {
 public:
  using error::error;
};

/// The CUDA runtime or a kernel reported a failure.
class cuda_error : public error {
 public:
  using error::error;
};

}  // namespace shortlist
