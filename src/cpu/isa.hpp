// The instruction sets that kernels are compiled for, and the one that this process uses.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace shortlist::cpu {

enum class isa : std::uint8_t { amx, avx512_vnni, avx512, avx2, neon_dotprod, neon, scalar };

/// Whether kernels for AVX-512, or for NEON, serve it: most of what there is has none that are better.
constexpr bool has_avx512(isa value) { return value <= isa::avx512; }
constexpr bool has_neon(isa value) { return value == isa::neon_dotprod || value == isa::neon; }

/// "amx", "avx512_vnni", "avx512", "avx2", "neon_dotprod", "neon", "scalar".
std::string_view to_string(isa value);

/// What this build has kernels for and this processor runs, best first; the last is always "scalar".
std::vector<std::string_view> available_isas();

/// The instruction set in use: SHORTLIST_FORCE_ISA, read at the first call, or the best available.
/// @throws invalid_argument if that variable names none that is available.
isa current_isa();

/// Searches that start from now on use this instruction set: for tests, which compare them all in one process.
/// @throws invalid_argument if the name is unknown or unavailable here; the message lists both.
void force_isa(std::string_view name);

}  // namespace shortlist::cpu
