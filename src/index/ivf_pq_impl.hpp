// What an ivf_pq_index holds.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "core/ivf_pq.hpp"
#include "index/ivf_pq_model.hpp"
#include "index/ivf_pq_rows.hpp"
#include "index/ivf_pq_slots.hpp"
#include "shortlist/ivf_pq_index.hpp"

namespace shortlist {

struct ivf_pq_index::impl {
  impl(core::backend& on, const ivf_pq_options& chosen);

  void train(const any_matrix_view& vectors, const train_options& training);
  /// Checks and appends; `kind` says where the rows come from.
  void add(void* on, core::copy_kind kind, const any_matrix_view& vectors, std::span<const std::int64_t> ids);
  void check_search(const any_matrix_view& queries, const ivf_pq_search_options& search) const;
  void search_host(const any_matrix_view& queries, const ivf_pq_search_options& search, const search_output& out) const;
  void search_queued(void* on, const any_matrix_view& queries, const ivf_pq_search_options& search,
                     const search_output& out) const;
  /// From now on this is the model; of an index without rows.
  void use(index::ivf_pq_arrays trained);
  void require_trained(std::string_view what) const;

  index::ivf_pq_slots::lease take_slot(std::int64_t queries, const ivf_pq_search_options& search) const;

  ivf_pq_options options;
  core::backend& backend;
  device where;
  stream own;                                  ///< of train, add, reserve, load
  std::unique_ptr<index::ivf_pq_model> model;  ///< null until it is trained
  index::ivf_pq_rows rows;
  mutable index::ivf_pq_slots slots;  ///< goes first, and waits for searches that are still running
};

}  // namespace shortlist
