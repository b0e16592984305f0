// top_k: the k best of every row of an array of any framework.
#include "shortlist/top_k.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <optional>
#include <string>

#include "devices.hpp"
#include "errors.hpp"
#include "gil.hpp"
#include "matrix.hpp"
#include "module.hpp"
#include "values.hpp"

namespace shortlist::python {
namespace {

top_k_options options_of(std::int64_t k, bool largest, bool sorted, std::optional<float> eps,
                         std::optional<int> max_iter) {
  return {
      .k = k, .order = largest ? order::largest : order::smallest, .sorted = sorted, .eps = eps, .max_iter = max_iter};
}

/// The borders of rows of different lengths, and what holds them.
struct borders {
  array begins, ends;

  ragged_rows read(nb::handle begins_object, nb::handle ends_object, std::int64_t rows, const array& like) {
    ragged_rows ragged;
    if (!begins_object.is_none()) {
      read_rows(begins_object, "begins", dtype::i64, rows, like, begins);
      ragged.begins = static_cast<const std::int64_t*>(begins.data);
    }
    if (!ends_object.is_none()) {
      read_rows(ends_object, "ends", dtype::i64, rows, like, ends);
      ragged.ends = static_cast<const std::int64_t*>(ends.data);
    }
    return ragged;
  }
};

/// The library refuses what is wrong with k before anything is allocated for it.
void check_k(const stream& on, const value_matrix& values, const top_k_options& options) {
  if (options.k >= 1 && options.k <= values.cols) return;
  std::int64_t never_written = 0;
  top_k(on, values, options, {.indices = &never_written});
}

void run(const work_order& order, const value_matrix& values, const top_k_options& options, const top_k_output& out,
         const ragged_rows& ragged) {
  const unlocked without_gil;
  top_k(order.on, values, options, out, ragged);
  if (order.waits) order.on.synchronize();
}

nb::object top_k_of(nb::handle object, std::int64_t k, bool largest, bool sorted, std::optional<float> eps,
                    std::optional<int> max_iter, nb::handle begins, nb::handle ends, std::string_view index_dtype) {
  static const named_tuple& result = *new named_tuple("TopK");
  const top_k_options options = options_of(k, largest, sorted, eps, max_iter);
  const index_type indices_as = index_type_of(index_dtype, "index_dtype");
  array rows;
  const value_matrix values = read_values(object, "matrix", rows);
  borders held;
  const ragged_rows ragged = held.read(begins, ends, values.rows, rows);
  const work_order order = rows.from->order(rows);
  check_k(order.on, values, options);

  const result_shape shape(rows, k);
  new_array best = rows.from->empty(rows, shape.get(), rows.type);
  new_array indices = rows.from->empty(rows, shape.get(), dtype_of(indices_as));
  run(order, values, options, {.values = best.data, .indices = indices.data, .indices_as = indices_as}, ragged);
  nb::object fields[] = {rows.from->finished(rows, std::move(best.object)),
                         rows.from->finished(rows, std::move(indices.object))};
  return result.make(fields);
}

nb::object top_k_mask_of(nb::handle object, std::int64_t k, bool largest, std::optional<float> eps,
                         std::optional<int> max_iter, nb::handle begins, nb::handle ends) {
  const top_k_options options = options_of(k, largest, false, eps, max_iter);
  array rows;
  const value_matrix values = read_values(object, "matrix", rows);
  borders held;
  const ragged_rows ragged = held.read(begins, ends, values.rows, rows);
  const work_order order = rows.from->order(rows);
  check_k(order.on, values, options);

  const result_shape shape(rows, values.cols);
  new_array mask = rows.from->empty(rows, shape.get(), dtype::boolean);
  run(order, values, options, {.mask = static_cast<std::uint8_t*>(mask.data)}, ragged);
  return rows.from->finished(rows, std::move(mask.object));
}

std::string explain_top_k(std::int64_t rows, std::int64_t cols, std::int64_t k, nb::handle where, std::string_view type,
                          bool sorted, bool early_stop, bool mask, std::string_view index_dtype,
                          std::int64_t col_stride) {
  return explain(device_of(where), top_k_shape{.rows = rows,
                                               .cols = cols,
                                               .k = k,
                                               .type = value_type_of_name(type, "dtype"),
                                               .early_stop = early_stop,
                                               .sorted = sorted,
                                               .mask = mask,
                                               .indices_as = index_type_of(index_dtype, "index_dtype"),
                                               .col_stride = col_stride});
}

constexpr const char* kTopKDoc = R"(The k best of every row: TopK(values, indices).

Args:
    matrix: [..., cols] of float32, float16, bfloat16 or float64; the last axis is a row. An array of NumPy, torch,
        CuPy or JAX, or one that has __dlpack__ or the buffer protocol. Strides are read in place where all are 1 or
        more elements and the axes before the last can be walked with one; a copy is made of other layouts.
    k: how many; 1 to cols.
    largest: False takes the smallest.
    sorted: best first, of equal values the smaller column first. False: by ascending column, which is faster.
    eps: stop a row's bisection early, at a bracket no wider than eps * |its maximum| (RTop-K, Algorithm 1).
    max_iter: exactly so many bisection steps, 1 to 64 (RTop-K, Algorithm 2). Not with eps.
    begins, ends: [rows] integers: row r has the columns begins[r] to ends[r] - 1. Shorter than k: padded with index -1
        and -inf (or +inf).
    index_dtype: "int64" or "int32".

Returns:
    values [..., k], the input's own bits, and indices [..., k], of the same library on the same device. NaN comes after
    all numbers. The same bits on every device.

Raises:
    InvalidArgument (ValueError), WrongType (TypeError), CudaError (RuntimeError).

Not differentiable: shortlist.torch.top_k is. The GIL is released. On a GPU the work runs on the current stream of
torch or CuPy, and the call does not wait for it; for other libraries it does.)";

constexpr const char* kMaskDoc = R"(Where the k best of every row are: a bool array of the shape of `matrix`.

Arguments, errors and order as in top_k.)";

constexpr const char* kExplainDoc =
    R"(The algorithm that top_k takes for this shape on a device, why, and the bytes it moves. Columns lie col_stride
elements apart.)";

}  // namespace

void bind_top_k(nb::module_& module) {
  module.def("top_k", top_k_of, nb::arg("matrix").none(), nb::arg("k"), nb::kw_only(), nb::arg("largest") = true,
             nb::arg("sorted") = true, nb::arg("eps") = nb::none(), nb::arg("max_iter") = nb::none(),
             nb::arg("begins") = nb::none(), nb::arg("ends") = nb::none(), nb::arg("index_dtype") = "int64",
             nb::sig("def top_k(matrix: Array, k: int, *, largest: bool = True, "
                     "sorted: bool = True, eps: float | None = None, max_iter: int | None = None, "
                     "begins: object = None, ends: object = None, index_dtype: str = 'int64') "
                     "-> TopK[Array]"),
             kTopKDoc);
  module.def("top_k_mask", top_k_mask_of, nb::arg("matrix").none(), nb::arg("k"), nb::kw_only(),
             nb::arg("largest") = true, nb::arg("eps") = nb::none(), nb::arg("max_iter") = nb::none(),
             nb::arg("begins") = nb::none(), nb::arg("ends") = nb::none(),
             nb::sig("def top_k_mask(matrix: Array, k: int, *, largest: bool = True, "
                     "eps: float | None = None, max_iter: int | None = None, begins: object = None, "
                     "ends: object = None) -> Array"),
             kMaskDoc);
  module.def("explain_top_k", explain_top_k, nb::arg("rows"), nb::arg("cols"), nb::arg("k"), nb::kw_only(),
             nb::arg("device") = nb::none(), nb::arg("dtype") = "float32", nb::arg("sorted") = true,
             nb::arg("early_stop") = false, nb::arg("mask") = false, nb::arg("index_dtype") = "int64",
             nb::arg("col_stride") = 1, kExplainDoc);
}

}  // namespace shortlist::python
