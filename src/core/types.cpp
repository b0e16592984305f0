// Names of the values of public enumerations.
#include "shortlist/types.hpp"

#include <string>

#include "core/message.hpp"
#include "shortlist/ivf_pq_index.hpp"
#include "shortlist/top_k.hpp"

namespace shortlist {
namespace {

template <class T>
struct named {
  std::string_view name;
  T value;
};

constexpr named<element_type> kElementTypes[] = {{"f32", element_type::f32},
                                                 {"f16", element_type::f16},
                                                 {"bf16", element_type::bf16},
                                                 {"i8", element_type::i8},
                                                 {"u8", element_type::u8}};
constexpr named<value_type> kValueTypes[] = {
    {"f32", value_type::f32}, {"f16", value_type::f16}, {"bf16", value_type::bf16}, {"f64", value_type::f64}};
constexpr named<metric> kMetrics[] = {
    {"inner_product", metric::inner_product}, {"cosine", metric::cosine}, {"l2", metric::l2}};
constexpr named<metric> kMetricShorthands[] = {{"ip", metric::inner_product}, {"cos", metric::cosine}};
constexpr named<storage> kStorages[] = {
    {"full", storage::full}, {"int8_and_full", storage::int8_and_full}, {"int8_and_host", storage::int8_and_host}};

constexpr named<code_kind> kCodeKinds[] = {{"pq", code_kind::pq}, {"sq4", code_kind::sq4}, {"sq8", code_kind::sq8}};
constexpr named<encoded> kEncodeds[] = {{"residual", encoded::residual}, {"row", encoded::row}};
constexpr named<rotation> kRotations[] = {{"none", rotation::none}, {"random", rotation::random}};
constexpr named<kept_rows> kKeptRows[] = {
    {"none", kept_rows::none}, {"device", kept_rows::device}, {"host", kept_rows::host}};

template <class T, std::size_t Count>
std::string_view name_of(const named<T> (&table)[Count], T value) {
  for (const named<T>& entry : table) {
    if (entry.value == value) return entry.name;
  }
  return "unknown";
}

template <class T, std::size_t Count>
T value_of(const named<T> (&table)[Count], std::string_view what, std::string_view name, std::string_view allowed) {
  for (const named<T>& entry : table) {
    if (entry.name == name) return entry.value;
  }
  core::throw_invalid(what, name, allowed);
}

}  // namespace

std::string_view to_string(element_type type) { return name_of(kElementTypes, type); }
std::string_view to_string(metric value) { return name_of(kMetrics, value); }
std::string_view to_string(storage value) { return name_of(kStorages, value); }
std::string_view to_string(code_kind value) { return name_of(kCodeKinds, value); }
std::string_view to_string(encoded value) { return name_of(kEncodeds, value); }
std::string_view to_string(rotation value) { return name_of(kRotations, value); }
std::string_view to_string(kept_rows value) { return name_of(kKeptRows, value); }
std::string_view to_string(value_type type) { return name_of(kValueTypes, type); }

element_type parse_element_type(std::string_view name) {
  return value_of(kElementTypes, "element type", name, "f32, f16, bf16, i8 or u8");
}

value_type parse_value_type(std::string_view name) {
  return value_of(kValueTypes, "value type", name, "f32, f16, bf16 or f64");
}

metric parse_metric(std::string_view name) {
  for (const auto& entry : kMetricShorthands) {
    if (entry.name == name) return entry.value;
  }
  return value_of(kMetrics, "metric", name, "inner_product (ip), cosine (cos) or l2");
}

storage parse_storage(std::string_view name) {
  return value_of(kStorages, "storage", name, "full, int8_and_full or int8_and_host");
}

code_kind parse_code_kind(std::string_view name) { return value_of(kCodeKinds, "code", name, "pq, sq4 or sq8"); }

encoded parse_encoded(std::string_view name) { return value_of(kEncodeds, "encodes", name, "residual or row"); }

rotation parse_rotation(std::string_view name) { return value_of(kRotations, "rotation", name, "none or random"); }

kept_rows parse_kept_rows(std::string_view name) {
  return value_of(kKeptRows, "kept rows", name, "none, device or host");
}

}  // namespace shortlist
