// Any array that speaks DLPack, JAX's among them: https://dmlc.github.io/dlpack. New arrays are handed back through the
// `from_dlpack` of the array's own namespace.
//
// On a GPU the producer orders its work before a stream of ours, and nobody tells us which stream will use what we
// return: so the call waits for its own work.
#include <fmt/format.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>

#include "array.hpp"
#include "calls.hpp"
#include "errors.hpp"

namespace shortlist::python {
namespace {

// The structures of DLPack's C interface, as its specification lays them out.
struct dl_device {
  std::int32_t type, ordinal;
};
struct dl_type {
  std::uint8_t code, bits;
  std::uint16_t lanes;
};
struct dl_tensor {
  void* data;
  dl_device device;
  std::int32_t axes;
  dl_type type;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements; null where dense
  std::uint64_t byte_offset;
};
struct managed_tensor {
  dl_tensor tensor;
  void* context;
  void (*deleter)(managed_tensor*);
};
struct versioned_tensor {
  std::uint32_t major, minor;
  void* context;
  void (*deleter)(versioned_tensor*);
  std::uint64_t flags;
  dl_tensor tensor;
};
constexpr std::int32_t kCpu = 1, kCuda = 2, kCudaHost = 3, kCudaManaged = 13;
constexpr std::uint8_t kInt = 0, kUint = 1, kFloat = 2, kBfloat = 4, kBool = 6;
constexpr std::uint32_t kNewestMajor = 1;

dtype dtype_of(dl_type type) {
  if (type.lanes != 1) return dtype::other;
  switch (type.code) {
    case kFloat:
      return type.bits == 32 ? dtype::f32 : type.bits == 64 ? dtype::f64 : type.bits == 16 ? dtype::f16 : dtype::other;
    case kBfloat: return type.bits == 16 ? dtype::bf16 : dtype::other;
    case kInt:
      return type.bits == 64 ? dtype::i64 : type.bits == 32 ? dtype::i32 : type.bits == 8 ? dtype::i8 : dtype::other;
    case kUint:
      return type.bits == 64 ? dtype::u64 : type.bits == 32 ? dtype::u32 : type.bits == 8 ? dtype::u8 : dtype::other;
    case kBool: return type.bits == 8 ? dtype::boolean : dtype::other;
    default: return dtype::other;
  }
}

nb::dlpack::dtype dlpack_type(dtype type) {
  const auto bits = static_cast<std::uint8_t>(8 * size_bytes(type));
  switch (type) {
    case dtype::f32:
    case dtype::f64:
    case dtype::f16: return {kFloat, bits, 1};
    case dtype::bf16: return {kBfloat, bits, 1};
    case dtype::i8:
    case dtype::i32:
    case dtype::i64: return {kInt, bits, 1};
    case dtype::boolean: return {kBool, bits, 1};
    default: return {kUint, bits, 1};
  }
}

template <class Managed>
void free_tensor(void* managed) noexcept {
  auto* tensor = static_cast<Managed*>(managed);
  if (tensor->deleter) tensor->deleter(tensor);
}

/// Takes the tensor out of its capsule, which then owns nothing.
template <class Managed>
dl_tensor& take(nb::handle capsule, const char* name, const char* used_name, array& into) {
  auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule.ptr(), name));
  if (!managed || PyCapsule_SetName(capsule.ptr(), used_name) != 0) throw nb::python_error();
  into.managed = managed;
  into.free_managed = free_tensor<Managed>;
  return managed->tensor;
}

dl_tensor& take_any(nb::handle capsule, const char* argument, array& into) {
  if (!PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned")) {
    return take<managed_tensor>(capsule, "dltensor", "used_dltensor", into);
  }
  dl_tensor& tensor = take<versioned_tensor>(capsule, "dltensor_versioned", "used_dltensor_versioned", into);
  const std::uint32_t major = static_cast<versioned_tensor*>(into.managed)->major;
  if (major != kNewestMajor) throw_type(argument, fmt::format("a DLPack tensor of version {}", major), "version 1");
  return tensor;
}

/// A stream of this thread's own on a GPU.
const stream& own_stream(device where) {
  thread_local std::map<int, stream> streams;
  const auto found = streams.find(where.ordinal());
  return found != streams.end() ? found->second : streams.emplace(where.ordinal(), stream(where)).first->second;
}

class dlpack_framework final : public framework {
 public:
  void read(nb::handle object, const char* argument, array& into) override {
    into.object = nb::borrow(object);
    into.where = device_of(object, argument);
    const nb::object capsule = export_of(object, into.where);
    const dl_tensor& tensor = take_any(capsule, argument, into);
    if (tensor.axes > kMaxAxes) throw_value(argument, fmt::format("{}-dimensional", tensor.axes), "up to 16 axes");
    into.data = static_cast<const std::byte*>(tensor.data) + tensor.byte_offset;
    into.type = dtype_of(tensor.type);
    into.axes = tensor.axes;
    std::int64_t dense = 1;
    for (int axis = into.axes - 1; axis >= 0; --axis) {
      into.shape[axis] = tensor.shape[axis];
      into.strides[axis] = tensor.strides ? tensor.strides[axis] : dense;
      dense *= tensor.shape[axis];
    }
    into.aligned =
        reinterpret_cast<std::uintptr_t>(into.data) % static_cast<std::uintptr_t>(size_bytes(into.type)) == 0;
  }

  new_array empty(const array& like, std::span<const std::int64_t> shape, dtype type) override {
    std::int64_t bytes = size_bytes(type);
    for (const std::int64_t extent : shape) bytes *= extent;
    auto memory = std::make_unique<buffer>(like.where, bytes);
    void* data = memory->data();
    nb::capsule owner(memory.release(), [](void* held) noexcept { delete static_cast<buffer*>(held); });
    std::array<std::size_t, kMaxAxes> extents{};
    std::copy(shape.begin(), shape.end(), extents.begin());
    const std::int32_t place = like.where.kind() == device_kind::cpu ? kCpu : kCuda;
    nb::ndarray<nb::array_api> view(data, shape.size(), extents.data(), owner, nullptr, dlpack_type(type), place,
                                    like.where.ordinal());
    return {nb::cast(view), data};
  }

  nb::object finished(const array& like, nb::object made) override {
    if (!PyObject_HasAttrString(like.object.ptr(), "__array_namespace__")) return made;
    return like.object.attr("__array_namespace__")().attr("from_dlpack")(made);
  }

  nb::object copied(nb::handle object) override {
    return object.attr("__array_namespace__")().attr("asarray")(object, nb::arg("copy") = true);
  }

  nb::object converted(nb::handle object, const char* /*argument*/, dtype type) override {
    const nb::object space = object.attr("__array_namespace__")();
    return space.attr("astype")(object, space.attr(type == dtype::boolean ? "bool" : to_string(type)));
  }

  work_order order(const array& of) override {
    if (of.where.kind() == device_kind::cpu) return {stream::wrap(of.where, nullptr)};
    return {own_stream(of.where), true};
  }

 private:
  static device device_of(nb::handle object, const char* argument) {
    const nb::object place = object.attr("__dlpack_device__")();
    const int type = nb::cast<int>(nb::int_(place[0]));
    const int ordinal = nb::cast<int>(nb::int_(place[1]));
    switch (type) {
      case kCpu:
      case kCudaHost: return device::cpu();
      case kCuda:
      case kCudaManaged: return cuda_device(ordinal);
      default:
        throw_type(argument, fmt::format("on DLPack's device type {}", type), "an array on the CPU or an NVIDIA GPU");
    }
  }

  static nb::object export_of(nb::handle object, device where) {
    nb::dict options;
    if (where.kind() == device_kind::cuda) {
      options["stream"] = nb::int_(reinterpret_cast<std::uintptr_t>(own_stream(where).native()));
    }
    try {
      options["max_version"] = nb::make_tuple(1, 0);  // read-only arrays are exported to those who ask like this
      return object.attr("__dlpack__")(**options);
    } catch (nb::python_error& e) {
      if (!e.matches(PyExc_TypeError)) throw;
      PyDict_DelItemString(options.ptr(), "max_version");
      return object.attr("__dlpack__")(**options);
    }
  }
};

}  // namespace

framework& dlpack() {
  static auto& only = *new dlpack_framework;
  return only;
}

}  // namespace shortlist::python
