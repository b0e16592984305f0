// Files that the program writes: whole or not at all.
#pragma once

#include <csignal>
#include <filesystem>
#include <string_view>

namespace shortlist::program {

/// Writes beside `path` and renames when all is on disk. @throws io_error.
void write_file(const std::filesystem::path& path, std::string_view text);

/// An index named like a vector file is most likely an input that slipped behind -o, and would be overwritten.
/// @throws invalid_argument.
void reject_vector_file_name(const std::filesystem::path& index);

/// The names of npy files that an option asks for; an empty path is an option that is not given.
/// @throws invalid_argument if the name does not end in .npy, or is that of another option's file.
void check_npy_name(std::string_view option, const std::filesystem::path& path);
void check_other_file(std::string_view option, const std::filesystem::path& path, std::string_view other_option,
                      const std::filesystem::path& other);

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
