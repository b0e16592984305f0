// Index files: the header is built and checked here; the layout and its reasons stand in the header file.
#include "io/safetensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#define XXH_INLINE_ALL  // xxHash as a header: the library then needs no libxxhash beside it
#include <xxhash.h>

#include "shortlist/error.hpp"

static_assert(std::endian::native == std::endian::little, "files are little-endian and are read as they lie");

namespace shortlist::io {
namespace {

using json = nlohmann::json;
using ordered_json = nlohmann::ordered_json;  // what is written keeps the order of the tensors
using text_map = std::map<std::string, std::string, std::less<>>;

constexpr std::int64_t kAlignment = 64;                // of every tensor: a cache line, and the widest vector load
constexpr std::int64_t kLengthBytes = 8;               // the header's length stands before it
constexpr std::int64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr int kMaxJsonDepth = 3;                       // file > tensor > shape
constexpr std::int64_t kChunkBytes = std::int64_t{4} << 20;  // of verifying reads: large for the disk, small for memory
constexpr std::size_t kDigits = 16;                          // of a 64-bit checksum
constexpr std::string_view kNoChecksum = "0000000000000000";
constexpr std::string_view kMetadataKey = "__metadata__";
constexpr std::string_view kPadPrefix = "_pad";
constexpr std::string_view kChecksumPrefix = "xxh3.";
constexpr std::string_view kHeaderChecksumKey = "xxh3.header";
// How the header's checksum begins in our compact JSON. Inside of a string the quotes would be escaped, so this text
// can stand for nothing else.
constexpr std::string_view kHeaderChecksumText = R"("xxh3.header":")";

struct dtype_info {
  std::string_view name;
  std::int64_t bytes;
};
constexpr dtype_info kDtypes[] = {{"F32", 4}, {"F16", 2}, {"BF16", 2}, {"I8", 1}, {"U8", 1}, {"U32", 4}, {"I64", 8}};
constexpr std::string_view kDtypeNames = "F32, F16, BF16, I8, U8, U32 or I64";

std::optional<std::int64_t> size_of(std::string_view dtype) {
  for (const dtype_info& known : kDtypes) {
    if (known.name == dtype) return known.bytes;
  }
  return std::nullopt;
}

// Bytes of a tensor with non-negative dimensions; empty on overflow.
std::optional<std::int64_t> tensor_bytes(std::int64_t element_bytes, std::span<const std::int64_t> shape) {
  std::int64_t bytes = element_bytes;
  for (const std::int64_t extent : shape) {
    if (__builtin_mul_overflow(bytes, extent, &bytes)) return std::nullopt;
  }
  return bytes;
}

std::string hex(XXH64_hash_t hash) { return fmt::format("{:016x}", hash); }

class checksum {
 public:
  checksum() { XXH3_64bits_reset(&state_); }
  void update(const void* data, std::int64_t bytes) {
    if (bytes > 0) XXH3_64bits_update(&state_, data, static_cast<std::size_t>(bytes));
  }
  std::string text() const { return hex(XXH3_64bits_digest(&state_)); }

 private:
  alignas(64) XXH3_state_t state_;
};

std::string checksum_of_header(std::string_view header) { return hex(XXH3_64bits(header.data(), header.size())); }

bool begins_with(std::string_view text, std::string_view prefix) { return text.substr(0, prefix.size()) == prefix; }

bool is_reserved(std::string_view name) {
  return name == kMetadataKey || begins_with(name, kPadPrefix) || begins_with(name, kChecksumPrefix);
}

std::string checksum_key(std::string_view tensor) { return std::string(kChecksumPrefix) + std::string(tensor); }

std::string shape_text(std::span<const std::int64_t> shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

}  // namespace

std::string_view safetensors_dtype(element_type type) {
  switch (type) {
    case element_type::f32: return "F32";
    case element_type::f16: return "F16";
    case element_type::bf16: return "BF16";
    case element_type::i8: return "I8";
    case element_type::u8: return "U8";
  }
  throw invalid_argument(fmt::format("type is {}; allowed are the values of element_type", static_cast<int>(type)));
}

// ---- writer

struct safetensors_writer::impl {
  struct planned_tensor {
    std::string name;
    std::int64_t offset = 0;  // in the data section
    std::int64_t bytes = 0;
    std::int64_t written = 0;
    checksum sum;
  };

  output_file file;
  ordered_json header;                  // checksums are kNoChecksum until commit
  std::vector<planned_tensor> tensors;  // in file order, padding included
  std::int64_t header_bytes = 0;        // padding included: the data begins at kLengthBytes + header_bytes
  std::size_t current = 0;              // the first tensor that is not complete

  explicit impl(const std::filesystem::path& path) : file(path) {}

  void plan(const std::map<std::string, std::string>& metadata, const std::vector<tensor_description>& descriptions);
  void plan_tensor(std::string name, std::string_view dtype, const std::vector<std::int64_t>& shape,
                   std::int64_t bytes);
  void append(planned_tensor& tensor, const void* data, std::int64_t bytes);
  void skip_complete();
  std::string header_text() const;
};

void safetensors_writer::impl::plan_tensor(std::string name, std::string_view dtype,
                                           const std::vector<std::int64_t>& shape, std::int64_t bytes) {
  const std::int64_t begin = tensors.empty() ? 0 : tensors.back().offset + tensors.back().bytes;
  std::int64_t end = 0;
  if (__builtin_add_overflow(begin, bytes, &end) || end > std::numeric_limits<std::int64_t>::max() - kMaxHeaderBytes) {
    throw invalid_argument(
        fmt::format("shape of '{}' is {}: the file would have more than 2^63 bytes", name, shape_text(shape)));
  }
  header[name] = {{"dtype", dtype}, {"shape", shape}, {"data_offsets", {begin, end}}};
  header[std::string(kMetadataKey)][checksum_key(name)] = kNoChecksum;
  tensors.push_back({std::move(name), begin, bytes, 0, {}});
}

void safetensors_writer::impl::plan(const std::map<std::string, std::string>& metadata,
                                    const std::vector<tensor_description>& descriptions) {
  ordered_json& values = header[std::string(kMetadataKey)];
  for (const auto& [key, value] : metadata) {
    if (is_reserved(key)) throw invalid_argument(fmt::format("metadata key is '{}', which is reserved", key));
    values[key] = value;
  }
  values[std::string(kHeaderChecksumKey)] = kNoChecksum;

  int pads = 0;
  for (const tensor_description& wanted : descriptions) {
    if (is_reserved(wanted.name) || wanted.name == "header") {
      throw invalid_argument(fmt::format("tensor name is '{}', which is reserved", wanted.name));
    }
    if (header.contains(wanted.name)) {
      throw invalid_argument(fmt::format("tensor name is '{}' twice; names must differ", wanted.name));
    }
    const std::optional<std::int64_t> element_bytes = size_of(wanted.dtype);
    if (!element_bytes) {
      throw invalid_argument(
          fmt::format("dtype of '{}' is '{}'; allowed is {}", wanted.name, wanted.dtype, kDtypeNames));
    }
    const bool negative = std::any_of(wanted.shape.begin(), wanted.shape.end(), [](auto n) { return n < 0; });
    const std::optional<std::int64_t> bytes = negative ? std::nullopt : tensor_bytes(*element_bytes, wanted.shape);
    if (!bytes) {
      throw invalid_argument(
          fmt::format("shape of '{}' is {}; allowed are dimensions of 0 or more and fewer than 2^63 "
                      "bytes",
                      wanted.name, shape_text(wanted.shape)));
    }
    const std::int64_t end = tensors.empty() ? 0 : tensors.back().offset + tensors.back().bytes;
    if (const std::int64_t gap = (kAlignment - end % kAlignment) % kAlignment; gap != 0) {
      plan_tensor(fmt::format("{}{}", kPadPrefix, pads++), "U8", {gap}, gap);
    }
    plan_tensor(wanted.name, wanted.dtype, wanted.shape, *bytes);
  }
  const auto length = static_cast<std::int64_t>(header.dump().size());  // throws on text that is no UTF-8
  header_bytes = (kLengthBytes + length + kAlignment - 1) / kAlignment * kAlignment - kLengthBytes;
  if (header_bytes > kMaxHeaderBytes) {
    throw invalid_argument(fmt::format("metadata and tensor names need a header of {} bytes; allowed are {}",
                                       header_bytes, kMaxHeaderBytes));
  }
}

std::string safetensors_writer::impl::header_text() const {
  std::string text = header.dump();
  text.resize(static_cast<std::size_t>(header_bytes), ' ');
  return text;
}

void safetensors_writer::impl::append(planned_tensor& tensor, const void* data, std::int64_t bytes) {
  file.write(kLengthBytes + header_bytes + tensor.offset + tensor.written, data, bytes);
  tensor.sum.update(data, bytes);
  tensor.written += bytes;
}

void safetensors_writer::impl::skip_complete() {
  static constexpr std::array<char, kAlignment> kZeros{};
  for (; current < tensors.size(); ++current) {
    planned_tensor& next = tensors[current];
    if (begins_with(next.name, kPadPrefix)) append(next, kZeros.data(), next.bytes);
    if (next.written < next.bytes) return;
  }
}

safetensors_writer::safetensors_writer(const std::filesystem::path& path,
                                       const std::map<std::string, std::string>& metadata,
                                       const std::vector<tensor_description>& tensors)
    : impl_(std::make_unique<impl>(path)) {
  try {
    impl_->plan(metadata, tensors);
  } catch (const nlohmann::json::exception& problem) {
    throw invalid_argument(fmt::format("metadata or a tensor name is no UTF-8 text: {}", problem.what()));
  }
  const auto length = static_cast<std::uint64_t>(impl_->header_bytes);
  impl_->file.write(0, &length, kLengthBytes);
  const std::string text = impl_->header_text();
  impl_->file.write(kLengthBytes, text.data(), impl_->header_bytes);
  impl_->skip_complete();
}

safetensors_writer::~safetensors_writer() = default;
safetensors_writer::safetensors_writer(safetensors_writer&&) noexcept = default;

void safetensors_writer::write(std::string_view name, const void* data, std::int64_t bytes) {
  // An empty tensor has no turn of its own; writing its nothing is fine at any time.
  if (bytes == 0) return;
  if (impl_->current == impl_->tensors.size() || impl_->tensors[impl_->current].name != name) {
    throw invalid_argument(
        fmt::format("name is '{}'; {}", name,
                    impl_->current == impl_->tensors.size()
                        ? "every tensor is complete"
                        : fmt::format("it is the turn of '{}'", impl_->tensors[impl_->current].name)));
  }
  auto& tensor = impl_->tensors[impl_->current];
  if (bytes < 0 || bytes > tensor.bytes - tensor.written) {
    throw invalid_argument(fmt::format("bytes is {}; allowed is 0 to {}, what '{}' still lacks", bytes,
                                       tensor.bytes - tensor.written, name));
  }
  impl_->append(tensor, data, bytes);
  impl_->skip_complete();
}

void safetensors_writer::commit() {
  if (impl_->current != impl_->tensors.size()) {
    const auto& tensor = impl_->tensors[impl_->current];
    throw invalid_argument(
        fmt::format("'{}' has {} of its {} bytes; commit needs all", tensor.name, tensor.written, tensor.bytes));
  }
  ordered_json& values = impl_->header[std::string(kMetadataKey)];
  for (const auto& tensor : impl_->tensors) values[checksum_key(tensor.name)] = tensor.sum.text();
  const std::string without = impl_->header_text();
  values[std::string(kHeaderChecksumKey)] = checksum_of_header(without);
  const std::string text = impl_->header_text();
  impl_->file.write(kLengthBytes, text.data(), impl_->header_bytes);
  impl_->file.commit();
}

// ---- reader

struct safetensors_file::impl {
  input_file file;
  text_map metadata;
  std::map<std::string, tensor_entry, std::less<>> tensors;
  std::int64_t data_begin = 0;  // in the file

  explicit impl(const std::filesystem::path& path) : file(path) {}

  template <class... Args>
  [[noreturn]] void corrupt(fmt::format_string<Args...> format, Args&&... args) const {
    throw corrupt_file(fmt::format("'{}': {}", file.path().string(), fmt::format(format, std::forward<Args>(args)...)));
  }

  void load();
  std::string load_header() const;
  void check_header_checksum(std::string text) const;
  json parse(const std::string& text) const;
  void take_metadata(const json& values);
  tensor_entry to_entry(const std::string& name, const json& value) const;
  std::int64_t to_integer(const json& value, std::string_view name, std::string_view what) const;
  void check_coverage() const;
};

void safetensors_file::impl::load() {
  const std::string text = load_header();
  data_begin = kLengthBytes + static_cast<std::int64_t>(text.size());
  const json header = parse(text);
  if (!header.is_object()) corrupt("the header is no JSON object");
  if (!header.contains(kMetadataKey)) corrupt("the header has no '{}'", kMetadataKey);
  for (const auto& [name, value] : header.items()) {
    if (name == kMetadataKey) {
      take_metadata(value);
    } else {
      tensors.emplace(name, to_entry(name, value));
    }
  }
  check_coverage();
  // Last, so that a damaged field is named where that is possible.
  check_header_checksum(text);
}

std::string safetensors_file::impl::load_header() const {
  if (file.size_bytes() < kLengthBytes) {
    corrupt("the file has {} bytes; a safetensors file has at least {}", file.size_bytes(), kLengthBytes);
  }
  std::uint64_t length = 0;
  file.read(0, kLengthBytes, &length);
  const auto available = static_cast<std::uint64_t>(file.size_bytes() - kLengthBytes);
  const std::uint64_t allowed = std::min<std::uint64_t>(available, kMaxHeaderBytes);
  if (length < 2 || length > allowed) {
    const std::uint64_t swapped = __builtin_bswap64(length);
    corrupt("the header's length at offset 0 is {}; allowed is 2 to {}{}", length, allowed,
            swapped >= 2 && swapped <= allowed ? " (it would fit as a big-endian number)" : "");
  }
  std::string text(length, '\0');
  file.read(kLengthBytes, static_cast<std::int64_t>(length), text.data());
  return text;
}

json safetensors_file::impl::parse(const std::string& text) const {
  // Of two equal keys one parser takes the first and another the last, so that they would read different files.
  std::vector<std::set<std::string>> keys(kMaxJsonDepth + 1);
  const auto check = [&](int depth, json::parse_event_t event, json& parsed) {
    using event_t = json::parse_event_t;
    if (event == event_t::object_start || event == event_t::array_start) {
      if (depth >= kMaxJsonDepth) corrupt("the header's JSON is nested more than {} deep", kMaxJsonDepth);
      keys[static_cast<std::size_t>(depth) + 1].clear();
    } else if (event == event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys[static_cast<std::size_t>(depth)].insert(key).second) corrupt("the header has the key '{}' twice", key);
    }
    return true;
  };
  json header = json::parse(text, check, false);
  if (header.is_discarded()) corrupt("the header's {} bytes at offset {} are no JSON", text.size(), kLengthBytes);
  return header;
}

void safetensors_file::impl::take_metadata(const json& values) {
  if (!values.is_object()) corrupt("'{}' is no JSON object", kMetadataKey);
  for (const auto& [key, value] : values.items()) {
    if (!value.is_string()) corrupt("the value of '{}' in '{}' is no string", key, kMetadataKey);
    metadata.emplace(key, value.get<std::string>());
  }
}

std::int64_t safetensors_file::impl::to_integer(const json& value, std::string_view name, std::string_view what) const {
  if (!value.is_number_unsigned()) {
    corrupt("{} of tensor '{}' has a value that is no integer of 0 or more", what, name);
  }
  const auto number = value.get<std::uint64_t>();
  if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    corrupt("{} of tensor '{}' has the value {}; allowed is less than 2^63", what, name, number);
  }
  return static_cast<std::int64_t>(number);
}

tensor_entry safetensors_file::impl::to_entry(const std::string& name, const json& value) const {
  if (!value.is_object() || value.size() != 3 || !value.contains("dtype") || !value.contains("shape") ||
      !value.contains("data_offsets")) {
    corrupt("tensor '{}' must have dtype, shape, data_offsets and nothing else", name);
  }
  const json& dtype = value["dtype"];
  if (!dtype.is_string()) corrupt("dtype of tensor '{}' is no string", name);
  tensor_entry entry;
  entry.dtype = dtype.get<std::string>();
  const std::optional<std::int64_t> element_bytes = size_of(entry.dtype);
  if (!element_bytes) corrupt("dtype of tensor '{}' is '{}'; allowed is {}", name, entry.dtype, kDtypeNames);

  const json& shape = value["shape"];
  if (!shape.is_array()) corrupt("shape of tensor '{}' is no array", name);
  for (const json& extent : shape) entry.shape.push_back(to_integer(extent, name, "shape"));
  const std::optional<std::int64_t> bytes = tensor_bytes(*element_bytes, entry.shape);
  if (!bytes) corrupt("shape of tensor '{}' is {}: 2^63 bytes or more", name, shape_text(entry.shape));
  entry.bytes = *bytes;

  const json& offsets = value["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2) corrupt("data_offsets of tensor '{}' are not two numbers", name);
  const std::int64_t begin = to_integer(offsets[0], name, "data_offsets");
  const std::int64_t end = to_integer(offsets[1], name, "data_offsets");
  const std::int64_t data_bytes = file.size_bytes() - data_begin;
  if (begin > end || end > data_bytes) {
    corrupt("data_offsets of tensor '{}' are [{}, {}]; the file has {} bytes of data", name, begin, end, data_bytes);
  }
  if (end - begin != entry.bytes) {
    corrupt("data_offsets of tensor '{}' are [{}, {}], {} bytes; {} {} needs {}", name, begin, end, end - begin,
            entry.dtype, shape_text(entry.shape), entry.bytes);
  }
  entry.file_offset = data_begin + begin;
  return entry;
}

void safetensors_file::impl::check_coverage() const {
  std::vector<std::pair<std::int64_t, std::int64_t>> extents;  // first byte, bytes
  for (const auto& [name, entry] : tensors) extents.emplace_back(entry.file_offset, entry.bytes);
  std::sort(extents.begin(), extents.end());
  std::int64_t reached = data_begin;
  for (const auto& [begin, bytes] : extents) {
    if (begin != reached) {
      corrupt("tensors {} at offset {}; they must follow each other without gap or overlap",
              begin < reached ? "overlap" : "leave a gap", std::min(begin, reached));
    }
    reached += bytes;
  }
  if (reached != file.size_bytes()) {
    corrupt("the file has {} bytes; its tensors end at {}", file.size_bytes(), reached);
  }
}

void safetensors_file::impl::check_header_checksum(std::string text) const {
  const std::size_t key = text.find(kHeaderChecksumText);
  const std::size_t begin = key + kHeaderChecksumText.size();
  if (key == std::string::npos || begin + kDigits > text.size()) {
    corrupt("the header has no checksum '{}'; another program wrote it, or it is damaged", kHeaderChecksumKey);
  }
  const std::string stored = text.substr(begin, kDigits);
  text.replace(begin, kDigits, kNoChecksum);
  const std::string computed = checksum_of_header(text);
  if (stored != computed) {
    corrupt("the header's checksum is '{}', its bytes have '{}': the header was changed or damaged", stored, computed);
  }
}

safetensors_file::safetensors_file(const std::filesystem::path& path) : impl_(std::make_unique<impl>(path)) {
  impl_->load();
}

safetensors_file::~safetensors_file() = default;
safetensors_file::safetensors_file(safetensors_file&&) noexcept = default;
safetensors_file& safetensors_file::operator=(safetensors_file&&) noexcept = default;

const std::filesystem::path& safetensors_file::path() const noexcept { return impl_->file.path(); }

bool safetensors_file::has_metadata(std::string_view key) const noexcept {
  return !begins_with(key, kChecksumPrefix) && impl_->metadata.find(key) != impl_->metadata.end();
}

const std::string& safetensors_file::metadata(std::string_view key) const {
  if (!has_metadata(key)) impl_->corrupt("the metadata has no '{}'", key);
  return impl_->metadata.find(key)->second;
}

std::int64_t safetensors_file::metadata_integer(std::string_view key, std::int64_t lowest, std::int64_t highest) const {
  const std::string& text = metadata(key);
  std::int64_t value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc{} || end != text.data() + text.size() || value < lowest || value > highest) {
    impl_->corrupt("the metadata's '{}' is '{}'; allowed is {} to {}", key, text, lowest, highest);
  }
  return value;
}

const std::string& safetensors_file::header_checksum() const {
  return impl_->metadata.find(kHeaderChecksumKey)->second;  // compared when the file was opened
}

bool safetensors_file::has_tensor(std::string_view name) const noexcept {
  return impl_->tensors.find(name) != impl_->tensors.end();
}

std::vector<std::string> safetensors_file::tensor_names() const {
  std::vector<std::pair<std::pair<std::int64_t, std::int64_t>, std::string>> placed;
  for (const auto& [name, entry] : impl_->tensors) {
    if (!begins_with(name, kPadPrefix)) placed.push_back({{entry.file_offset, entry.bytes}, name});
  }
  std::sort(placed.begin(), placed.end());
  std::vector<std::string> names;
  names.reserve(placed.size());
  for (auto& [place, name] : placed) names.push_back(std::move(name));
  return names;
}

const tensor_entry& safetensors_file::tensor(std::string_view name) const {
  const auto found = impl_->tensors.find(name);
  if (found == impl_->tensors.end()) impl_->corrupt("there is no tensor '{}'", name);
  return found->second;
}

const tensor_entry& safetensors_file::tensor(std::string_view name, std::string_view dtype,
                                             std::span<const std::int64_t> shape) const {
  const tensor_entry& entry = tensor(name);
  if (entry.dtype != dtype || !std::equal(entry.shape.begin(), entry.shape.end(), shape.begin(), shape.end())) {
    impl_->corrupt("tensor '{}' is {} {}; expected is {} {}", name, entry.dtype, shape_text(entry.shape), dtype,
                   shape_text(shape));
  }
  return entry;
}

void safetensors_file::read(std::string_view name, std::int64_t byte_offset, std::int64_t bytes, void* out) const {
  const tensor_entry& entry = tensor(name);
  if (byte_offset < 0 || bytes < 0 || byte_offset > entry.bytes || bytes > entry.bytes - byte_offset) {
    throw invalid_argument(
        fmt::format("byte_offset is {} and bytes {}; tensor '{}' has {} bytes", byte_offset, bytes, name, entry.bytes));
  }
  impl_->file.read(entry.file_offset + byte_offset, bytes, out);
}

file_mapping safetensors_file::map(std::string_view name) const {
  const tensor_entry& entry = tensor(name);
  return file_mapping(impl_->file, entry.file_offset, entry.bytes);
}

namespace {

void compare_checksum(const text_map& metadata, std::string_view name, const checksum& sum,
                      const std::filesystem::path& path) {
  const auto stored = metadata.find(checksum_key(name));
  if (stored == metadata.end()) {
    throw corrupt_file(fmt::format("'{}': the metadata has no '{}'", path.string(), checksum_key(name)));
  }
  if (stored->second != sum.text()) {
    throw corrupt_file(
        fmt::format("'{}': the checksum of tensor '{}' is '{}', its bytes have '{}': the data is damaged "
                    "or belongs to another tensor",
                    path.string(), name, stored->second, sum.text()));
  }
}

}  // namespace

void safetensors_file::read_checked(std::string_view name, std::int64_t chunk_bytes,
                                    const chunk_function& chunk) const {
  if (chunk_bytes < 1) throw invalid_argument(fmt::format("chunk_bytes is {}; allowed is 1 or more", chunk_bytes));
  const tensor_entry& entry = tensor(name);
  std::vector<std::byte> memory(static_cast<std::size_t>(std::min(chunk_bytes, entry.bytes)));
  checksum sum;
  for (std::int64_t done = 0; done < entry.bytes;) {
    const std::int64_t bytes = std::min(chunk_bytes, entry.bytes - done);
    impl_->file.read(entry.file_offset + done, bytes, memory.data());
    sum.update(memory.data(), bytes);
    chunk(done, {memory.data(), static_cast<std::size_t>(bytes)});
    done += bytes;
  }
  compare_checksum(impl_->metadata, name, sum, path());
}

void safetensors_file::read_checked(std::string_view name, void* out) const {
  const tensor_entry& entry = tensor(name);
  checksum sum;
  for (std::int64_t done = 0; done < entry.bytes;) {  // in chunks, so that the checksum finds its bytes in the cache
    const std::int64_t bytes = std::min(kChunkBytes, entry.bytes - done);
    std::byte* to = static_cast<std::byte*>(out) + done;
    impl_->file.read(entry.file_offset + done, bytes, to);
    sum.update(to, bytes);
    done += bytes;
  }
  compare_checksum(impl_->metadata, name, sum, path());
}

void safetensors_file::verify(std::string_view name) const {
  read_checked(name, kChunkBytes, [](std::int64_t, std::span<const std::byte>) {});
}

}  // namespace shortlist::io
