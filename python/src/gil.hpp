// The GIL, and the end of the interpreter.
#pragma once

#include <nanobind/nanobind.h>

namespace shortlist::python {

/// Without the GIL for as long as it lives.
///
/// An interpreter that ends takes threads away at the moment they ask for the GIL, which C++ does not survive. So its
/// end waits for the calls that are running, and other threads begin none from then on.
class unlocked {
 public:
  unlocked();
  unlocked(const unlocked&) = delete;
  unlocked& operator=(const unlocked&) = delete;
  ~unlocked();

 private:
  PyThreadState* state_;
};

/// Whether Ctrl-C has been pressed; asked without the GIL. Only Python's main thread is told.
bool interrupt_is_pending();
/// Has Python handle the Ctrl-C that was seen. @throws nb::python_error where that raises, as it does by default.
void raise_interrupt();

/// Has the interpreter's end wait as said above.
void bind_end(nanobind::module_& module);

}  // namespace shortlist::python
