// The caller's own scratch.
#include "core/backend.hpp"
#include "index/checks.hpp"
#include "index/flat_index_impl.hpp"

namespace shortlist {

workspace::workspace(device where, const search_limits& limits) {
  constexpr std::int64_t kMinRows = 1;
  constexpr std::int64_t kNoHostQueries = 0;
  constexpr storage kAnyStorage = storage::int8_and_full;
  index::check_limits(limits, kMinRows);
  impl_ = index::with_host_memory([&] {
    auto made = std::make_unique<impl>(impl{where, limits, nullptr});
    made->scratch = core::backend_of(where).make_scratch(limits, kNoHostQueries, kAnyStorage);
    return made;
  });
}

workspace::~workspace() = default;
workspace::workspace(workspace&&) noexcept = default;
workspace& workspace::operator=(workspace&&) noexcept = default;

device workspace::where() const noexcept { return impl_->where; }
const search_limits& workspace::limits() const noexcept { return impl_->limits; }
std::int64_t workspace::bytes() const noexcept { return impl_->scratch->bytes(); }

}  // namespace shortlist
