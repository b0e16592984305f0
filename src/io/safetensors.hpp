// Index files: a safetensors container that any standard reader opens, with checksums that ours insists on.
//
// Layout: 8 bytes of little-endian header length, the header (JSON, padded with spaces), then the tensors. Three things
// go beyond the standard, and all of them are legal in it:
//   - every tensor starts at a multiple of 64 bytes of the file, so that it can be mapped; the gaps are U8 tensors
//     `_pad0`, `_pad1`, ..., since a standard reader wants the data section covered without holes;
//   - `__metadata__` holds "xxh3.<tensor>", the 64-bit XXH3 of the tensor's bytes as 16 hex digits, one per tensor;
//   - `__metadata__` holds "xxh3.header", the XXH3 of the header's own bytes with these 16 digits taken as '0', so that
//     no value of the metadata, no name, shape or offset can change unseen.
// Errors: the operating system's are io_error; whatever the file's content contradicts is corrupt_file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/file.hpp"
#include "shortlist/types.hpp"

namespace shortlist::io {

/// "F32", "F16", "BF16", "I8" or "U8": what stored elements are called in a safetensors file. Ids are "I64".
std::string_view safetensors_dtype(element_type type);

/// A tensor to be written. A dimension of 0 is allowed; no dimensions at all mean one element.
struct tensor_description {
  std::string name;
  std::string dtype;  ///< F32, F16, BF16, I8, U8, U32 or I64
  std::vector<std::int64_t> shape;
};

/// A tensor of an open file.
struct tensor_entry {
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::int64_t file_offset = 0;  ///< from the start of the file; a multiple of 64 in files that we wrote
  std::int64_t bytes = 0;
};

/// Writes a file tensor by tensor, without holding any of them.
///
///   safetensors_writer out(path, {{"format", "shortlist.flat_index"}}, {{"vectors", "F32", {rows, dim}}, {"ids",
///   "I64", {rows}}}); out.write("vectors", chunk, chunk_bytes);  // any number of chunks; tensors in the order of
///   their descriptions out.write("ids", ids, ids_bytes); out.commit();                              // until here the
///   old file is untouched; without it the new one vanishes
class safetensors_writer {
 public:
  /// @throws io_error; invalid_argument for an unknown dtype, a name given twice, a name or key that is reserved
  ///         ("__metadata__", "_pad...", "xxh3...."), a negative dimension, text that is no UTF-8.
  safetensors_writer(const std::filesystem::path& path, const std::map<std::string, std::string>& metadata,
                     const std::vector<tensor_description>& tensors);
  ~safetensors_writer();
  safetensors_writer(safetensors_writer&&) noexcept;
  safetensors_writer& operator=(safetensors_writer&&) = delete;

  /// Appends the next `bytes` bytes of tensor `name`. A tensor begins when the one before it is complete.
  /// @throws io_error; invalid_argument if it is another tensor's turn or more bytes come than the shape has.
  void write(std::string_view name, const void* data, std::int64_t bytes);

  /// Puts the checksums in place, flushes to disk and renames over the target.
  /// @throws io_error; invalid_argument if a tensor is not complete. The target is then as it was.
  void commit();

 private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

/// An open file. The constructor believes nothing: header length, JSON, dtypes, shapes, offsets, coverage and the
/// header's checksum are all checked against the file. Const and safe to share between threads.
class safetensors_file {
 public:
  /// @throws io_error, corrupt_file.
  explicit safetensors_file(const std::filesystem::path& path);
  ~safetensors_file();
  safetensors_file(safetensors_file&&) noexcept;
  safetensors_file& operator=(safetensors_file&&) noexcept;

  const std::filesystem::path& path() const noexcept;

  bool has_metadata(std::string_view key) const noexcept;
  /// The value of a key, checksums excluded. @throws corrupt_file if it is not there.
  const std::string& metadata(std::string_view key) const;
  /// The same as a decimal integer in [lowest, highest]. @throws corrupt_file if it is not there or is none.
  std::int64_t metadata_integer(std::string_view key, std::int64_t lowest, std::int64_t highest) const;

  /// What stands for the whole file: it covers every name, shape and checksum.
  const std::string& header_checksum() const;

  bool has_tensor(std::string_view name) const noexcept;
  /// The names in file order, padding excluded.
  std::vector<std::string> tensor_names() const;
  /// @throws corrupt_file if it is not there.
  const tensor_entry& tensor(std::string_view name) const;
  /// The same, and its dtype and shape must be these. @throws corrupt_file that names both sides.
  const tensor_entry& tensor(std::string_view name, std::string_view dtype, std::span<const std::int64_t> shape) const;

  /// Reads bytes [byte_offset, byte_offset + bytes) of a tensor, without looking at its checksum.
  /// @throws invalid_argument if the range is not in the tensor, io_error.
  void read(std::string_view name, std::int64_t byte_offset, std::int64_t bytes, void* out) const;

  /// A whole tensor as memory, without looking at its checksum. @throws corrupt_file if it is not there, io_error.
  file_mapping map(std::string_view name) const;

  /// Reads a whole tensor once, in chunks and in order, and checks its checksum at the end: what `chunk` was given is
  /// to be believed only when this call has returned.
  /// @throws corrupt_file if the checksum is missing or differs, io_error, and what `chunk` throws.
  using chunk_function = std::function<void(std::int64_t byte_offset, std::span<const std::byte> data)>;
  void read_checked(std::string_view name, std::int64_t chunk_bytes, const chunk_function& chunk) const;
  /// The same straight into memory that holds the whole tensor.
  void read_checked(std::string_view name, void* out) const;

  /// Compares a tensor with its checksum. @throws corrupt_file, io_error.
  void verify(std::string_view name) const;

 private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

}  // namespace shortlist::io
