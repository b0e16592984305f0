// What indexes of all kinds take and give.
#include "elements.hpp"

#include <fmt/format.h>
#include <nanobind/stl/string.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstddef>
#include <fstream>
#include <iterator>
#include <system_error>

#include "errors.hpp"

namespace shortlist::python {
namespace {

constexpr const char* kElementDtypes = "float32, float16, bfloat16, int8 or uint8";

/// A folder for one file that nobody else sees, removed at the end.
class private_folder {
 public:
  private_folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "shortlist-XXXXXX").string();
    if (!::mkdtemp(pattern.data())) throw io_error(pattern + ": a temporary folder cannot be made");
    path_ = pattern;
  }
  private_folder(const private_folder&) = delete;
  private_folder& operator=(const private_folder&) = delete;
  ~private_folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::filesystem::path file() const { return path_ / "index"; }

 private:
  std::filesystem::path path_;
};

}  // namespace

std::optional<element_type> element_type_of(dtype type) {
  switch (type) {
    case dtype::f32: return element_type::f32;
    case dtype::f16: return element_type::f16;
    case dtype::bf16: return element_type::bf16;
    case dtype::i8: return element_type::i8;
    case dtype::u8: return element_type::u8;
    default: return {};
  }
}

dtype stored_as(element_type type) {
  switch (type) {
    case element_type::f32: return dtype::f32;
    case element_type::f16: return dtype::f16;
    case element_type::bf16: return dtype::bf16;
    case element_type::i8: return dtype::i8;
    case element_type::u8: return dtype::u8;
  }
  return dtype::other;
}

element_type element_type_named(nb::handle object) {
  constexpr std::string_view kTorchPrefix = "torch.";
  nb::object named = nb::borrow(object);
  if (PyType_Check(object.ptr())) named = nb::module_::import_("numpy").attr("dtype")(object);
  if (nb::hasattr(named, "name")) named = named.attr("name");
  std::string name = nb::cast<std::string>(nb::str(named));
  if (name.starts_with(kTorchPrefix)) name.erase(0, kTorchPrefix.size());
  const auto type = element_type_of(dtype_of_name(name));
  if (!type) throw_value("dtype", name, kElementDtypes);
  return *type;
}

any_matrix_view read_vectors(nb::handle object, const char* argument, element_type for_lists,
                             std::optional<element_type> only, array& into) {
  nb::object made;
  if (is_list(object)) {
    made = numpy().converted(object, argument, stored_as(for_lists));
    object = made;
  }
  const matrix seen = read_matrix(object, argument, columns::dense, into);
  const auto type = element_type_of(into.type);
  if (into.axes > 2) throw_value(argument, fmt::format("of shape {}", shape_text(into)), "[n, dim], or [dim] for one");
  if (!type || (only && *type != *only)) {
    throw_type(fmt::format("{}.dtype", argument), to_string(into.type),
               only ? fmt::format("{}, the dtype of the index", python::to_string(stored_as(*only))) : kElementDtypes);
  }
  return {into.data, *type, seen.rows, seen.cols, seen.row_stride};
}

std::span<const std::int64_t> read_ids(nb::handle object, std::int64_t rows, array& into) {
  if (object.is_none()) return {};
  const array host{};
  read_rows(object, "ids", dtype::i64, rows, host, into);
  return {static_cast<const std::int64_t*>(into.data), static_cast<std::size_t>(rows)};
}

std::string readable(std::int64_t bytes) {
  constexpr double kStep = 1024.0;
  constexpr const char* kUnits[] = {"bytes", "KiB", "MiB", "GiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= kStep && unit + 1 < std::size(kUnits)) {
    value /= kStep;
    ++unit;
  }
  return fmt::format("{:.{}f} {}", value, unit == 0 ? 0 : 1, kUnits[unit]);
}

bool is_on_host(const array& held, const char* argument, device index_device) {
  if (held.where.kind() == device_kind::cpu) return true;
  if (held.where != index_device) {
    const bool is_gpu = index_device.kind() == device_kind::cuda;
    throw_value(
        argument, fmt::format("on {}", held.where.name()),
        fmt::format("an array in host memory{}: the index is on {}",
                    is_gpu ? fmt::format(" or on {}", index_device.name()) : std::string(), index_device.name()));
  }
  return false;
}

void require_readable(const std::filesystem::path& path) {
  if (::access(path.c_str(), R_OK) == 0) return;
  PyErr_SetFromErrnoWithFilename(PyExc_OSError, path.c_str());
  throw nb::python_error();
}

nb::object saved_bytes(const file_action& save) {
  const private_folder folder;
  save(folder.file());
  std::ifstream file(folder.file(), std::ios::binary);
  const auto bytes = static_cast<Py_ssize_t>(std::filesystem::file_size(folder.file()));
  nb::object content = nb::steal(PyBytes_FromStringAndSize(nullptr, bytes));
  if (!content.is_valid()) throw nb::python_error();
  if (!file.read(PyBytes_AsString(content.ptr()), bytes)) {
    throw io_error(folder.file().string() + ": what was just saved cannot be read");
  }
  return content;
}

void with_file_of(const nb::bytes& content, const file_action& load) {
  const private_folder folder;
  std::ofstream file(folder.file(), std::ios::binary);
  file.write(content.c_str(), static_cast<std::streamsize>(content.size()));
  file.close();
  if (!file) throw io_error(folder.file().string() + ": the index cannot be unpacked");
  load(folder.file());
}

}  // namespace shortlist::python
