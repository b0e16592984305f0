// CuPy's arrays. Work is queued on CuPy's current stream, in whose order its memory pool reuses memory.
#include <fmt/format.h>
#include <nanobind/stl/string_view.h>

#include <string>

#include "array.hpp"
#include "calls.hpp"
#include "errors.hpp"

namespace shortlist::python {
namespace {

class cupy_framework final : public framework {
 public:
  cupy_framework() : module_(nb::module_::import_("cupy")) {}

  void read(nb::handle object, const char* argument, array& into) override {
    static const name kData("data"), kPtr("ptr"), kShape("shape"), kStrides("strides"), kDtype("dtype"), kName("name"),
        kDevice("device"), kId("id");
    into.object = nb::borrow(object);
    into.data = to_pointer(attribute(attribute(object, kData), kPtr));
    into.where = cuda_device(static_cast<int>(to_int64(attribute(attribute(object, kDevice), kId))));
    into.type = dtype_of_name(nb::cast<std::string_view>(attribute(attribute(object, kDtype), kName)));
    into.axes = read_tuple(attribute(object, kShape), into.shape.data(), kMaxAxes);
    if (into.axes > kMaxAxes) throw_value(argument, fmt::format("{}-dimensional", into.axes), "up to 16 axes");
    read_tuple(attribute(object, kStrides), into.strides.data(), kMaxAxes);
    const std::int64_t bytes = size_bytes(into.type);
    into.aligned = reinterpret_cast<std::uintptr_t>(into.data) % static_cast<std::uintptr_t>(bytes) == 0;
    for (int axis = 0; axis < into.axes; ++axis) {
      into.aligned = into.aligned && (into.strides[axis] % bytes == 0 || into.shape[axis] < 2);
      into.strides[axis] /= bytes;
    }
  }

  new_array empty(const array& like, std::span<const std::int64_t> shape, dtype type) override {
    const on_device here(*this, like.where.ordinal());
    new_array made;
    made.object = module_.attr("empty")(make_tuple_of(shape.data(), shape.size()), dtype_object(type));
    made.data = to_pointer(made.object.attr("data").attr("ptr"));
    return made;
  }

  nb::object copied(nb::handle object) override {
    const on_device here(*this, nb::cast<int>(object.attr("device").attr("id")));
    return object.attr("copy")(nb::arg("order") = "C");
  }

  nb::object converted(nb::handle object, const char* /*argument*/, dtype type) override {
    const on_device here(*this, nb::cast<int>(object.attr("device").attr("id")));
    return object.attr("astype")(dtype_object(type));
  }

  work_order order(const array& of) override {
    const on_device here(*this, of.where.ordinal());
    return {stream::wrap(of.where, to_pointer(module_.attr("cuda").attr("get_current_stream")().attr("ptr")))};
  }

 private:
  /// CuPy allocates on its current device and has a current stream for each.
  class on_device {
   public:
    on_device(cupy_framework& owner, int ordinal) : device_(owner.module_.attr("cuda").attr("Device")(ordinal)) {
      device_.attr("__enter__")();
    }
    on_device(const on_device&) = delete;
    on_device& operator=(const on_device&) = delete;
    ~on_device() {
      try {
        device_.attr("__exit__")(nb::none(), nb::none(), nb::none());
      } catch (nb::python_error& e) {
        e.discard_as_unraisable("leaving a CuPy device");
      }
    }

   private:
    nb::object device_;
  };

  nb::object dtype_object(dtype type) {
    const nb::object numpy = nb::module_::import_("numpy");
    if (type == dtype::bf16) return numpy.attr("dtype")(nb::module_::import_("ml_dtypes").attr("bfloat16"));
    return numpy.attr("dtype")(to_string(type));
  }

  nb::object module_;
};

}  // namespace

framework* cupy() {
  static cupy_framework* only = nullptr;
  if (!only && imported("cupy").is_valid()) only = new cupy_framework;
  return only;
}

}  // namespace shortlist::python
