// Files that the program writes. See output.hpp.
#include "output.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "shortlist/error.hpp"
#include "shortlist/io.hpp"

namespace shortlist::program {
namespace {

volatile std::sig_atomic_t held_signal = 0;

void hold(int signal) {
  constexpr char kNote[] = "\nshortlist: finishing the file; Ctrl-C again stops at once\n";
  held_signal = signal;
  [[maybe_unused]] const auto written = write(STDERR_FILENO, kNote, sizeof kNote - 1);
}

/// A file beside the target, gone again unless it was renamed.
class unfinished_file {
 public:
  explicit unfinished_file(const std::filesystem::path& target)
      : target_(target), beside_(target.parent_path() / fmt::format(".shortlist-{}.tmp", getpid())) {
    descriptor_ = open(beside_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor_ < 0) fail("open");
  }
  ~unfinished_file() {
    if (descriptor_ >= 0) close(descriptor_);
    if (!renamed_) unlink(beside_.c_str());
  }
  unfinished_file(const unfinished_file&) = delete;
  unfinished_file& operator=(const unfinished_file&) = delete;

  void append(std::string_view text) {
    while (!text.empty()) {
      const ssize_t written = write(descriptor_, text.data(), text.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail("write");
      text.remove_prefix(static_cast<std::size_t>(written));
    }
  }
  void finish() {
    if (fsync(descriptor_) != 0) fail("flush");
    if (close(std::exchange(descriptor_, -1)) != 0) fail("close");
    if (std::rename(beside_.c_str(), target_.c_str()) != 0) fail("rename");
    renamed_ = true;
  }

 private:
  [[noreturn]] void fail(const char* step) const {
    const int code = errno;
    throw io_error(fmt::format("cannot write {}: {}: {}", target_.string(), step, std::strerror(code)));
  }

  std::filesystem::path target_;
  std::filesystem::path beside_;
  int descriptor_ = -1;
  bool renamed_ = false;
};

}  // namespace

void write_file(const std::filesystem::path& path, std::string_view text) {
  const hold_interrupts held;
  unfinished_file file(path);
  file.append(text);
  file.finish();
}

void reject_vector_file_name(const std::filesystem::path& index) {
  try {
    static_cast<void>(format_of(index));
  } catch (const invalid_argument&) {
    return;
  }
  throw invalid_argument(fmt::format(
      "--output is {}; allowed is a name that is no vector file's, such as corpus.safetensors", index.string()));
}

void check_npy_name(std::string_view option, const std::filesystem::path& path) {
  if (path.empty() || path.extension() == ".npy") return;
  throw invalid_argument(fmt::format("{} is {}; allowed is a name that ends in .npy", option, path.string()));
}

void check_other_file(std::string_view option, const std::filesystem::path& path, std::string_view other_option,
                      const std::filesystem::path& other) {
  if (path.empty() || path != other) return;
  throw invalid_argument(
      fmt::format("{} is {}; allowed is another file than that of {}", option, path.string(), other_option));
}

hold_interrupts::hold_interrupts() : interrupt_{}, terminate_{} {
  struct sigaction once {};
  once.sa_handler = hold;
  once.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  sigemptyset(&once.sa_mask);
  held_signal = 0;
  sigaction(SIGINT, &once, &interrupt_);
  sigaction(SIGTERM, &once, &terminate_);
}

hold_interrupts::~hold_interrupts() {
  sigaction(SIGINT, &interrupt_, nullptr);
  sigaction(SIGTERM, &terminate_, nullptr);
  if (held_signal != 0) std::raise(held_signal);
}

}  // namespace shortlist::program
