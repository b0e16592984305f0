// How an IVF-PQ search works: for now what tests force.
#pragma once

namespace shortlist::core {

/// For tests: whether SHORTLIST_FORCE_IVF_PQ is "decode", and searches are to decode every row of the lists; "filter"
/// is what they do otherwise. @throws invalid_argument if it is anything else.
bool decodes_all_rows();

}  // namespace shortlist::core
