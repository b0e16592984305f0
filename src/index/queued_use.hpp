// Scratch that a search uses on a caller's stream.
#pragma once

#include "core/backend.hpp"

namespace shortlist::index {

/// Work queued while this lives uses scratch whose own stream is `own`: it comes after what used the scratch before,
/// and before whoever uses it next.
class queued_use {
 public:
  queued_use(core::backend& backend, void* own, void* stream) : backend_(backend), own_(own), stream_(stream) {
    backend_.order_after(stream_, own_);
  }
  queued_use(const queued_use&) = delete;
  queued_use& operator=(const queued_use&) = delete;
  ~queued_use() {
    try {
      backend_.order_after(own_, stream_);
    } catch (...) {  // only a device that has failed refuses this: nothing runs there any more
    }
  }

 private:
  core::backend& backend_;
  void* own_;
  void* stream_;
};

}  // namespace shortlist::index
