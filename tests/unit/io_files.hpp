// What the tests of file readers and writers share: a folder of their own, raw bytes, expected errors, a full disk.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "shortlist/error.hpp"

namespace shortlist::test {

/// A folder that is removed with everything in it.
class temporary_folder {
 public:
  temporary_folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "shortlist-test-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("cannot create " + pattern);
    path_ = pattern;
  }
  ~temporary_folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  temporary_folder(const temporary_folder&) = delete;
  temporary_folder& operator=(const temporary_folder&) = delete;

  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }
  std::ptrdiff_t files() const {
    return std::distance(std::filesystem::directory_iterator(path_), std::filesystem::directory_iterator());
  }

 private:
  std::filesystem::path path_;
};

inline void write_bytes(const std::filesystem::path& path, std::string_view bytes) {
  // A new file: ext4 flushes one that was truncated and written again to disk, and thousands of those take a minute.
  std::filesystem::remove(path);
  std::ofstream out(path, std::ios::binary);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  out.flush();
  if (!out) throw std::runtime_error("cannot write " + path.string());
}

inline std::string read_bytes(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + path.string());
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

/// The bytes of a value as the machine, and with it every file here, has them: little-endian.
template <class T>
std::string bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(T)};
}

/// Runs `call`, which must throw `Error` with a message that contains `part`.
template <class Error, class Call>
void expect_error(const Call& call, std::string_view part) {
  try {
    call();
    ADD_FAILURE() << "nothing was thrown; expected an error with: " << part;
  } catch (const Error& problem) {
    EXPECT_NE(std::string_view(problem.what()).find(part), std::string_view::npos)
        << "message:  " << problem.what() << "\nexpected: " << part;
  } catch (const std::exception& problem) {
    ADD_FAILURE() << "another type of error was thrown: " << problem.what() << "\nexpected one with: " << part;
  }
}

/// While it lives, no file of this process may grow beyond `bytes`: writes then fail as they do on a full disk.
class file_size_limit {
 public:
  explicit file_size_limit(rlim_t bytes) {
    previous_handler_ = signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &previous_);
    const rlimit wanted{bytes, previous_.rlim_max};
    if (setrlimit(RLIMIT_FSIZE, &wanted) != 0) throw std::runtime_error("cannot limit the size of files");
  }
  ~file_size_limit() {
    setrlimit(RLIMIT_FSIZE, &previous_);
    signal(SIGXFSZ, previous_handler_);
  }
  file_size_limit(const file_size_limit&) = delete;
  file_size_limit& operator=(const file_size_limit&) = delete;

 private:
  rlimit previous_{};
  void (*previous_handler_)(int) = nullptr;
};

/// The start of an npy file with this dictionary, padded as NumPy pads it.
inline std::string npy_header(const std::string& dictionary, int version = 1) {
  const std::size_t length_bytes = version == 1 ? 2 : 4;
  std::string text = dictionary;
  while ((8 + length_bytes + text.size() + 1) % 64 != 0) text += ' ';
  text += '\n';
  std::string bytes = "\x93NUMPY";
  bytes += static_cast<char>(version);
  bytes += '\0';
  bytes += bytes_of(static_cast<std::uint32_t>(text.size())).substr(0, length_bytes);
  return bytes + text;
}

}  // namespace shortlist::test
