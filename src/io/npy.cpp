// NumPy's npy format, versions 1 to 3: a magic, a version, a header length, the header (a Python dictionary of
// literals, padded with spaces and ended by a line feed), then the array. What is read: little-endian, one or two axes,
// and as vectors C order alone.
#include "io/npy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <optional>
#include <vector>

#include "io/vector_layout.hpp"
#include "shortlist/error.hpp"

namespace shortlist::io {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::int64_t kVersionBytes = 2;
constexpr std::int64_t kMaxHeaderBytes = 1 << 16;  // NumPy's are 128 bytes for any array that is read here

struct npy_dtype {
  std::string_view name;
  stored_type type;
};
constexpr npy_dtype kDtypes[] = {{"<f4", stored_type::f32}, {"<f2", stored_type::f16}, {"|i1", stored_type::i8},
                                 {"|u1", stored_type::u8},  {"<i4", stored_type::i32}, {"<i8", stored_type::i64}};
constexpr std::string_view kDtypeNames = "<f4, <f2, |i1, |u1, and for ids <i4 and <i8";

struct dictionary {
  std::optional<std::string> descr;
  std::optional<bool> fortran_order;
  std::optional<std::vector<std::int64_t>> shape;
};

[[noreturn]] void throw_unsupported(const input_file& file, const std::string& problem) {
  throw unsupported(fmt::format("'{}': {}", file.path().string(), problem));
}

// Parses the dictionary. Only what NumPy itself writes is taken: three keys, each once, in any order.
class dictionary_parser {
 public:
  dictionary_parser(const input_file& file, std::string_view text, std::int64_t offset, std::string_view dtypes)
      : file_(file), text_(text), offset_(offset), dtypes_(dtypes) {}

  dictionary parse() {
    dictionary header;
    expect('{');
    while (!accept('}')) {
      entry(header);
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    if (position_ != text_.size()) fail("the end of the header");
    if (!header.descr || !header.fortran_order || !header.shape) fail("all of descr, fortran_order and shape");
    return header;
  }

 private:
  void entry(dictionary& header) {
    const std::string key = quoted();
    expect(':');
    if (key == "descr" && !header.descr) {
      skip_space();
      if (peek() == '[') throw_unsupported(file_, fmt::format("descr is a structured dtype; allowed is {}", dtypes_));
      header.descr = quoted();
    } else if (key == "fortran_order" && !header.fortran_order) {
      header.fortran_order = boolean();
    } else if (key == "shape" && !header.shape) {
      header.shape = tuple();
    } else {
      fail("descr, fortran_order and shape, each once,");
    }
  }

  std::string quoted() {
    skip_space();
    const char quote = peek();
    if (quote != '\'' && quote != '"') fail("a quoted text");
    const std::size_t begin = ++position_;
    const std::size_t end = text_.find(quote, begin);
    if (end == std::string_view::npos) fail("the end of the quoted text that begins");
    position_ = end + 1;
    return std::string(text_.substr(begin, end - begin));
  }

  bool boolean() {
    skip_space();
    for (const bool value : {true, false}) {
      const std::string_view word = value ? "True" : "False";
      if (text_.substr(position_, word.size()) == word) {
        position_ += word.size();
        return value;
      }
    }
    fail("True or False");
  }

  std::vector<std::int64_t> tuple() {
    std::vector<std::int64_t> extents;
    expect('(');
    while (!accept(')')) {
      extents.push_back(integer());
      if (!accept(',')) {
        expect(')');
        break;
      }
    }
    return extents;
  }

  std::int64_t integer() {
    skip_space();
    if (!is_digit(peek())) fail("an integer of 0 or more");
    std::int64_t value = 0;
    for (; is_digit(peek()); ++position_) {
      if (__builtin_mul_overflow(value, std::int64_t{10}, &value) ||
          __builtin_add_overflow(value, std::int64_t{peek() - '0'}, &value)) {
        fail("an integer below 2^63");
      }
    }
    return value;
  }

  static bool is_digit(char c) { return c >= '0' && c <= '9'; }

  char peek() const { return position_ < text_.size() ? text_[position_] : '\0'; }

  void skip_space() {
    while (peek() == ' ' || peek() == '\n') ++position_;
  }

  bool accept(char wanted) {
    skip_space();
    if (peek() != wanted) return false;
    ++position_;
    return true;
  }

  void expect(char wanted) {
    if (!accept(wanted)) fail(fmt::format("'{}'", wanted));
  }

  [[noreturn]] void fail(std::string_view wanted) const {
    throw_corrupt(file_, fmt::format("the npy header must have {} at offset {}", wanted,
                                     offset_ + static_cast<std::int64_t>(position_)));
  }

  const input_file& file_;
  std::string_view text_;
  std::int64_t offset_;      // of the text in the file
  std::string_view dtypes_;  // what the caller reads
  std::size_t position_ = 0;
};

stored_type to_stored_type(const input_file& file, std::string_view descr) {
  for (const npy_dtype& known : kDtypes) {
    if (known.name == descr) return known.type;
  }
  throw_unknown_dtype(file, descr, kDtypeNames);
}

}  // namespace

void throw_unknown_dtype(const input_file& file, std::string_view descr, std::string_view dtypes) {
  throw_unsupported(file, fmt::format("descr is '{}'{}; allowed is {}", descr,
                                      descr.substr(0, 1) == ">" ? ", a big-endian type" : "", dtypes));
}

npy_header read_npy_header(const input_file& file, std::string_view dtypes) {
  constexpr std::int64_t kPreambleBytes = static_cast<std::int64_t>(kMagic.size()) + kVersionBytes;
  std::array<char, kPreambleBytes> preamble{};
  if (file.size_bytes() < kPreambleBytes + 2) {
    throw_corrupt(
        file, fmt::format("the file has {} bytes; an npy file has at least {}", file.size_bytes(), kPreambleBytes + 2));
  }
  file.read(0, kPreambleBytes, preamble.data());
  if (std::memcmp(preamble.data(), kMagic.data(), kMagic.size()) != 0) {
    throw_corrupt(file, "the magic at offset 0 is not that of npy, \\x93NUMPY");
  }
  const int version = static_cast<unsigned char>(preamble[kMagic.size()]);
  const int minor = static_cast<unsigned char>(preamble[kMagic.size() + 1]);
  if (version < 1 || version > 3 || minor != 0) {
    throw_unsupported(file, fmt::format("the npy version is {}.{}; allowed are 1.0, 2.0 and 3.0", version, minor));
  }

  const std::int64_t length_bytes = version == 1 ? 2 : 4;
  const std::int64_t header_begin = kPreambleBytes + length_bytes;
  std::uint32_t length = 0;  // little-endian, so that two bytes fill its lower half
  if (file.size_bytes() < header_begin) {
    throw_corrupt(file,
                  fmt::format("the file has {} bytes; the npy header begins at {}", file.size_bytes(), header_begin));
  }
  file.read(kPreambleBytes, length_bytes, &length);
  if (length > kMaxHeaderBytes || length > file.size_bytes() - header_begin) {
    throw_corrupt(file, fmt::format("the header's length at offset {} is {}; allowed is up to {}", kPreambleBytes,
                                    length, std::min(kMaxHeaderBytes, file.size_bytes() - header_begin)));
  }
  std::string text(length, '\0');
  file.read(header_begin, length, text.data());
  const dictionary header = dictionary_parser(file, text, header_begin, dtypes).parse();
  const std::vector<std::int64_t>& shape = *header.shape;
  if (shape.size() != 1 && shape.size() != 2) {
    throw_unsupported(
        file, fmt::format("shape is ({}); allowed are two axes, or one axis for one row", fmt::join(shape, ", ")));
  }
  return {*header.descr, *header.fortran_order, shape, header_begin + length};
}

void check_npy_size(const input_file& file, const npy_header& header, std::int64_t element_bytes) {
  const std::optional<std::int64_t> end = checked_end(header.begin, header.rows(), header.cols(), element_bytes);
  if (end == file.size_bytes()) return;
  throw_corrupt(file, fmt::format("shape is ({}) of {}, for which the file must have {} bytes; it has {}",
                                  fmt::join(header.shape, ", "), header.descr,
                                  end ? fmt::to_string(*end) : "2^63 or more", file.size_bytes()));
}

vector_layout npy_layout(const input_file& file) {
  const npy_header header = read_npy_header(file, kDtypeNames);
  const stored_type type = to_stored_type(file, header.descr);
  if (header.fortran_order) throw_unsupported(file, "fortran_order is True; allowed is False (C order)");
  if (header.cols() == 0) {
    throw_corrupt(file, fmt::format("shape is ({}); dim must be 1 or more", fmt::join(header.shape, ", ")));
  }
  check_npy_size(file, header, size_bytes(type));
  return {type, header.rows(), header.cols(), header.begin, 0};
}

}  // namespace shortlist::io
