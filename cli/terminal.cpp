// Text for people. See terminal.hpp.
#include "terminal.hpp"

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>

namespace shortlist::program {
namespace {

constexpr int kPlainWidth = 100;                             // where there is no terminal to ask
constexpr int kNarrowest = 40;                               // below this, wrapping leaves a column of single words
constexpr int kWidest = 120;                                 // longer lines are hard to follow
constexpr auto kFirstShow = std::chrono::milliseconds(500);  // quicker work needs no progress line
constexpr auto kTerminalPace = std::chrono::milliseconds(100);
constexpr auto kLogPace = std::chrono::seconds(2);

/// Characters of UTF-8 text: every byte but the continuation bytes begins one.
int characters(std::string_view text) {
  return static_cast<int>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0u) != 0x80u; }));
}

/// The first `count` characters of UTF-8 text.
std::string_view first_characters(std::string_view text, int count) {
  std::size_t bytes = 0;
  for (; bytes < text.size(); ++bytes) {
    const bool starts = (static_cast<unsigned char>(text[bytes]) & 0xC0u) != 0x80u;
    if (starts && count-- == 0) break;
  }
  return text.substr(0, bytes);
}

/// Drops words from the end until " ..." fits behind the rest.
void cut_for_ellipsis(std::string& line, int width) {
  constexpr std::string_view kEllipsis = " ...";
  const int room = width - static_cast<int>(kEllipsis.size());
  while (characters(line) > room) {
    const std::size_t space = line.rfind(' ');
    if (space == std::string::npos) {
      line = first_characters(line, room);
    } else {
      line.resize(space);
    }
  }
  line += kEllipsis;
}

}  // namespace

bool is_terminal(std::FILE* file) { return isatty(fileno(file)) != 0; }

int text_width() {
  winsize size{};
  if (!is_terminal(stdout) || ioctl(fileno(stdout), TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kPlainWidth;
  return std::clamp(static_cast<int>(size.ws_col), kNarrowest, kWidest);
}

std::string grouped(std::int64_t value) {
  std::string text = fmt::format("{}", value);
  const std::size_t first_digit = value < 0 ? 1 : 0;
  for (std::size_t from_end = 3; from_end + first_digit < text.size(); from_end += 4) {
    text.insert(text.size() - from_end, 1, ',');
  }
  return text;
}

std::string readable_size(std::int64_t bytes) {
  constexpr std::array<const char*, 4> kUnits = {"kB", "MB", "GB", "TB"};
  if (bytes < 1000) return fmt::format("{} bytes", bytes);
  double value = static_cast<double>(bytes) / 1000;
  std::size_t unit = 0;
  while (value >= 999.95 && unit + 1 < kUnits.size()) {  // 999.95 would print as 1000.0
    value /= 1000;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string readable_time(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.1f} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.2f} ms", seconds * 1e3);
  return fmt::format("{:.1f} s", seconds);
}

std::vector<std::string> wrap(std::string_view text, int width, int max_lines) {
  std::vector<std::string> lines;
  std::string line;
  while (!text.empty()) {
    const std::size_t space = text.find(' ');
    std::string_view word = text.substr(0, space);
    text.remove_prefix(space == std::string_view::npos ? text.size() : space + 1);
    while (!word.empty()) {
      const std::string_view piece = first_characters(word, width);  // a word longer than a line is broken
      word.remove_prefix(piece.size());
      const int joined = characters(line) + (line.empty() ? 0 : 1) + characters(piece);
      if (joined > width) {
        lines.push_back(std::move(line));
        line.clear();
        if (static_cast<int>(lines.size()) == max_lines) {
          cut_for_ellipsis(lines.back(), width);
          return lines;
        }
      }
      if (!line.empty()) line += ' ';
      line += piece;
    }
  }
  if (!line.empty()) lines.push_back(std::move(line));
  return lines;
}

styles::styles() : on_(is_terminal(stdout) && std::getenv("NO_COLOR") == nullptr) {}

std::string styles::dress(const char* start, std::string_view text) const {
  return on_ ? fmt::format("{}{}\x1b[0m", start, text) : std::string(text);
}

progress::progress(std::string what, std::int64_t total_rows, std::int64_t row_bytes, progress_mode mode)
    : what_(std::move(what)),
      total_rows_(total_rows),
      row_bytes_(row_bytes),
      terminal_(is_terminal(stderr)),
      enabled_(mode == progress_mode::always || terminal_),
      start_(clock::now()),
      next_(mode == progress_mode::always ? start_ : start_ + kFirstShow) {}

progress::~progress() {
  if (shown_ && terminal_) std::fputc('\n', stderr);
}

void progress::advance(std::int64_t rows) {
  done_rows_ += rows;
  const auto now = clock::now();
  const bool last = done_rows_ == total_rows_ && shown_;
  if (enabled_ && (now >= next_ || last)) show(now);
}

void progress::show(clock::time_point now) {
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const double rate = static_cast<double>(done_rows_ * row_bytes_) / std::max(seconds, 1e-9);
  const auto percent = total_rows_ == 0 ? 100 : 100 * done_rows_ / total_rows_;
  const std::string text = fmt::format("{}: {} of {} rows ({} %), {}/s", what_, grouped(done_rows_),
                                       grouped(total_rows_), percent, readable_size(static_cast<std::int64_t>(rate)));
  std::fputs((terminal_ ? "\r" + text + "\x1b[K" : text + "\n").c_str(), stderr);
  shown_ = true;
  next_ = now;
  next_ += terminal_ ? std::chrono::duration_cast<clock::duration>(kTerminalPace)
                     : std::chrono::duration_cast<clock::duration>(kLogPace);
}

}  // namespace shortlist::program
