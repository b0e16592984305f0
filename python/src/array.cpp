#include "array.hpp"

#include <fmt/format.h>

#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "calls.hpp"
#include "errors.hpp"

namespace shortlist::python {
namespace {

struct dtype_entry {
  const char* name;
  std::int64_t bytes;
};
constexpr dtype_entry kEntries[] = {{"float32", 4}, {"float64", 8}, {"float16", 2}, {"bfloat16", 2},
                                    {"int8", 1},    {"uint8", 1},   {"int32", 4},   {"uint32", 4},
                                    {"int64", 8},   {"uint64", 8},  {"bool", 1},    {"another dtype", 1}};
static_assert(std::size(kEntries) == kDtypes + 1);

bool is_instance(nb::handle object, nb::handle of) {
  const int answer = PyObject_IsInstance(object.ptr(), of.ptr());
  if (answer < 0) throw nb::python_error();
  return answer == 1;
}

bool has(nb::handle object, const char* attribute) { return PyObject_HasAttrString(object.ptr(), attribute) == 1; }

framework* find_framework(nb::handle object) {
  static const nb::object& numpy_array = *new nb::object(nb::module_::import_("numpy").attr("ndarray"));
  if (is_instance(object, numpy_array)) return &numpy();
  if (const nb::object module = imported("torch"); module.is_valid() && is_instance(object, module.attr("Tensor"))) {
    return torch();
  }
  if (const nb::object module = imported("cupy"); module.is_valid() && is_instance(object, module.attr("ndarray"))) {
    return cupy();
  }
  if (has(object, "__dlpack__") && has(object, "__dlpack_device__")) return &dlpack();
  const bool numpy_can = PyObject_CheckBuffer(object.ptr()) || has(object, "__array__") || is_list(object);
  return numpy_can ? &numpy() : nullptr;
}

}  // namespace

const char* to_string(dtype type) { return kEntries[static_cast<int>(type)].name; }
std::int64_t size_bytes(dtype type) { return kEntries[static_cast<int>(type)].bytes; }

dtype dtype_of_name(std::string_view name) {
  for (int i = 0; i < kDtypes; ++i) {
    if (name == kEntries[i].name) return static_cast<dtype>(i);
  }
  return dtype::other;
}

void array::let_go() noexcept {
  if (buffer.obj) PyBuffer_Release(&buffer);
  if (managed) free_managed(managed);
  managed = nullptr;
  object.reset();
}

framework& framework_of(nb::handle object, const char* argument) {
  // Types live on as keys, which costs nothing beside looking for attributes at every call.
  static auto& known = *new std::unordered_map<PyTypeObject*, framework*>;
  PyTypeObject* type = Py_TYPE(object.ptr());
  static PyTypeObject* last_type = nullptr;
  static framework* last = nullptr;
  if (type == last_type) return *last;
  auto found = known.find(type);
  if (found == known.end()) {
    framework* owner = find_framework(object);
    if (!owner) {
      throw_type(argument, fmt::format("a {}", nb::type_name(nb::handle(reinterpret_cast<PyObject*>(type))).c_str()),
                 "an array of NumPy, torch, CuPy, JAX, or one that has __dlpack__ or the buffer protocol");
    }
    Py_INCREF(reinterpret_cast<PyObject*>(type));
    found = known.emplace(type, owner).first;
  }
  last_type = type;
  last = found->second;
  return *last;
}

bool is_list(nb::handle object) {
  return PyList_Check(object.ptr()) || PyTuple_Check(object.ptr()) || Py_TYPE(object.ptr()) == &PyRange_Type;
}

void read_array(nb::handle object, const char* argument, array& into) {
  framework& from = framework_of(object, argument);
  into.from = &from;
  from.read(object, argument, into);
}

namespace {
void replace(array& of, const char* argument, nb::object replacement) {
  of.let_go();
  framework& from = *of.from;
  from.read(replacement, argument, of);
}
}  // namespace

void replace_by_copy(array& of, const char* argument) { replace(of, argument, of.from->copied(of.object)); }

void replace_by_type(array& of, const char* argument, dtype type) {
  replace(of, argument, of.from->converted(of.object, argument, type));
  if (of.type != type) {
    throw_type(argument,
               fmt::format("made {} by its library, which was asked for {}", to_string(of.type), to_string(type)),
               fmt::format("an array of {}; JAX makes 64-bit ones if jax_enable_x64 is on", to_string(type)));
  }
}

device cuda_device(int ordinal) {
  static auto& known = *new std::map<int, device>;  // under the GIL
  const auto found = known.find(ordinal);
  return found != known.end() ? found->second : known.emplace(ordinal, device::cuda(ordinal)).first->second;
}

std::string shape_text(const array& of) {
  std::string text = "[";
  for (int axis = 0; axis < of.axes; ++axis) {
    if (axis > 0) text += ", ";
    text += std::to_string(of.shape[axis]);
  }
  return text + "]";
}

}  // namespace shortlist::python
