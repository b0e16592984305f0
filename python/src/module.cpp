// shortlist._core: the library's calls on the arrays of Python's libraries.
#include "module.hpp"

#include "errors.hpp"
#include "gil.hpp"
#include "shortlist/version.hpp"

NB_MODULE(_core, module) {
  // Objects that live until the interpreter ends are the program's business, and nothing to print about.
  nanobind::set_leak_warnings(false);
  module.doc() = "The compiled part of shortlist; import shortlist instead.";
  module.attr("__version__") = shortlist::version();
  shortlist::python::bind_end(module);
  shortlist::python::bind_errors(module);
  shortlist::python::bind_devices(module);
  shortlist::python::bind_flat_index(module);
  shortlist::python::bind_ivf_pq_index(module);
  shortlist::python::bind_top_k(module);
  shortlist::python::bind_sample(module);
}
