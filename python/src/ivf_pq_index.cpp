// IvfPqIndex: shortlist::ivf_pq_index over the arrays of any framework. Locks and the GIL as in flat_index.cpp.
#include "shortlist/ivf_pq_index.hpp"

#include <fmt/format.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>

#include "devices.hpp"
#include "elements.hpp"
#include "errors.hpp"
#include "gil.hpp"
#include "matrix.hpp"
#include "module.hpp"
#include "shortlist/ivf_pq_tuning.hpp"

namespace shortlist::python {
namespace {

constexpr std::int64_t kDefaultProbes = 32;

nb::object results_class(const char* name) { return nb::module_::import_("shortlist._results").attr(name); }

nb::object point_of(const tune_point& point) {
  return results_class("TunePoint")(point.nprobe, point.refine_ratio, point.recall, point.queries_per_second,
                                    point.bytes_per_query);
}

class python_ivf_pq_index {
 public:
  python_ivf_pq_index(device where, const ivf_pq_options& options) : index_(where, options) {}
  explicit python_ivf_pq_index(ivf_pq_index&& loaded) : index_(std::move(loaded)) {}

  void train(nb::handle vectors, std::int64_t iterations, std::int64_t rows_per_list) {
    array held;
    const any_matrix_view view = read_vectors(vectors, "vectors", options().type, {}, held);
    if (held.where.kind() != device_kind::cpu) {
      throw_value("vectors", fmt::format("on {}", held.where.name()), "an array in host memory");
    }
    bool was_interrupted = false;
    try {
      const unlocked without_gil;
      const std::unique_lock alone(lock_);
      index_.train(view,
                   {.iterations = iterations, .rows_per_list = rows_per_list, .progress = [&](const train_progress&) {
                      was_interrupted = interrupt_is_pending();
                      return was_interrupted ? proceed::no : proceed::yes;
                    }});
    } catch (const cancelled&) {
      raise_interrupt();
      throw;
    }
  }

  void add(nb::handle vectors, nb::handle ids) {
    array held, held_ids;
    const any_matrix_view view = read_vectors(vectors, "vectors", options().type, options().type, held);
    const auto labels = read_ids(ids, view.rows, held_ids);
    if (is_on_host(held, "vectors", index_.where())) {
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

  nb::object search(nb::handle queries, std::int64_t k, std::optional<std::int64_t> nprobe,
                    std::int64_t refine_ratio) const {
    static const named_tuple& result = *new named_tuple("SearchResult");
    const ivf_pq_search_options search = {
        .k = k, .nprobe = nprobe.value_or(std::min(kDefaultProbes, options().nlist)), .refine_ratio = refine_ratio};
    array held;
    any_matrix_view view = read_vectors(queries, "queries", element_type::f32, {}, held);
    const bool on_host = is_on_host(held, "queries", index_.where());
    if (!on_host && view.type != element_type::f32) {
      change_type(held, "queries", dtype::f32);
      const nb::object widened = held.object;
      held.let_go();
      view = read_vectors(widened, "queries", element_type::f32, {}, held);
    }
    any_matrix_view none = view;
    none.rows = 0;
    index_.search(none, search, {});  // says what is wrong before anything is made

    const result_shape shape(held, k);
    new_array scores = held.from->empty(held, shape.get(), dtype::f32);
    new_array ids = held.from->empty(held, shape.get(), dtype::i64);
    const search_output out{static_cast<float*>(scores.data), static_cast<std::int64_t*>(ids.data)};
    if (on_host) {
      const unlocked without_gil;
      const std::shared_lock beside_others(lock_);
      index_.search(view, search, out);
    } else {
      const work_order order = held.from->order(held);
      const unlocked without_gil;
      const std::shared_lock beside_others(lock_);
      index_.search(order.on, view, search, out);
      if (order.waits) order.on.synchronize();
    }
    nb::object fields[] = {held.from->finished(held, std::move(scores.object)),
                           held.from->finished(held, std::move(ids.object))};
    return result.make(fields);
  }

  nb::object tune(nb::handle queries, double recall, std::int64_t k, nb::handle truth) const {
    array held, held_truth;
    const any_matrix_view view = read_vectors(queries, "queries", element_type::f32, {}, held);
    if (held.where.kind() != device_kind::cpu) {
      throw_value("queries", fmt::format("on {}", held.where.name()), "an array in host memory");
    }
    tune_options options = {.k = k, .recall = recall};
    if (!truth.is_none()) {
      const matrix seen = read_matrix(truth, "truth", columns::dense, held_truth);
      if (held_truth.type != dtype::i64) throw_type("truth.dtype", to_string(held_truth.type), "int64");
      options.truth = {static_cast<const std::int64_t*>(held_truth.data), seen.rows, seen.cols, seen.row_stride};
    }
    tune_result found;
    {
      const unlocked without_gil;
      const std::shared_lock beside_others(lock_);
      found = shortlist::tune(index_, view, options);
    }
    nb::list points;
    for (const tune_point& point : found.points) points.append(point_of(point));
    return results_class("TuneResult")(point_of(found.best), found.reached, points);
  }

  void reserve(std::int64_t max_rows) {
    const unlocked without_gil;
    const std::unique_lock alone(lock_);
    index_.reserve(max_rows);
  }
  void clear() {
    const unlocked without_gil;
    const std::unique_lock alone(lock_);
    index_.clear();
  }

  void save(const std::filesystem::path& path) const {
    const unlocked without_gil;
    const std::shared_lock beside_others(lock_);
    index_.save(path);
  }
  void append_to(const std::filesystem::path& path) const {
    require_readable(path);
    const unlocked without_gil;
    const std::shared_lock beside_others(lock_);
    index_.append_to(path);
  }
  static python_ivf_pq_index* load(const std::filesystem::path& path, nb::handle where, bool checks_data, bool rows,
                                   bool maps_rows) {
    require_readable(path);
    const device place = device_of(where);
    const verify checks = checks_data ? verify::full : verify::header_only;
    const mapped in_file = maps_rows ? mapped::rows : mapped::nothing;
    const unlocked without_gil;
    return new python_ivf_pq_index(rows ? ivf_pq_index::load(place, path, checks, in_file)
                                        : ivf_pq_index::load_trained(place, path, checks));
  }

  std::int64_t rows() const {
    const unlocked without_gil;
    const std::shared_lock beside_others(lock_);
    return index_.rows();
  }
  bool is_trained() const {
    const unlocked without_gil;
    const std::shared_lock beside_others(lock_);
    return index_.is_trained();
  }
  const ivf_pq_options& options() const { return index_.options(); }
  std::string where() const { return index_.where().name(); }
  const char* type() const { return python::to_string(stored_as(options().type)); }

  nb::object memory() const {
    ivf_pq_memory use;
    {
      const unlocked without_gil;
      const std::shared_lock beside_others(lock_);
      use = index_.memory();
    }
    return results_class("IvfPqMemory")(use.model_bytes, use.codes_bytes, use.rows_bytes, use.host_rows_bytes,
                                        use.mapped_rows_bytes, use.ids_bytes, use.workspaces_bytes);
  }
  nb::object lists() const {
    list_statistics found;
    {
      const unlocked without_gil;
      const std::shared_lock beside_others(lock_);
      found = index_.lists();
    }
    return results_class("ListStatistics")(found.lists, found.empty, found.smallest, found.median, found.largest,
                                           found.imbalance);
  }

  std::string text() const {
    const ivf_pq_options& of = options();
    const std::string code = of.code == code_kind::pq ? fmt::format("pq {} x {} bits", of.pq_dim, of.pq_bits)
                                                      : std::string(shortlist::to_string(of.code));
    return fmt::format(
        "IvfPqIndex(rows={}, dim={}, metric='{}', dtype='{}', nlist={}, code='{}', keep='{}', "
        "device='{}'{})",
        rows(), of.dim, shortlist::to_string(of.metric), type(), of.nlist, code, shortlist::to_string(of.rows), where(),
        is_trained() ? "" : ", not trained");
  }

  nb::tuple state() const {
    return nb::make_tuple(where(), saved_bytes([&](const std::filesystem::path& file) { save(file); }));
  }
  static ivf_pq_index from_state(const nb::tuple& state) {
    const device where = device::parse(nb::cast<std::string>(state[0]));
    return loaded_bytes(nb::cast<nb::bytes>(state[1]),
                        [&](const std::filesystem::path& file) { return ivf_pq_index::load(where, file); });
  }

 private:
  ivf_pq_index index_;
  mutable std::shared_mutex lock_;
};

nb::object suggest_for(std::int64_t rows, std::int64_t dim, std::int64_t memory_bytes, double recall, nb::handle type,
                       double read_bytes_per_second) {
  const ivf_pq_suggestion made = suggest({.rows = rows,
                                          .dim = dim,
                                          .type = element_type_named(type),
                                          .memory_bytes = memory_bytes,
                                          .recall = recall,
                                          .read_bytes_per_second = read_bytes_per_second});
  return results_class("Suggestion")(made.options.nlist, made.options.pq_dim, std::string(to_string(made.options.rows)),
                                     made.search.nprobe, made.search.refine_ratio, made.device_bytes,
                                     made.bytes_per_query, made.predicted_qps);
}

constexpr const char* kClassDoc = R"(Approximate nearest neighbours among rows kept as codes, in lists around centroids.

Args:
    dim: elements of a row, 1 to 65536.
    metric: "cosine", "inner_product" ("ip") or "l2" (squared; smaller is better).
    device: "cpu", "cuda", "cuda:1", a torch.device, or None: the first GPU if there is one, else the CPU.
    dtype: of the rows that are added: "float32", "float16", "bfloat16", "int8" or "uint8"; or a dtype of NumPy or torch.
    nlist: lists.
    code: "pq" (a product quantiser), "sq4" or "sq8" (4 or 8 bits an element).
    pq_dim: pieces of a product code; 0: one for every two elements.
    pq_bits: bits of a piece's code, 4 to 8.
    encodes: "residual" (the row less its centroid) or "row".
    rotation: "none" or "random".
    keep: "none", "device" or "host": whether rows are kept too, for searches that refine.
    seed: of all that is random.

Raises:
    InvalidArgument (ValueError), Unsupported (RuntimeError) if the device is not there, OutOfMemory (MemoryError).

Train it, add rows, search. What a search returns is defined to the last bit and the same on every device; see
docs/ivf_pq.md. Any number of threads may search one index. An index can be pickled: the pickle holds its file.)";

constexpr const char* kTrainDoc = R"(Finds centroids and codebook.

Args:
    vectors: [n, dim] in host memory, of any dtype that rows may have; n >= nlist, and >= 2 ** pq_bits for product codes.
    iterations: of k-means for the centroids; twice as many for the codebook.
    rows_per_list: at most so many rows a list are looked at, spread over those given.

Raises:
    InvalidArgument (ValueError), also for rows that are not finite or an index that holds rows; OutOfMemory.

The same rows and seed give the same bits on every device. The GIL is released; Ctrl-C ends it after a step, and the
index is then as it was.)";

constexpr const char* kAddDoc = R"(Appends rows. Their labels are their positions unless `ids` gives them.

Args:
    vectors: [n, dim], or [dim] for one, of the index's dtype, in host memory or on the index's GPU; all finite.
    ids: [n] integers in host memory, each 0 or more and not in use.

Raises:
    InvalidArgument (ValueError), WrongType (TypeError), OutOfMemory (MemoryError); the index is then as it was.

Returns when the rows are in place. The GIL is released.)";

constexpr const char* kSearchDoc =
    R"(The k best rows of the nprobe lists that match a query best: SearchResult(scores, ids).

Args:
    queries: [n, dim], or [dim] for one: float32, float16, bfloat16, int8 or uint8, in host memory or on the index's GPU
        (float32 there; others through a copy).
    k: 1 or more. Where the lists hold fewer, ids are -1 and scores the metric's worst.
    nprobe: lists, 1 to nlist; None: 32, or all if there are fewer.
    refine_ratio: refine_ratio * k best by code are scored by their rows, which the index must keep; 0: scores are the
        codes'.

Returns:
    scores float32 and ids int64, [n, k] (or [k]), best first: arrays of the queries' library, on their device.

Raises:
    InvalidArgument (ValueError), WrongType (TypeError), OutOfMemory (MemoryError), CudaError (RuntimeError).

The GIL is released. Queries on a GPU are searched on the current stream of torch or CuPy, and the call does not wait
for it; for other libraries it does.)";

constexpr const char* kTuneDoc =
    R"(Measures searches, and finds the fastest that reaches a recall: TuneResult(best, reached, points).

Args:
    queries: a sample of them, [n, dim] in host memory.
    recall: to be reached, up to 1.
    k: of the searches.
    truth: the ids of the true nearest, int64 [n, k or more]; None: the kept rows are searched exactly.

Raises:
    InvalidArgument (ValueError), also if there is neither truth nor kept rows. The GIL is released.)";

constexpr const char* kAppendDoc =
    R"(Adds the rows behind those of the index file at `path`, which must have been trained as this one.

What is there is not written again: the rows go into a new file beside it, which `path` then names.

Raises FileNotFoundError, InvalidArgument (ValueError), IoError (OSError), CorruptFile (ValueError). The GIL is released.)";

constexpr const char* kLoadDoc = R"(Reads an index, from whichever device it was saved, onto `device`.

Args:
    path: a str or path.
    device: as in IvfPqIndex().
    verify: False trusts the data's checksums, and checks the rest.
    rows: False reads what was trained and no rows.
    map_rows: True leaves kept rows in the file, from which searches read those that they refine. The file may be
        replaced or removed meanwhile, but not shortened or written into. Only `verify` looks at all rows then, and
        cosine, for their norms. Adding rows copies all of them into memory.

Raises:
    FileNotFoundError, PermissionError; IoError (OSError), CorruptFile (ValueError), OutOfMemory (MemoryError).
    Unsupported (RuntimeError) if rows cannot be mapped: onto a GPU, of an index of several files, or if a row's bytes
    are no multiple of 64.

The GIL is released.)";

constexpr const char* kSuggestDoc =
    R"(Guesses the parameters of an IvfPqIndex from sizes alone; IvfPqIndex.tune measures.

Args:
    rows, dim, dtype: of the index.
    memory_bytes: of the device.
    recall: wanted of the ten nearest, below 1.
    read_bytes_per_second: of the device's memory.

Raises:
    InvalidArgument (ValueError), also if the codes would not fit.)";

}  // namespace

void bind_ivf_pq_index(nb::module_& module) {
  using index = python_ivf_pq_index;
  nb::class_<index> c(module, "IvfPqIndex", kClassDoc, nb::is_weak_referenceable());
  c.def(
      "__init__",
      [](index* self, std::int64_t dim, std::string_view metric, nb::handle where, nb::handle type, std::int64_t nlist,
         std::string_view code, std::int64_t pq_dim, int pq_bits, std::string_view encodes, std::string_view rotation,
         std::string_view keep, std::uint64_t seed) {
        new (self) index(device_of(where), {.dim = dim,
                                            .metric = parse_metric(metric),
                                            .type = element_type_named(type),
                                            .nlist = nlist,
                                            .code = parse_code_kind(code),
                                            .pq_dim = pq_dim,
                                            .pq_bits = pq_bits,
                                            .encodes = parse_encoded(encodes),
                                            .rotation = parse_rotation(rotation),
                                            .rows = parse_kept_rows(keep),
                                            .seed = seed});
      },
      nb::arg("dim"), nb::arg("metric") = "cosine", nb::arg("device") = nb::none(), nb::arg("dtype") = "float32",
      nb::kw_only(), nb::arg("nlist") = 1024, nb::arg("code") = "pq", nb::arg("pq_dim") = 0, nb::arg("pq_bits") = 8,
      nb::arg("encodes") = "residual", nb::arg("rotation") = "none", nb::arg("keep") = "none", nb::arg("seed") = 0,
      nb::sig("def __init__(self, dim: int, metric: str = 'cosine', device: object = None, dtype: object = 'float32', "
              "*, nlist: int = 1024, code: str = 'pq', pq_dim: int = 0, pq_bits: int = 8, encodes: str = 'residual', "
              "rotation: str = 'none', keep: str = 'none', seed: int = 0) -> None"));
  c.def("train", &index::train, nb::arg("vectors").none(), nb::arg("iterations") = 10, nb::arg("rows_per_list") = 64,
        nb::sig("def train(self, vectors: object, iterations: int = 10, rows_per_list: int = 64) -> None"), kTrainDoc);
  c.def("add", &index::add, nb::arg("vectors").none(), nb::arg("ids") = nb::none(),
        nb::sig("def add(self, vectors: object, ids: object = None) -> None"), kAddDoc);
  c.def("search", &index::search, nb::arg("queries").none(), nb::arg("k") = 10, nb::arg("nprobe") = nb::none(),
        nb::arg("refine_ratio") = 0,
        nb::sig("def search(self, queries: Array, k: int = 10, nprobe: int | None = None, refine_ratio: int = 0) "
                "-> SearchResult[Array]"),
        kSearchDoc);
  c.def("tune", &index::tune, nb::arg("queries").none(), nb::arg("recall") = 0.95, nb::arg("k") = 10,
        nb::arg("truth") = nb::none(),
        nb::sig("def tune(self, queries: object, recall: float = 0.95, k: int = 10, truth: object = None) "
                "-> TuneResult"),
        kTuneDoc);
  c.def("reserve", &index::reserve, nb::arg("max_rows"), "Sets memory aside for max_rows rows.");
  c.def("clear", &index::clear, "Drops all rows; what was trained stays.");
  c.def(
      "save", &index::save, nb::arg("path"),
      "Writes a safetensors file beside `path` and renames it over it when it is on disk.\n\nRaises IoError (OSError). "
      "The GIL is released.");
  c.def("append_to", &index::append_to, nb::arg("path"), kAppendDoc);
  c.def_static(
      "load", &index::load, nb::arg("path"), nb::arg("device") = nb::none(), nb::arg("verify") = true,
      nb::arg("rows") = true, nb::arg("map_rows") = false,
      nb::sig("def load(path: str | os.PathLike[str], device: object = None, verify: bool = True, rows: bool = "
              "True, map_rows: bool = False) -> IvfPqIndex"),
      kLoadDoc);
  c.def("__len__", &index::rows);
  c.def("__repr__", &index::text);
  c.def("__getstate__", &index::state);
  c.def("__setstate__", [](index& self, const nb::tuple& state) { new (&self) index(index::from_state(state)); });
  c.def_prop_ro(
      "dim", [](const index& self) { return self.options().dim; }, "Elements of a row.");
  c.def_prop_ro(
      "metric", [](const index& self) { return std::string(to_string(self.options().metric)); },
      "\"inner_product\", \"cosine\" or \"l2\".");
  c.def_prop_ro("device", &index::where, "\"cpu\" or \"cuda:0\".");
  c.def_prop_ro("dtype", &index::type, "Of the rows that are added: \"float32\", ...");
  c.def_prop_ro(
      "nlist", [](const index& self) { return self.options().nlist; }, "Lists.");
  c.def_prop_ro(
      "pq_dim", [](const index& self) { return self.options().pq_dim; }, "Codes of a row.");
  c.def_prop_ro(
      "pq_bits", [](const index& self) { return self.options().pq_bits; }, "Bits of a code.");
  c.def_prop_ro("is_trained", &index::is_trained, "Whether rows can be added.");
  c.def_prop_ro("memory", &index::memory, nb::sig("def memory(self) -> IvfPqMemory"),
                "Bytes that the index holds, by purpose.");
  c.def_prop_ro("lists", &index::lists, nb::sig("def lists(self) -> ListStatistics"),
                "How evenly rows spread over the lists.");

  module.def("suggest", suggest_for, nb::arg("rows"), nb::arg("dim"), nb::arg("memory_bytes"), nb::arg("recall") = 0.95,
             nb::kw_only(), nb::arg("dtype") = "float32", nb::arg("read_bytes_per_second") = 2e12,
             nb::sig("def suggest(rows: int, dim: int, memory_bytes: int, recall: float = 0.95, *, dtype: object = "
                     "'float32', read_bytes_per_second: float = 2e12) -> Suggestion"),
             kSuggestDoc);
}

}  // namespace shortlist::python
