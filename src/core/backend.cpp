// What a backend does that has no planes.
#include "core/backend.hpp"

#include "shortlist/error.hpp"

namespace shortlist::core {

void backend::check_storage(storage wanted) const {
  if (wanted == storage::full) return;
  throw unsupported("options.storage is " + std::string(to_string(wanted)) + "; allowed on " + where().name() +
                    " is full: int8 planes are on the CPU only");
}

void backend::write_plane(void*, const flat_corpus& corpus, std::int64_t, std::int64_t, std::byte*) {
  check_storage(corpus.storage);
}

}  // namespace shortlist::core
