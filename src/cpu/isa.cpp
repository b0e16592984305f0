// Detection of instruction sets, and the override by environment variable or test.
#include "cpu/isa.hpp"

#include <atomic>
#include <cstdlib>
#include <string>

#include "cpu/targets.hpp"
// After targets.hpp, which limits what these detect.
#include "core/message.hpp"
#include "hwy/targets.h"

#if HWY_ARCH_X86_64 && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif HWY_ARCH_ARM_A64 && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace shortlist::cpu {
namespace {

constexpr isa kAllIsas[] = {isa::amx,          isa::avx512_vnni, isa::avx512, isa::avx2,
                            isa::neon_dotprod, isa::neon,        isa::scalar};

/// Products of bytes summed in one instruction, which Highway's target for plain AVX-512 does not ask for.
bool has_vnni() {
#if HWY_ARCH_X86
  return __builtin_cpu_supports("avx512vnni") != 0;
#else
  return false;
#endif
}

/// Intel's matrix unit, whose tiles the system gives a process that asks for them.
bool has_amx() {
#if HWY_ARCH_X86_64 && defined(__linux__)
  constexpr unsigned kTilesOfBytes = 1u << 24 | 1u << 25;  // of leaf 7's edx
  constexpr int kRequestState = 0x1023;                    // ARCH_REQ_XCOMP_PERM
  constexpr int kTileData = 18;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0 || (edx & kTilesOfBytes) != kTilesOfBytes) return false;
  static const bool is_granted = syscall(SYS_arch_prctl, kRequestState, kTileData) == 0;
  return is_granted;
#else
  return false;
#endif
}

bool has_dotprod() {
#if HWY_ARCH_ARM_A64 && defined(__linux__)
  return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#else
  return false;
#endif
}

bool is_available(isa value) {
  const std::int64_t targets = HWY_SUPPORTED_TARGETS & HWY_TARGETS;
  switch (value) {
    case isa::amx: return is_available(isa::avx512_vnni) && has_amx();
    case isa::avx512_vnni: return (targets & HWY_AVX3) != 0 && has_vnni();
    case isa::avx512: return (targets & HWY_AVX3) != 0;
    case isa::avx2: return (targets & HWY_AVX2) != 0;
    case isa::neon_dotprod: return is_available(isa::neon) && has_dotprod();
    case isa::neon: return (targets & HWY_NEON) != 0;
    case isa::scalar: return true;
  }
  return false;
}

isa parse_available(std::string_view argument, std::string_view name) {
  std::string known;
  std::string available;
  for (const isa value : kAllIsas) {
    if (is_available(value) && name == to_string(value)) return value;
    known += (known.empty() ? "" : ", ") + std::string(to_string(value));
    if (is_available(value)) available += (available.empty() ? "" : ", ") + std::string(to_string(value));
  }
  core::throw_invalid(argument, name, std::string_view(available + " on this machine, of the known " + known));
}

isa initial_isa() {
  if (const char* name = std::getenv("SHORTLIST_FORCE_ISA")) return parse_available("SHORTLIST_FORCE_ISA", name);
  for (const isa value : kAllIsas) {
    if (is_available(value)) return value;
  }
  return isa::scalar;
}

std::atomic<isa>& chosen_isa() {
  static std::atomic<isa> chosen{initial_isa()};
  return chosen;
}

}  // namespace

std::string_view to_string(isa value) {
  switch (value) {
    case isa::amx: return "amx";
    case isa::avx512_vnni: return "avx512_vnni";
    case isa::avx512: return "avx512";
    case isa::avx2: return "avx2";
    case isa::neon_dotprod: return "neon_dotprod";
    case isa::neon: return "neon";
    case isa::scalar: return "scalar";
  }
  return "";
}

std::vector<std::string_view> available_isas() {
  std::vector<std::string_view> names;
  for (const isa value : kAllIsas) {
    if (is_available(value)) names.push_back(to_string(value));
  }
  return names;
}

isa current_isa() { return chosen_isa().load(std::memory_order_relaxed); }

void force_isa(std::string_view name) {
  const isa value = parse_available("instruction set", name);
  chosen_isa().store(value, std::memory_order_relaxed);
}

}  // namespace shortlist::cpu
