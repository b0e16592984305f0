#include "gil.hpp"

#include <pthread.h>
#include <unistd.h>

#include <chrono>
#include <thread>

namespace shortlist::python {
namespace {

namespace nb = nanobind;

constexpr std::chrono::milliseconds kBetweenLooks{1};

// All under the GIL.
int running = 0;
bool is_ending = false;
std::thread::id ending_thread;

[[noreturn]] void stay_forever() {
  PyEval_SaveThread();
  for (;;) ::pause();
}

void wait_for_calls() {
  is_ending = true;
  ending_thread = std::this_thread::get_id();
  while (running > 0) {
    const nb::gil_scoped_release others_go_on;
    std::this_thread::sleep_for(kBetweenLooks);
  }
}

}  // namespace

unlocked::unlocked() {
  if (is_ending && std::this_thread::get_id() != ending_thread) stay_forever();
  ++running;
  state_ = PyEval_SaveThread();
}

unlocked::~unlocked() {
  PyEval_RestoreThread(state_);
  --running;
}

bool interrupt_is_pending() {
  const nb::gil_scoped_acquire with_gil;
  return PyOS_InterruptOccurred() != 0;
}

void raise_interrupt() {
  PyErr_SetInterrupt();
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

void bind_end(nb::module_& module) {
  module.def("_wait_for_calls", wait_for_calls);
  nb::module_::import_("atexit").attr("register")(module.attr("_wait_for_calls"));
  // A child has the forking thread alone, which is in no call.
  pthread_atfork(nullptr, nullptr, [] { running = 0; });
}

}  // namespace shortlist::python
