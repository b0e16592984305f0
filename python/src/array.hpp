// Arrays of any framework, seen as memory; and new arrays of the same kind, on the same device.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "shortlist/shortlist.hpp"

namespace shortlist::python {

namespace nb = nanobind;

/// The type of an array's elements; `other` is none that any call takes.
enum class dtype : std::uint8_t { f32, f64, f16, bf16, i8, u8, i32, u32, i64, u64, boolean, other };
inline constexpr int kDtypes = static_cast<int>(dtype::other);

/// "float32", ..., "bool", as NumPy and torch spell them.
const char* to_string(dtype type);
std::int64_t size_bytes(dtype type);
/// The dtype of a name, or `other`.
dtype dtype_of_name(std::string_view name);

class framework;
inline constexpr int kMaxAxes = 16;

/// An array that somebody else owns, as memory. It is held for as long as this object lives, which does not move.
class array {
 public:
  array() = default;
  array(const array&) = delete;
  array& operator=(const array&) = delete;
  ~array() { let_go(); }

  /// Frees what is held, so that another array can be read into this one.
  void let_go() noexcept;

  const void* data = nullptr;
  dtype type = dtype::other;
  int axes = 0;
  std::array<std::int64_t, kMaxAxes> shape;
  std::array<std::int64_t, kMaxAxes> strides;  ///< in elements
  device where = device::cpu();
  framework* from = nullptr;
  /// False where an element does not begin at a multiple of its size: only a copy can be used.
  bool aligned = true;

  nb::object object;        ///< the array itself, or the copy that was made of it
  Py_buffer buffer{};       ///< held while buffer.obj is not null
  void* managed = nullptr;  ///< a DLPack tensor to be freed by `free_managed`
  void (*free_managed)(void*) noexcept = nullptr;
};

/// A new array and where its elements go.
struct new_array {
  nb::object object;
  void* data = nullptr;
};

/// The order of work that an array's framework expects ours to join.
struct work_order {
  stream on;
  bool waits = false;  ///< whether the call must wait for `on`, since the framework will not
};

/// A library of arrays: NumPy, torch, CuPy, or any that speaks DLPack.
class framework {
 public:
  virtual ~framework() = default;

  /// Looks at the memory of `object`, which `into` then holds. @throws wrong_type that names `argument`.
  virtual void read(nb::handle object, const char* argument, array& into) = 0;
  /// A dense, uninitialised array of this framework, on the device of `like`.
  virtual new_array empty(const array& like, std::span<const std::int64_t> shape, dtype type) = 0;
  /// What `empty` made, as the caller gets it, once its elements are there.
  virtual nb::object finished(const array& /*like*/, nb::object made) { return made; }
  /// A dense copy of `object`.
  virtual nb::object copied(nb::handle object) = 0;
  /// `object` with elements of `type`.
  virtual nb::object converted(nb::handle object, const char* argument, dtype type) = 0;
  /// Where work on arrays of this device is to be queued. On the CPU: nowhere, it is done at once.
  virtual work_order order(const array& of) = 0;
};

framework& numpy();
/// Null while torch or CuPy has not been imported by the program.
framework* torch();
framework* cupy();
framework& dlpack();

/// The framework that an object belongs to. @throws wrong_type if it is no array, nor a list that NumPy makes one of.
framework& framework_of(nb::handle object, const char* argument);

/// A list, tuple or range: no array yet.
bool is_list(nb::handle object);
/// Reads any object that framework_of knows.
void read_array(nb::handle object, const char* argument, array& into);
/// Has `of` hold a dense copy instead.
void replace_by_copy(array& of, const char* argument);
/// Has `of` hold its elements in another type instead.
void replace_by_type(array& of, const char* argument, dtype type);

/// A device that was found once, without asking the driver again.
device cuda_device(int ordinal);

/// "[4, 8]".
std::string shape_text(const array& of);

}  // namespace shortlist::python
