// What machine this is, for the head of a result file.
#pragma once

#include <nlohmann/json.hpp>

namespace shortlist::benchmark {

/// {"cpu", "cores", "caches", "library_cpu", "gpu", "driver", "cuda", ...}; what is not known is left out.
nlohmann::ordered_json describe_machine();

}  // namespace shortlist::benchmark
