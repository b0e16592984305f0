// Text for people: numbers, wrapping to the terminal's width, and the progress line.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

namespace shortlist::program {

bool is_terminal(std::FILE* file);
/// Columns of the terminal, within what reads well; a fixed width where stdout is no terminal.
int text_width();

/// "2,478".
std::string grouped(std::int64_t value);
/// "3.8 MB", "12 bytes".
std::string readable_size(std::int64_t bytes);
/// "41.3 us", "1.25 ms", "3.1 s".
std::string readable_time(double seconds);

/// UTF-8 text in lines of at most `width` characters. Beyond `max_lines` the text is cut, and the last line ends in
/// an ellipsis.
std::vector<std::string> wrap(std::string_view text, int width, int max_lines);

/// Bold and dim on a terminal, nothing elsewhere (or where NO_COLOR is set).
class styles {
 public:
  styles();
  std::string bold(std::string_view text) const { return dress("\x1b[1m", text); }
  std::string dim(std::string_view text) const { return dress("\x1b[2m", text); }

 private:
  std::string dress(const char* start, std::string_view text) const;
  bool on_;
};

enum class progress_mode : std::uint8_t { when_terminal, always };

/// One line on stderr that grows with a long piece of work: rewritten in place on a terminal, a line now and then
/// elsewhere. Short work shows nothing unless it is asked for.
class progress {
 public:
  progress(std::string what, std::int64_t total_rows, std::int64_t row_bytes, progress_mode mode);
  ~progress();
  progress(const progress&) = delete;
  progress& operator=(const progress&) = delete;

  void advance(std::int64_t rows);

 private:
  using clock = std::chrono::steady_clock;
  void show(clock::time_point now);

  std::string what_;
  std::int64_t total_rows_;
  std::int64_t row_bytes_;
  std::int64_t done_rows_ = 0;
  bool terminal_;
  bool shown_ = false;
  bool enabled_;
  clock::time_point start_;
  clock::time_point next_;
};

}  // namespace shortlist::program
