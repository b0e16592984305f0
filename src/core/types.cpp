// Names of element types, value types, metrics and storages.
#include "shortlist/types.hpp"

#include <string>

#include "core/message.hpp"
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

template <class T, std::size_t Count>
std::string_view name_of(const named<T> (&table)[Count], T value) {
  for (const named<T>& entry : table) {
    if (entry.value == value) return entry.name;
  }
  return "unknown";
}

}  // namespace

std::string_view to_string(element_type type) { return name_of(kElementTypes, type); }
std::string_view to_string(metric value) { return name_of(kMetrics, value); }
std::string_view to_string(storage value) { return name_of(kStorages, value); }
std::string_view to_string(value_type type) { return name_of(kValueTypes, type); }

element_type parse_element_type(std::string_view name) {
  for (const auto& entry : kElementTypes) {
    if (entry.name == name) return entry.value;
  }
  core::throw_invalid("element type", name, "f32, f16, bf16, i8 or u8");
}

value_type parse_value_type(std::string_view name) {
  for (const auto& entry : kValueTypes) {
    if (entry.name == name) return entry.value;
  }
  core::throw_invalid("value type", name, "f32, f16, bf16 or f64");
}

metric parse_metric(std::string_view name) {
  for (const auto& entry : kMetrics) {
    if (entry.name == name) return entry.value;
  }
  for (const auto& entry : kMetricShorthands) {
    if (entry.name == name) return entry.value;
  }
  core::throw_invalid("metric", name, "inner_product (ip), cosine (cos) or l2");
}

storage parse_storage(std::string_view name) {
  for (const auto& entry : kStorages) {
    if (entry.name == name) return entry.value;
  }
  core::throw_invalid("storage", name, "full, int8_and_full or int8_and_host");
}

}  // namespace shortlist
