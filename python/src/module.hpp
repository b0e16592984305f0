// What each file of this folder adds to the module.
#pragma once

#include <nanobind/nanobind.h>

namespace shortlist::python {

void bind_devices(nanobind::module_& module);
void bind_flat_index(nanobind::module_& module);
void bind_ivf_pq_index(nanobind::module_& module);
void bind_top_k(nanobind::module_& module);
void bind_sample(nanobind::module_& module);

}  // namespace shortlist::python
