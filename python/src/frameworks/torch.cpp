// torch's tensors, by their attributes: DLPack would cost more than the work of a small call.
//
// Work is queued on torch's current stream, and new tensors come from torch's allocator: it reuses memory in the order
// of that stream, so a tensor may be freed while work on it is queued.
#include <fmt/format.h>

#include <string>

#include "array.hpp"
#include "calls.hpp"
#include "errors.hpp"

namespace shortlist::python {
namespace {

class torch_framework final : public framework {
 public:
  torch_framework() : module_(nb::module_::import_("torch")) {
    for (int i = 0; i < kDtypes; ++i) {
      const char* name = to_string(static_cast<dtype>(i));
      if (PyObject_HasAttrString(module_.ptr(), name)) dtypes_[i] = module_.attr(name);
    }
    const nb::object internals = module_.attr("_C");
    if (PyObject_HasAttrString(internals.ptr(), "_cuda_getCurrentRawStream")) {
      raw_stream_ = internals.attr("_cuda_getCurrentRawStream");
    }
    dtype_argument_ = nb::make_tuple("dtype");
    find_quick_empty(internals);
  }

  void read(nb::handle object, const char* argument, array& into) override {
    static const name kDataPtr("data_ptr"), kShape("shape"), kStride("stride"), kDtype("dtype"), kIsCpu("is_cpu"),
        kIsCuda("is_cuda"), kGetDevice("get_device"), kIsNeg("is_neg");
    into.object = nb::borrow(object);
    if (is_true(attribute(object, kIsCpu))) {
      into.where = device::cpu();
    } else if (is_true(attribute(object, kIsCuda))) {
      into.where = cuda_device(static_cast<int>(to_int64(call_method(object, kGetDevice))));
    } else {
      throw_type(argument, fmt::format("a tensor on {}", nb::str(nb::object(object.attr("device"))).c_str()),
                 "one on cpu or cuda");
    }
    if (is_true(call_method(object, kIsNeg))) into.object = object.attr("resolve_neg")();
    into.data = to_pointer(call_method(into.object, kDataPtr));
    into.type = dtype_of(attribute(into.object, kDtype));
    into.axes = read_tuple(attribute(into.object, kShape), into.shape.data(), kMaxAxes);
    if (into.axes > kMaxAxes) throw_value(argument, fmt::format("{}-dimensional", into.axes), "up to 16 axes");
    read_tuple(call_method(into.object, kStride), into.strides.data(), kMaxAxes);
    into.aligned = true;  // torch has no other tensors
  }

  new_array empty(const array& like, std::span<const std::int64_t> shape, dtype type) override {
    static const name kNewEmpty("new_empty"), kDataPtr("data_ptr");
    const nb::object extents = make_tuple_of(shape.data(), shape.size());
    const nb::handle element = dtypes_[static_cast<int>(type)];
    const nb::handle quick = quick_empty(like.where);
    new_array made;
    if (quick.is_valid()) {
      const nb::object strides = dense_strides(shape);
      PyObject* arguments[] = {extents.ptr(), strides.ptr(), element.ptr()};
      made.object = checked(PyObject_Vectorcall(quick.ptr(), arguments, std::size(arguments), nullptr));
    } else {
      PyObject* arguments[] = {like.object.ptr(), extents.ptr(), element.ptr()};
      made.object = checked(PyObject_VectorcallMethod(kNewEmpty.ptr(), arguments, 2, dtype_argument_.ptr()));
    }
    made.data = to_pointer(call_method(made.object, kDataPtr));
    return made;
  }

  nb::object copied(nb::handle object) override {
    return object.attr("clone")(nb::arg("memory_format") = module_.attr("contiguous_format"));
  }

  nb::object converted(nb::handle object, const char* argument, dtype type) override {
    const nb::object& known = dtypes_[static_cast<int>(type)];
    if (!known.is_valid()) throw_type(argument, to_string(type), "a dtype that this torch has");
    return object.attr("to")(known);
  }

  work_order order(const array& of) override {
    if (of.where.kind() == device_kind::cpu) return {stream::wrap(of.where, nullptr)};
    const nb::object ordinal = checked(PyLong_FromLong(of.where.ordinal()));
    if (raw_stream_.is_valid()) return {stream::wrap(of.where, to_pointer(raw_stream_(ordinal)))};
    return {
        stream::wrap(of.where, to_pointer(module_.attr("cuda").attr("current_stream")(ordinal).attr("cuda_stream")))};
  }

 private:
  /// What torch's compiled graphs make their outputs with: private to torch too, and a third of new_empty's time.
  void find_quick_empty(const nb::object& internals) {
    if (!PyObject_HasAttrString(internals.ptr(), "_dynamo")) return;
    const nb::object owner = internals.attr("_dynamo").attr("guards");
    const auto find = [&](const char* function) {
      return PyObject_HasAttrString(owner.ptr(), function) ? nb::object(owner.attr(function)) : nb::object();
    };
    quick_on_cpu_ = find("_empty_strided_cpu");
    quick_on_gpu_ = find("_empty_strided_cuda");
  }

  /// Or null where new_empty has to do.
  nb::handle quick_empty(device where) {
    if (where.kind() == device_kind::cpu) return quick_on_cpu_;
    // It takes the current GPU, which is the right one for sure where there is only one.
    if (gpus_ == 0) gpus_ = nb::cast<int>(module_.attr("cuda").attr("device_count")());
    return gpus_ == 1 ? quick_on_gpu_ : nb::handle();
  }

  static nb::object dense_strides(std::span<const std::int64_t> shape) {
    std::int64_t strides[kMaxAxes];
    std::int64_t next = 1;
    for (std::size_t axis = shape.size(); axis-- > 0;) {
      strides[axis] = next;
      next *= shape[axis] > 0 ? shape[axis] : 1;
    }
    return make_tuple_of(strides, shape.size());
  }

  dtype dtype_of(const nb::object& type) const {
    for (int i = 0; i < kDtypes; ++i) {
      if (dtypes_[i].is(type)) return static_cast<dtype>(i);
    }
    return dtype::other;
  }

  nb::object module_;
  nb::object dtypes_[kDtypes];
  nb::object raw_stream_;  ///< private to torch, and cheaper than its public name; absent in builds without CUDA
  nb::object dtype_argument_;
  nb::object quick_on_cpu_, quick_on_gpu_;  ///< absent where torch has no such function
  int gpus_ = 0;                            ///< 0 until it was asked
};

}  // namespace

framework* torch() {
  static torch_framework* only = nullptr;
  if (!only && imported("torch").is_valid()) only = new torch_framework;
  return only;
}

}  // namespace shortlist::python
