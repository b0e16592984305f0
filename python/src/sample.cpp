// sample: one token of every row of logits, held in an array of any framework.
#include "shortlist/sample.hpp"

#include <fmt/format.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <string>
#include <type_traits>
#include <utility>

#include "devices.hpp"
#include "errors.hpp"
#include "gil.hpp"
#include "matrix.hpp"
#include "module.hpp"
#include "values.hpp"

namespace shortlist::python {
namespace {

constexpr std::int64_t kMaskWordBits = 32;

template <class T>
constexpr dtype kDtypeOf = std::is_same_v<T, float>          ? dtype::f32
                           : std::is_same_v<T, std::int32_t> ? dtype::i32
                                                             : dtype::u64;

/// A number for all rows, or an array of one a row, which is held.
template <class T>
class row_parameter {
 public:
  per_row<T> read(nb::handle object, const char* argument, const array& logits, std::int64_t rows) {
    if (is_number(object)) return {number(object, argument)};
    read_rows(object, argument, kDtypeOf<T>, rows, logits, values_);
    return {static_cast<const T*>(values_.data)};
  }

 private:
  static bool is_number(nb::handle object) {
    if (PyFloat_Check(object.ptr()) || PyLong_Check(object.ptr())) return true;
    return PyNumber_Check(object.ptr()) && !nb::hasattr(object, "__len__");  // NumPy's numbers
  }

  static T number(nb::handle object, const char* argument) {
    if constexpr (std::is_same_v<T, float>) {
      const double value = PyFloat_AsDouble(object.ptr());
      if (value == -1.0 && PyErr_Occurred()) throw nb::python_error();
      return static_cast<float>(value);
    } else {
      T value{};
      const nb::object whole = nb::steal(PyNumber_Index(object.ptr()));
      if (!whole.is_valid()) PyErr_Clear();
      if (!whole.is_valid() || !nb::try_cast<T>(whole, value)) {
        throw_value(argument, nb::cast<std::string>(nb::str(object)),
                    std::is_same_v<T, std::uint64_t> ? "0 to 2^64 - 1" : "-2^31 to 2^31 - 1");
      }
      return value;
    }
  }

  array values_;
};

/// Tokens of each row: shortlist.TokenRows(begins, tokens), or what shortlist._arguments.token_rows makes one of.
class history {
 public:
  token_rows read(nb::handle object, const char* argument, const array& logits, std::int64_t rows) {
    if (object.is_none()) return {};
    static const nb::object& convert = *new nb::object(nb::module_::import_("shortlist._arguments").attr("token_rows"));
    const nb::object pair = convert(object, argument, rows);
    const std::string begins_name = fmt::format("{}.begins", argument);
    read_list(pair[0], begins_name.c_str(), dtype::i64, logits, begins_);
    read_list(pair[1], fmt::format("{}.tokens", argument).c_str(), dtype::i32, logits, tokens_);
    if (begins_.shape[0] != rows + 1) {
      throw_value(begins_name, fmt::format("of shape {}", shape_text(begins_)),
                  fmt::format("[{}], where each row begins and the last ends", rows + 1));
    }
    check_end(argument, logits);
    return {static_cast<const std::int64_t*>(begins_.data), static_cast<const std::int32_t*>(tokens_.data)};
  }

 private:
  /// The library knows no length of `tokens`; on the CPU it can be checked against the last border.
  void check_end(const char* argument, const array& logits) const {
    if (logits.where.kind() != device_kind::cpu) return;
    const auto* begins = static_cast<const std::int64_t*>(begins_.data);
    const std::int64_t last = begins_.shape[0] - 1;
    if (begins[last] > tokens_.shape[0]) {
      throw_value(fmt::format("{}.begins[{}]", argument, last), std::to_string(begins[last]),
                  fmt::format("up to {}, the number of tokens", tokens_.shape[0]));
    }
  }

  array begins_, tokens_;
};

/// An array [entries] that all rows share, or [rows, entries]; the stride from one row to the next.
std::int64_t read_shared(nb::handle object, const char* argument, std::int64_t rows, std::int64_t entries,
                         const array& logits, array& into) {
  const matrix seen = read_matrix(object, argument, columns::dense, into);
  check_same_place(into, argument, logits);
  const bool shared = into.axes == 1;
  if (into.axes > 2 || seen.cols != entries || (!shared && seen.rows != rows)) {
    throw_value(argument, fmt::format("of shape {}", shape_text(into)),
                fmt::format("[{}] for all rows, or [{}, {}]", entries, rows, entries));
  }
  return shared ? 0 : seen.row_stride;
}

logit_bias read_bias(nb::handle object, std::int64_t rows, std::int64_t vocab, const array& logits, array& into) {
  if (object.is_none()) return {};
  static const nb::object& convert = *new nb::object(nb::module_::import_("shortlist._arguments").attr("bias"));
  read_array(convert(object, vocab), "bias", into);
  change_type(into, "bias", dtype::f32);
  const nb::object typed = into.object;
  into.let_go();
  const std::int64_t stride = read_shared(typed, "bias", rows, vocab, logits, into);
  return {static_cast<const float*>(into.data), stride};
}

token_mask read_mask(nb::handle object, std::int64_t rows, std::int64_t vocab, const array& logits, array& into) {
  if (object.is_none()) return {};
  read_array(object, "allowed", into);
  const bool is_bits = into.type == dtype::i32 || into.type == dtype::u32;
  if (!is_bits && into.type != dtype::boolean && into.type != dtype::u8 && into.type != dtype::i8) {
    throw_type("allowed.dtype", to_string(into.type), "bool or uint8, one a token; or int32 or uint32, a bit a token");
  }
  into.let_go();
  const std::int64_t entries = is_bits ? (vocab + kMaskWordBits - 1) / kMaskWordBits : vocab;
  const std::int64_t stride = read_shared(object, "allowed", rows, entries, logits, into);
  return {into.data, is_bits ? mask_kind::bits : mask_kind::bytes, stride};
}

min_p_order min_p_order_of(std::string_view name) {
  if (name == "last") return min_p_order::last;
  if (name == "first") return min_p_order::first;
  throw_value("min_p_order", name, "last or first");
}

/// Everything that a call's parameters hold while the work is queued.
struct held_parameters {
  row_parameter<float> temperature, top_p, min_p, repetition, presence, frequency;
  row_parameter<std::int32_t> top_k;
  row_parameter<std::uint64_t> seed, offset;
  history prompt, generated;
  array bias, allowed;
};

nb::object sample_of(nb::handle object, nb::handle temperature, nb::handle top_k, nb::handle top_p, nb::handle min_p,
                     nb::handle seed, nb::handle offset, std::string_view min_p_first_or_last, nb::handle repetition,
                     nb::handle presence, nb::handle frequency, nb::handle prompt, nb::handle generated,
                     nb::handle bias, nb::handle allowed, bool details, std::int32_t top_n,
                     std::string_view index_dtype) {
  static const named_tuple& result = *new named_tuple("SampleResult");
  const index_type tokens_as = index_type_of(index_dtype, "index_dtype");
  array rows_of_logits;
  const value_matrix logits = read_values(object, "logits", rows_of_logits);
  const array& like = rows_of_logits;
  const std::int64_t rows = logits.rows, vocab = logits.cols;

  held_parameters held;
  sample_params params;
  params.temperature = held.temperature.read(temperature, "temperature", like, rows);
  params.top_k = held.top_k.read(top_k, "top_k", like, rows);
  params.top_p = held.top_p.read(top_p, "top_p", like, rows);
  params.min_p = held.min_p.read(min_p, "min_p", like, rows);
  params.seed = held.seed.read(seed, "seed", like, rows);
  params.offset = held.offset.read(offset, "offset", like, rows);
  params.min_p_order = min_p_order_of(min_p_first_or_last);
  params.repetition_penalty = held.repetition.read(repetition, "repetition_penalty", like, rows);
  params.presence_penalty = held.presence.read(presence, "presence_penalty", like, rows);
  params.frequency_penalty = held.frequency.read(frequency, "frequency_penalty", like, rows);
  params.prompt = held.prompt.read(prompt, "prompt", like, rows);
  params.generated = held.generated.read(generated, "generated", like, rows);
  params.bias = read_bias(bias, rows, vocab, like, held.bias);
  params.allowed = read_mask(allowed, rows, vocab, like, held.allowed);

  framework& from = *like.from;
  const work_order order = from.order(like);
  if (top_n < 0 || top_n > kMaxTopLogprobs) throw_value("top_n", std::to_string(top_n), "0 to 512");
  if (top_n > 0 && !details) throw_value("top_n", std::to_string(top_n), "0 without details=True");
  const result_shape one_a_row(like), top_a_row(like, top_n);
  const auto make = [&](const result_shape& shape, dtype type) { return from.empty(like, shape.get(), type); };
  new_array tokens = make(one_a_row, dtype_of(tokens_as));
  new_array status, logprobs, kept, top_tokens, top_logprobs;
  sample_output out{.tokens = tokens.data, .tokens_as = tokens_as};
  if (details) {
    status = make(one_a_row, dtype::u8);
    logprobs = make(one_a_row, dtype::f32);
    kept = make(one_a_row, dtype::i32);
    top_tokens = make(top_a_row, dtype::i32);
    top_logprobs = make(top_a_row, dtype::f32);
    out.status = static_cast<sample_status*>(status.data);
    out.logprobs = static_cast<float*>(logprobs.data);
    out.kept = static_cast<std::int32_t*>(kept.data);
  }
  if (details && top_n > 0) {
    out.top_n = top_n;
    out.top_tokens = static_cast<std::int32_t*>(top_tokens.data);
    out.top_logprobs = static_cast<float*>(top_logprobs.data);
  }
  {
    const unlocked without_gil;
    sample(order.on, logits, params, out);
    if (order.waits) order.on.synchronize();
  }
  const auto finished = [&](new_array& made) { return from.finished(like, std::move(made.object)); };
  if (!details) return finished(tokens);
  nb::object fields[] = {finished(tokens), finished(status),     finished(logprobs),
                         finished(kept),   finished(top_tokens), finished(top_logprobs)};
  return result.make(fields);
}

std::string explain_sample(std::int64_t rows, std::int64_t vocab, nb::handle where, std::string_view type,
                           std::int32_t top_k) {
  return explain(device_of(where),
                 sample_shape{.rows = rows, .vocab = vocab, .type = value_type_of_name(type, "dtype"), .top_k = top_k});
}

constexpr const char* kSampleDoc = R"(Draws one token of every row of logits.

A row's token depends on its logits, parameters, seed and offset alone: not on the rows around it, or the device.

Args:
    logits: [..., vocab] of float32, float16 or bfloat16, of any library that top_k takes; the last axis is a row.
    temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty, seed, offset: a number
        for all rows, or an array or list of one a row. temperature: 0 or more, 0 takes the best. top_k below 1, top_p
        of 1 and min_p of 0 are off. seed and offset: 0 to 2^64 - 1; give every token of a sequence another offset.
    min_p_order: "last", or "first": before top_k and top_p.
    prompt, generated: the tokens that the penalties are about. A list of lists, an array [rows, n] padded with -1, or
        TokenRows(begins, tokens).
    bias: added to the logits: {token: bias}, [vocab] for all rows, or [rows, vocab].
    allowed: what may be drawn: bool or uint8, [vocab] or [rows, vocab]; or int32 words of 32 tokens, the least
        significant bit first.
    details: True returns SampleResult(tokens, status, logprobs, kept, top_tokens, top_logprobs).
    top_n: with details, how many best tokens of each row to return; 0 to 512.
    index_dtype: of the tokens: "int64" or "int32".

Returns:
    tokens [...], arrays of the logits' library on their device. -1 in a row that cannot be drawn from; its status says
    why: 1 a NaN logit, 2 nothing allowed, 3 a parameter of an array out of range.

Raises:
    InvalidArgument (ValueError), WrongType (TypeError), CudaError (RuntimeError).

Arrays of parameters lie on the logits' device; what is not of the type that the library reads is copied. The GIL is
released. On a GPU the work runs on the current stream of torch or CuPy, and the call does not wait for it; for other
libraries it does. Every step, to the last bit: docs/sampling.md.)";

}  // namespace

void bind_sample(nb::module_& module) {
  module.def(
      "sample", sample_of, nb::arg("logits").none(), nb::kw_only(), nb::arg("temperature") = 1.0, nb::arg("top_k") = 0,
      nb::arg("top_p") = 1.0, nb::arg("min_p") = 0.0, nb::arg("seed") = 0, nb::arg("offset") = 0,
      nb::arg("min_p_order") = "last", nb::arg("repetition_penalty") = 1.0, nb::arg("presence_penalty") = 0.0,
      nb::arg("frequency_penalty") = 0.0, nb::arg("prompt") = nb::none(), nb::arg("generated") = nb::none(),
      nb::arg("bias") = nb::none(), nb::arg("allowed") = nb::none(), nb::arg("details") = false, nb::arg("top_n") = 0,
      nb::arg("index_dtype") = "int64",
      nb::sig(
          "def sample(logits: Array, *, temperature: object = 1.0, top_k: object = 0, "
          "top_p: object = 1.0, min_p: object = 0.0, seed: object = 0, offset: object = 0, min_p_order: str = 'last', "
          "repetition_penalty: object = 1.0, presence_penalty: object = 0.0, frequency_penalty: object = 0.0, "
          "prompt: object = None, generated: object = None, bias: object = None, allowed: object = None, "
          "details: bool = False, top_n: int = 0, index_dtype: str = 'int64') "
          "-> Array | SampleResult[Array]"),
      kSampleDoc);
  module.def("explain_sample", explain_sample, nb::arg("rows"), nb::arg("vocab"), nb::kw_only(),
             nb::arg("device") = nb::none(), nb::arg("dtype") = "float32", nb::arg("top_k") = 0,
             "The algorithm that sample takes for this shape on a device, why, and the bytes it moves.");
}

}  // namespace shortlist::python
