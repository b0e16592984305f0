// What a flat_index and a workspace hold.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "core/backend.hpp"
#include "index/flat_store.hpp"
#include "index/slot_pool.hpp"
#include "shortlist/flat_index.hpp"

namespace shortlist {

struct workspace::impl {
  device where;
  search_limits limits;
  std::unique_ptr<core::scratch> scratch;
};

struct flat_index::impl {
  impl(device place, const flat_index_options& chosen)
      : where(place),
        options(chosen),
        backend(core::backend_of(place)),
        own(place),
        store(backend, chosen),
        slots(backend, chosen.dim, chosen.storage) {}

  /// Checks and appends; `kind` says where the rows come from.
  void add(void* on, core::copy_kind kind, const any_matrix_view& vectors, std::span<const std::int64_t> ids);
  std::int64_t search_host(const any_matrix_view& queries, const search_options& search,
                           const search_output& out) const;
  std::int64_t search_queued(void* on, const any_matrix_view& queries, std::int64_t k, const search_output& out) const;

  device where;
  flat_index_options options;
  core::backend& backend;
  stream own;  ///< of add, reserve, load; a save makes its own, since it may run beside others
  index::flat_store store;
  mutable index::slot_pool slots;  ///< before `store` goes, its end waits for searches that are still running
};

}  // namespace shortlist
