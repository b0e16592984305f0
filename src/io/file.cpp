// Files of the operating system, over POSIX calls: short reads and writes and interrupts are handled here and nowhere
// else.
#include "io/file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <string_view>
#include <system_error>
#include <utility>

#include "shortlist/error.hpp"

namespace shortlist::io {
namespace {

[[noreturn]] void throw_os(std::string_view what, const std::filesystem::path& path, int code) {
  throw io_error(fmt::format("cannot {} '{}': {}", what, path.string(), std::generic_category().message(code)));
}

void close_quietly(int descriptor) noexcept {
  if (descriptor >= 0) ::close(descriptor);
}

std::filesystem::path folder_of(const std::filesystem::path& target) {
  return target.has_parent_path() ? target.parent_path() : std::filesystem::path(".");
}

}  // namespace

input_file::input_file(const std::filesystem::path& path) : path_(path) {
  // O_NONBLOCK: opening a pipe must fail below instead of waiting for a writer; regular files do not care.
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0) throw_os("open", path, errno);
  struct stat status {};
  const int failed = ::fstat(descriptor_, &status) == 0 ? 0 : errno;
  if (failed != 0 || !S_ISREG(status.st_mode)) {
    close_quietly(std::exchange(descriptor_, -1));
    if (failed != 0) throw_os("examine", path, failed);
    throw io_error(fmt::format("cannot read '{}': it is {}; allowed is a regular file", path.string(),
                               S_ISDIR(status.st_mode) ? "a directory" : "a pipe, socket or device"));
  }
  size_bytes_ = status.st_size;
}

input_file::~input_file() { close_quietly(descriptor_); }

input_file::input_file(input_file&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

input_file& input_file::operator=(input_file&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

void input_file::read(std::int64_t offset, std::int64_t bytes, void* out) const {
  auto* to = static_cast<std::byte*>(out);
  while (bytes > 0) {
    const ssize_t got = ::pread(descriptor_, to, static_cast<std::size_t>(bytes), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_os(fmt::format("read {} bytes at offset {} of", bytes, offset), path_, errno);
    if (got == 0) {
      throw io_error(
          fmt::format("cannot read {} bytes at offset {} of '{}': the file had {} bytes when it was opened "
                      "and has become shorter",
                      bytes, offset, path_.string(), size_bytes_));
    }
    to += got;
    offset += got;
    bytes -= got;
  }
}

file_mapping::file_mapping(const input_file& file, std::int64_t offset, std::int64_t bytes) {
  if (bytes == 0) return;
  if (offset < 0 || bytes < 0 || offset > file.size_bytes() - bytes) {
    throw io_error(fmt::format("cannot map {} bytes at offset {} of '{}', which has {}", bytes, offset,
                               file.path().string(), file.size_bytes()));
  }
  before_ = offset % ::sysconf(_SC_PAGESIZE);
  void* mapped = ::mmap(nullptr, static_cast<std::size_t>(before_ + bytes), PROT_READ, MAP_SHARED, file.descriptor_,
                        offset - before_);
  if (mapped == MAP_FAILED) {
    const int code = errno;
    if (code == ENOMEM)
      throw out_of_memory(fmt::format("no room to map {} bytes of '{}'", bytes, file.path().string()));
    throw_os(fmt::format("map {} bytes at offset {} of", bytes, offset), file.path(), code);
  }
  data_ = static_cast<const std::byte*>(mapped) + before_;
  bytes_ = bytes;
}

file_mapping::~file_mapping() {
  if (data_ == nullptr) return;
  ::munmap(const_cast<std::byte*>(data_ - before_), static_cast<std::size_t>(before_ + bytes_));
}

file_mapping::file_mapping(file_mapping&& other) noexcept { swap(other); }

file_mapping& file_mapping::operator=(file_mapping&& other) noexcept {
  file_mapping taken(std::move(other));
  swap(taken);
  return *this;
}

void file_mapping::swap(file_mapping& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(before_, other.before_);
}

output_file::output_file(const std::filesystem::path& target) : target_(target) {
  struct stat status {};
  if (::stat(target.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
    throw io_error(fmt::format("cannot write '{}': it is {}; allowed is a regular file or a new name", target.string(),
                               S_ISDIR(status.st_mode) ? "a directory" : "a pipe, socket or device"));
  }
  if (!target.has_filename()) {
    throw io_error(fmt::format("cannot write '{}': the path names no file", target.string()));
  }
  // A name of our own, since the target's may already be as long as names may be.
  static std::atomic<std::uint64_t> counter{0};
  do {
    temporary_ = folder_of(target) / fmt::format(".shortlist-{}-{}.tmp", ::getpid(), counter++);
    descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  } while (descriptor_ < 0 && (errno == EEXIST || errno == EINTR));
  if (descriptor_ < 0) throw_os("create a file beside", target, errno);
}

output_file::~output_file() { close_and_remove(); }

output_file::output_file(output_file&& other) noexcept
    : target_(std::move(other.target_)),
      temporary_(std::exchange(other.temporary_, {})),
      descriptor_(std::exchange(other.descriptor_, -1)) {}

void output_file::close_and_remove() noexcept {
  close_quietly(std::exchange(descriptor_, -1));
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
  temporary_.clear();
}

void output_file::write(std::int64_t offset, const void* data, std::int64_t bytes) {
  const auto* from = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const ssize_t put = ::pwrite(descriptor_, from, static_cast<std::size_t>(bytes), offset);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) throw_os(fmt::format("write {} bytes at offset {} of", bytes, offset), target_, errno);
    from += put;
    offset += put;
    bytes -= put;
  }
}

void output_file::commit() {
  if (::fsync(descriptor_) != 0) throw_os("flush to disk", target_, errno);
  // A network file system may report a full disk only now.
  if (::close(std::exchange(descriptor_, -1)) != 0) throw_os("close", target_, errno);
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) throw_os("rename the new file over", target_, errno);
  temporary_.clear();
  const std::filesystem::path folder = folder_of(target_);
  const int directory = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) {
    // A folder that may be written but not listed cannot be flushed by name; the file itself is on disk.
    if (errno == EACCES) return;
    throw_os("flush the folder of", target_, errno);
  }
  const int failed = ::fsync(directory) == 0 ? 0 : errno;
  close_quietly(directory);
  // EINVAL: this file system does not flush directories and needs no flush.
  if (failed != 0 && failed != EINVAL) throw_os("flush the folder of", target_, failed);
}

}  // namespace shortlist::io
