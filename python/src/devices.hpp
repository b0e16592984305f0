// Devices by the names that Python's libraries give them.
#pragma once

#include <nanobind/nanobind.h>

#include "shortlist/device.hpp"

namespace shortlist::python {

/// None (the best that is there), "cpu", "cuda", "cuda:1", a torch.device, or an entry of devices().
device device_of(nanobind::handle object);

}  // namespace shortlist::python
