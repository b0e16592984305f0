// What indexes of all kinds take and give: rows of an element type, labels, files and pickles.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "gil.hpp"
#include "matrix.hpp"

namespace shortlist::python {

std::optional<element_type> element_type_of(dtype type);
dtype stored_as(element_type type);
/// A name, or a dtype of NumPy or torch.
element_type element_type_named(nb::handle object);

/// Rows of `dim` elements, of type `only` if that is given. A list of numbers becomes an array of `for_lists`.
any_matrix_view read_vectors(nb::handle object, const char* argument, element_type for_lists,
                             std::optional<element_type> only, array& into);
/// Labels on the host, or none.
std::span<const std::int64_t> read_ids(nb::handle object, std::int64_t rows, array& into);
/// Arrays in host memory serve an index anywhere; those on a GPU serve an index that is there.
/// @throws invalid_argument for those on another device.
bool is_on_host(const array& held, const char* argument, device index_device);

/// "1.5 GiB".
std::string readable(std::int64_t bytes);

/// Python's own exception for what is missing: FileNotFoundError and its kin.
void require_readable(const std::filesystem::path& path);

using file_action = std::function<void(const std::filesystem::path&)>;
/// The bytes of the file that `save` writes.
nb::object saved_bytes(const file_action& save);
/// Has `load` read a file of these bytes.
void with_file_of(const nb::bytes& content, const file_action& load);

/// What `load` makes of a file of these bytes, without the GIL.
template <class Load>
auto loaded_bytes(const nb::bytes& content, const Load& load) {
  std::optional<decltype(load(std::filesystem::path()))> made;
  with_file_of(content, [&](const std::filesystem::path& file) {
    const unlocked without_gil;
    made.emplace(load(file));
  });
  return std::move(*made);
}

}  // namespace shortlist::python
