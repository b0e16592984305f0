// Files of the operating system: whole positioned reads, and writes that replace their target in one step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

namespace shortlist::io {

/// A regular file open for reading. Reads are positioned, so any number of threads may share one.
class input_file {
 public:
  /// @throws io_error if the path cannot be opened, or is a directory, pipe or device.
  explicit input_file(const std::filesystem::path& path);
  ~input_file();
  input_file(input_file&& other) noexcept;
  input_file& operator=(input_file&& other) noexcept;

  const std::filesystem::path& path() const noexcept { return path_; }
  std::int64_t size_bytes() const noexcept { return size_bytes_; }  ///< at the time of opening

  /// Reads exactly `bytes` bytes. @throws io_error, also if the file has become shorter since it was opened.
  void read(std::int64_t offset, std::int64_t bytes, void* out) const;

 private:
  friend class file_mapping;

  std::filesystem::path path_;
  int descriptor_ = -1;
  std::int64_t size_bytes_ = 0;
};

/// Bytes of a file as memory that cannot be written; they are read when somebody looks at them. The file may be
/// replaced or removed meanwhile. Where it is shortened or fails to be read, the operating system ends the process.
class file_mapping {
 public:
  file_mapping() = default;
  /// @throws io_error, also if the file has fewer bytes; out_of_memory if there is no room for so many addresses.
  file_mapping(const input_file& file, std::int64_t offset, std::int64_t bytes);
  ~file_mapping();
  file_mapping(file_mapping&& other) noexcept;
  file_mapping& operator=(file_mapping&& other) noexcept;

  const std::byte* data() const noexcept { return data_; }
  std::int64_t bytes() const noexcept { return bytes_; }
  explicit operator bool() const noexcept { return data_ != nullptr; }

 private:
  void swap(file_mapping& other) noexcept;

  const std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
  std::int64_t before_ = 0;  ///< bytes from the beginning of a page to data_
};

/// A new file beside its target, which takes the target's place in `commit`; until then the target is untouched.
/// Where the target is a symbolic link, the link itself is replaced.
class output_file {
 public:
  /// @throws io_error if no file can be created beside the target, or the target is there and no regular file.
  explicit output_file(const std::filesystem::path& target);
  /// Without `commit`, removes the new file.
  ~output_file();
  output_file(output_file&& other) noexcept;
  output_file& operator=(output_file&&) = delete;

  const std::filesystem::path& target() const noexcept { return target_; }

  /// Writes exactly `bytes` bytes. @throws io_error, on a full disk too.
  void write(std::int64_t offset, const void* data, std::int64_t bytes);
  /// Flushes the file to disk, renames it over the target, and flushes the directory. @throws io_error.
  void commit();

 private:
  void close_and_remove() noexcept;

  std::filesystem::path target_;
  std::filesystem::path temporary_;  ///< empty once the file has been committed
  int descriptor_ = -1;
};

}  // namespace shortlist::io
