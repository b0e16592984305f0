// Which backend serves which device. The only place that names the backends.
#include "api/registry.hpp"

#include <string>

#include "core/backend.hpp"
#include "core/message.hpp"
#include "cpu/backend.hpp"
#include "cuda/entry.hpp"

namespace shortlist {
namespace {

/// Usable GPUs, or 0 with the reason.
int count_gpus(const cuda::entry* backend, std::string& why_none) {
  if (!backend) return 0;
  try {
    const int count = backend->device_count();
    if (count < 1) why_none = "no usable NVIDIA GPU was found";
    return count;
  } catch (const error& failure) {
    why_none = failure.what();
    return 0;
  }
}

}  // namespace

int gpu_count() {
  std::string why_none;
  return count_gpus(cuda::find(why_none), why_none);
}

void require_gpu(int ordinal) {
  std::string why_none;
  const int count = count_gpus(cuda::find(why_none), why_none);
  const std::string name = "device cuda:" + std::to_string(ordinal);
  if (ordinal < 0) core::throw_invalid("CUDA ordinal", ordinal, "0 or more");
  if (count < 1) throw unsupported(name + " is not there: " + why_none);
  if (ordinal >= count) {
    core::throw_invalid("CUDA ordinal", ordinal,
                        count == 1 ? "0: there is one GPU" : "0 to " + std::to_string(count - 1));
  }
}

core::backend& core::backend_of(device where) {
  if (where.kind() == device_kind::cpu) return cpu::cpu_backend();
  std::string why_none;
  const cuda::entry* backend = cuda::find(why_none);
  if (!backend) throw unsupported("device " + where.name() + " is not there: " + why_none);
  return backend->open(where.ordinal());
}

}  // namespace shortlist
