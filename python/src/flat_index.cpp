// FlatIndex: shortlist::flat_index over the arrays of any framework.
//
// Searches share a lock and whatever changes the index has it alone, so that Python's threads need none of their own.
// The lock is taken without the GIL: a thread that waits for it holds up nobody.
#include "shortlist/flat_index.hpp"

#include <fmt/format.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <vector>

#include "devices.hpp"
#include "elements.hpp"
#include "errors.hpp"
#include "gil.hpp"
#include "matrix.hpp"
#include "module.hpp"

namespace shortlist::python {
namespace {

// Of rows that are added without a look at Ctrl-C: some 10 ms.
constexpr std::int64_t kPartBytes = std::int64_t{64} << 20;

class python_index {
 public:
  python_index(device where, const flat_index_options& options) : index_(where, options) {}
  explicit python_index(flat_index&& loaded) : index_(std::move(loaded)) {}

  void add(nb::handle vectors, nb::handle ids) {
    array held, held_ids;
    const any_matrix_view view = read_vectors(vectors, "vectors", index_.type(), index_.type(), held);
    const auto labels = read_ids(ids, view.rows, held_ids);
    const bool on_host = is_on_host(held, "vectors");
    if (on_host && labels.empty() && bytes_of(view) > kPartBytes) {
      add_in_parts(view);
    } else if (on_host) {
      const unlocked without_gil;
      const std::unique_lock alone(lock_);
      index_.add(view, labels);
    } else {
      const work_order order = held.from->order(held);
      const unlocked without_gil;
      const std::unique_lock alone(lock_);
      index_.add(order.on, view, labels);
    }
  }

  nb::object search(nb::handle queries, std::int64_t k) const {
    static const named_tuple& result = *new named_tuple("SearchResult");
    array held;
    any_matrix_view view = read_vectors(queries, "queries", element_type::f32, {}, held);
    const bool on_host = is_on_host(held, "queries");
    if (!on_host && view.type != element_type::f32) {
      change_type(held, "queries", dtype::f32);
      const nb::object widened = held.object;
      held.let_go();
      view = read_vectors(widened, "queries", element_type::f32, {}, held);
    }
    if (k < 1 || view.cols != index_.dim()) index_.search(view, {.k = k}, {});  // which says what is wrong

    const result_shape shape(held, k);
    new_array scores = held.from->empty(held, shape.get(), dtype::f32);
    new_array ids = held.from->empty(held, shape.get(), dtype::i64);
    const search_output out{static_cast<float*>(scores.data), static_cast<std::int64_t*>(ids.data)};
    if (on_host) {
      const unlocked without_gil;
      const std::shared_lock beside_others(lock_);
      search_counted(view, k, out);
    } else {
      const work_order order = held.from->order(held);
      const unlocked without_gil;
      const std::shared_lock beside_others(lock_);
      index_.search(order.on, view, {.k = k}, out);
      if (order.waits) order.on.synchronize();
    }
    nb::object fields[] = {held.from->finished(held, std::move(scores.object)),
                           held.from->finished(held, std::move(ids.object))};
    return result.make(fields);
  }

  void reserve(std::int64_t max_rows, std::int64_t max_queries, std::int64_t max_k, int concurrency) {
    const unlocked without_gil;
    const std::unique_lock alone(lock_);
    index_.reserve({.max_rows = max_rows, .max_queries = max_queries, .max_k = max_k}, concurrency);
  }

  nb::object read(std::int64_t first, std::optional<std::int64_t> count) const {
    const std::int64_t rows = this->rows();
    const std::int64_t taken = count.value_or(rows - first);
    if (first < 0 || first > rows || taken < 0 || taken > rows - first) index_.read(first, taken, nullptr);
    const array host{};
    const std::int64_t shape[] = {taken, index_.dim()};
    new_array made = numpy().empty(host, shape, stored());
    {
      const unlocked without_gil;
      const std::shared_lock beside_others(lock_);
      index_.read(first, taken, made.data);
    }
    return std::move(made.object);
  }

  void save(const std::filesystem::path& path) const {
    const unlocked without_gil;
    const std::shared_lock beside_others(lock_);
    index_.save(path);
  }

  static python_index* load(const std::filesystem::path& path, nb::handle where, bool checks_data) {
    require_readable(path);
    const device place = device_of(where);
    const unlocked without_gil;
    return new python_index(flat_index::load(place, path, checks_data ? verify::full : verify::header_only));
  }

  std::int64_t rows() const {
    const std::shared_lock beside_others(lock_, std::try_to_lock);
    if (beside_others.owns_lock()) return index_.rows();
    const unlocked without_gil;
    const std::shared_lock waited_for(lock_);
    return index_.rows();
  }
  std::int64_t dim() const { return index_.dim(); }
  std::string metric() const { return std::string(shortlist::to_string(index_.metric())); }
  std::string storage() const { return std::string(shortlist::to_string(index_.storage())); }
  std::string where() const { return index_.where().name(); }
  const char* type() const { return python::to_string(stored()); }

  memory_use memory() const {
    const unlocked without_gil;
    const std::shared_lock beside_others(lock_);
    return index_.memory();
  }

  nb::object stats() const {
    static const named_tuple& result = *new named_tuple("SearchStats");
    nb::object fields[] = {nb::int_(queries_.load()), nb::int_(certified_queries_.load()), nb::int_(survivors_.load())};
    return result.make(fields);
  }

  std::string explain(std::int64_t k, std::int64_t queries) const {
    const unlocked without_gil;
    const std::shared_lock beside_others(lock_);
    return index_.explain(queries, {.k = k});
  }

  std::string text() const {
    const memory_use use = memory();
    const std::int64_t bytes =
        use.rows_bytes + use.planes_bytes + use.norms_bytes + use.ids_bytes + use.workspaces_bytes;
    const bool has_plane = index_.storage() != shortlist::storage::full;
    return fmt::format("FlatIndex(rows={}, dim={}, metric='{}', dtype='{}', {}device='{}', memory='{}')", rows(), dim(),
                       metric(), type(), has_plane ? fmt::format("storage='{}', ", storage()) : "", where(),
                       readable(bytes));
  }

  /// The file that save writes, and where the index was.
  nb::tuple state() const {
    return nb::make_tuple(where(), saved_bytes([&](const std::filesystem::path& file) { save(file); }));
  }

  static flat_index from_state(const nb::tuple& state) {
    const device where = device::parse(nb::cast<std::string>(state[0]));
    return loaded_bytes(nb::cast<nb::bytes>(state[1]),
                        [&](const std::filesystem::path& file) { return flat_index::load(where, file); });
  }

 private:
  static std::int64_t bytes_of(const any_matrix_view& rows) { return rows.rows * rows.cols * size_bytes(rows.type); }

  /// An add that Ctrl-C ends after a part. Memory is set aside first, so that no later part can fail for want of it.
  void add_in_parts(const any_matrix_view& rows) {
    const std::int64_t row_bytes = rows.cols * size_bytes(rows.type);
    const std::int64_t part = std::max<std::int64_t>(kPartBytes / row_bytes, 1);
    std::int64_t added = 0;
    while (added < rows.rows) {
      bool was_interrupted = false;
      {
        const unlocked without_gil;
        const std::unique_lock alone(lock_);
        if (added == 0) set_rows_aside(index_.rows() + rows.rows);
        while (added < rows.rows && !was_interrupted) {
          const std::int64_t count = std::min(part, rows.rows - added);
          const auto* first =
              static_cast<const std::byte*>(rows.data) + added * rows.row_stride * size_bytes(rows.type);
          index_.add({first, rows.type, count, rows.cols, rows.row_stride});
          added += count;
          was_interrupted = added < rows.rows && interrupt_is_pending();
        }
      }
      // Whatever Python does about it may use this index, so it runs when the lock is free again.
      if (was_interrupted) raise_interrupt();
    }
  }

  /// By half as much again at least, as single adds grow.
  void set_rows_aside(std::int64_t rows) {
    if (rows <= rows_set_aside_) return;
    const auto aside = [&](std::int64_t wanted) {
      index_.reserve({.max_rows = wanted});
      rows_set_aside_ = wanted;
    };
    try {
      aside(std::max(rows, rows_set_aside_ + rows_set_aside_ / 2));
    } catch (const out_of_memory&) {
      aside(rows);
    }
  }

  /// Host to host; an index with a plane counts what came of it.
  void search_counted(const any_matrix_view& queries, std::int64_t k, const search_output& out) const {
    search_stats stats;
    const bool has_plane = index_.storage() != shortlist::storage::full;
    index_.search(queries, {.k = k, .stats = has_plane ? &stats : nullptr}, out);
    if (!has_plane) return;
    queries_ += queries.rows;
    certified_queries_ += stats.certified_queries;
    survivors_ += stats.survivors;
  }

  dtype stored() const { return stored_as(index_.type()); }

  bool is_on_host(const array& held, const char* argument) const {
    return python::is_on_host(held, argument, index_.where());
  }

  flat_index index_;
  mutable std::shared_mutex lock_;
  std::int64_t rows_set_aside_ = 0;
  mutable std::atomic<std::int64_t> queries_ = 0, certified_queries_ = 0, survivors_ = 0;
};

constexpr const char* kClassDoc = R"(Exact nearest neighbours over rows that stay on one device.

Args:
    dim: elements of a row, 1 to 65536.
    metric: "cosine", "inner_product" ("ip") or "l2" (squared; smaller is better).
    device: "cpu", "cuda", "cuda:1", a torch.device, or None: the first GPU if there is one, else the CPU.
    dtype: what rows are stored as, and added as: "float32", "float16", "bfloat16", "int8" or "uint8"; or a dtype of
        NumPy or torch.
    storage: "full", the rows alone. "int8_and_full" keeps an int8 copy beside them and searches by it where that is
        faster: proven bounds leave a few rows, whose scores decide, so that results have the same bits. "int8_and_host"
        keeps the rows themselves in host memory; on the CPU that is the same. Rows of float32, float16 and bfloat16.

Raises:
    InvalidArgument (ValueError), Unsupported (RuntimeError) if the device is not there, OutOfMemory (MemoryError).

Any number of threads may search one index; add, reserve and the end of a search wait for each other as they must.
Order and scores are the same to the last bit on every device. An index can be pickled: the pickle holds its file.)";

constexpr const char* kAddDoc = R"(Appends rows. Their labels are their positions unless `ids` gives them.

Args:
    vectors: [n, dim], or [dim] for one, of the index's dtype: an array of NumPy, torch, CuPy or JAX in host memory or
        on the index's GPU, or lists of numbers. Any row stride of dim or more is read in place; other layouts through
        a copy.
    ids: [n] integers in host memory, each 0 or more and not in use.

Raises:
    InvalidArgument (ValueError), WrongType (TypeError), OutOfMemory (MemoryError); the index is then as it was.

Returns when the rows are in place. The GIL is released. Ctrl-C ends a long add of host rows without `ids` after the part
of 64 MiB that it is in: the rows before stay, and len(index) says how many. Of other adds it is seen at the end.)";

constexpr const char* kSearchDoc = R"(The k best rows of each query: SearchResult(scores, ids).

Args:
    queries: [n, dim], or [dim] for one: float32, float16, bfloat16, int8 or uint8, in host memory or on the index's GPU
        (float32 there; others through a copy).
    k: 1 or more. Beyond the number of rows, ids are -1 and scores the metric's worst.

Returns:
    scores float32 and ids int64, [n, k] (or [k]), best first: arrays of the queries' library, on their device.

Raises:
    InvalidArgument (ValueError), WrongType (TypeError), OutOfMemory (MemoryError), CudaError (RuntimeError).

The GIL is released. Queries on a GPU are searched on the current stream of torch or CuPy, and the call does not wait
for it; for other libraries it does.)";

constexpr const char* kReserveDoc =
    R"(Sets memory aside for max_rows rows, and for `concurrency` searches at once of up to max_queries queries and max_k.

Raises InvalidArgument (ValueError), OutOfMemory (MemoryError); nothing has changed then.)";

constexpr const char* kReadDoc =
    R"(Rows first to first + count - 1, by position, as a new NumPy array [count, dim] of the index's dtype.

Without count: all from first on. Raises InvalidArgument (ValueError).)";

constexpr const char* kSaveDoc = R"(Writes a safetensors file beside `path` and renames it over it when it is on disk.

Raises IoError (OSError). The GIL is released.)";

constexpr const char* kLoadDoc = R"(Reads an index, from whichever device it was saved, onto `device`.

Args:
    path: a str or path.
    device: as in FlatIndex().
    verify: False trusts the data and checks the header alone.

Raises:
    FileNotFoundError, PermissionError; IoError (OSError), CorruptFile (ValueError), OutOfMemory (MemoryError).

The GIL is released.)";

}  // namespace

void bind_flat_index(nb::module_& module) {
  nb::class_<python_index> c(module, "FlatIndex", kClassDoc, nb::is_weak_referenceable());
  c.def(
      "__init__",
      [](python_index* self, std::int64_t dim, std::string_view metric, nb::handle where, nb::handle type,
         std::string_view storage) {
        new (self) python_index(device_of(where), {.dim = dim,
                                                   .metric = parse_metric(metric),
                                                   .type = element_type_named(type),
                                                   .storage = parse_storage(storage)});
      },
      nb::arg("dim"), nb::arg("metric") = "cosine", nb::arg("device") = nb::none(), nb::arg("dtype") = "float32",
      nb::arg("storage") = "full",
      nb::sig("def __init__(self, dim: int, metric: str = 'cosine', device: object = None, dtype: object = 'float32', "
              "storage: str = 'full') -> None"));
  c.def("add", &python_index::add, nb::arg("vectors").none(), nb::arg("ids") = nb::none(),
        nb::sig("def add(self, vectors: object, ids: object = None) -> None"), kAddDoc);
  c.def("search", &python_index::search, nb::arg("queries").none(), nb::arg("k") = 10,
        nb::sig("def search(self, queries: Array, k: int = 10) "
                "-> SearchResult[Array]"),
        kSearchDoc);
  c.def("reserve", &python_index::reserve, nb::arg("max_rows"), nb::arg("max_queries") = 1, nb::arg("max_k") = 10,
        nb::arg("concurrency") = 1, kReserveDoc);
  c.def("read", &python_index::read, nb::arg("first") = 0, nb::arg("count") = nb::none(),
        nb::sig("def read(self, first: int = 0, count: int | None = None) -> numpy.ndarray"), kReadDoc);
  c.def("save", &python_index::save, nb::arg("path"), kSaveDoc);
  c.def_static("load", &python_index::load, nb::arg("path"), nb::arg("device") = nb::none(), nb::arg("verify") = true,
               nb::sig("def load(path: str | os.PathLike[str], device: object = None, verify: bool = True) "
                       "-> FlatIndex"),
               kLoadDoc);
  c.def("explain", &python_index::explain, nb::arg("k") = 10, nb::arg("queries") = 1,
        "The plan of a search with this many queries and this k: algorithm, why, bytes moved.");
  c.def("__len__", &python_index::rows);
  c.def("__repr__", &python_index::text);
  c.def("__getstate__", &python_index::state);
  c.def("__setstate__",
        [](python_index& self, const nb::tuple& state) { new (&self) python_index(python_index::from_state(state)); });
  c.def_prop_ro("dim", &python_index::dim, "Elements of a row.");
  c.def_prop_ro("metric", &python_index::metric, "\"inner_product\", \"cosine\" or \"l2\".");
  c.def_prop_ro("device", &python_index::where, "\"cpu\" or \"cuda:0\".");
  c.def_prop_ro("dtype", &python_index::type, "What rows are stored as: \"float32\", ...");
  c.def_prop_ro("storage", &python_index::storage, "\"full\", \"int8_and_full\" or \"int8_and_host\".");
  c.def_prop_ro("search_stats", &python_index::stats, nb::sig("def search_stats(self) -> SearchStats"),
                "What the searches so far made of the int8 copy: those with queries in host memory.");
  c.def_prop_ro(
      "memory",
      [](const python_index& self) {
        const memory_use use = self.memory();
        return nb::module_::import_("shortlist._results")
            .attr("MemoryUse")(use.rows_bytes, use.host_rows_bytes, use.planes_bytes, use.norms_bytes, use.ids_bytes,
                               use.workspaces_bytes, use.device_allocations);
      },
      nb::sig("def memory(self) -> MemoryUse"), "Bytes that the index holds, by purpose.");
}

}  // namespace shortlist::python
