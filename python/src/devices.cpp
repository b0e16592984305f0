#include "devices.hpp"

#include <nanobind/stl/string.h>

#include <string>

#include "module.hpp"

namespace shortlist::python {

namespace nb = nanobind;

device device_of(nb::handle object) {
  if (object.is_none()) return device::best();
  const nb::object named = nb::hasattr(object, "name") ? nb::object(object.attr("name")) : nb::borrow(object);
  return device::parse(nb::cast<std::string>(nb::str(named)));
}

void bind_devices(nb::module_& module) {
  module.def(
      "devices",
      [] {
        nb::list found;
        const nb::object entry = nb::module_::import_("shortlist._results").attr("Device");
        for (const device& each : device::all()) found.append(entry(each.name(), each.description()));
        return found;
      },
      nb::sig("def devices() -> list[Device]"),
      "Every usable device, the CPU first: [Device(name='cpu', description='...'), Device(name='cuda:0', ...)].\n\n"
      "Without a usable GPU the CPU is the only one; nothing is raised.");
}

}  // namespace shortlist::python
