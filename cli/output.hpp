// Files that the program writes: whole or not at all.
#pragma once

#include <csignal>
#include <filesystem>
#include <string_view>

namespace shortlist::program {

/// Writes beside `path` and renames when all is on disk. @throws io_error.
void write_file(const std::filesystem::path& path, std::string_view text);

/// While it lives, the first Ctrl-C (or SIGTERM) waits for its end, so that a writer can finish its file; a second one
/// stops at once.
class hold_interrupts {
 public:
  hold_interrupts();
  ~hold_interrupts();
  hold_interrupts(const hold_interrupts&) = delete;
  hold_interrupts& operator=(const hold_interrupts&) = delete;

 private:
  struct sigaction interrupt_;
  struct sigaction terminate_;
};

}  // namespace shortlist::program
