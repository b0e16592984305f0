// Devices, streams and device memory over the backends.
#include "shortlist/device.hpp"

#include <charconv>

#include "api/registry.hpp"
#include "core/backend.hpp"
#include "core/message.hpp"
#include "core/plan.hpp"

namespace shortlist {
namespace {

constexpr std::string_view kCudaPrefix = "cuda:";

void check_stream(const stream& s, device where) {
  if (s.where() != where) {
    core::throw_invalid("stream", "one of " + s.where().name(), "one of " + where.name() + ", the buffer's device");
  }
}

}  // namespace

device device::cpu() noexcept { return {device_kind::cpu, 0}; }

device device::cuda(int ordinal) {
  require_gpu(ordinal);
  return {device_kind::cuda, ordinal};
}

device device::best() noexcept {
  try {
    if (gpu_count() > 0) return {device_kind::cuda, 0};
  } catch (...) {  // whatever keeps the GPU from being asked, the CPU is there
  }
  return cpu();
}

device device::best_for(const search_shape& shape) noexcept { return core::cpu_wins(shape) ? cpu() : best(); }

device device::parse(std::string_view name) {
  if (name == "cpu") return cpu();
  if (name == "cuda") return cuda(0);
  if (name == "best") return best();
  if (name.starts_with(kCudaPrefix)) {
    const std::string_view digits = name.substr(kCudaPrefix.size());
    int ordinal = 0;
    const auto [end, failure] = std::from_chars(digits.data(), digits.data() + digits.size(), ordinal);
    if (failure == std::errc() && end == digits.data() + digits.size() && ordinal >= 0) return cuda(ordinal);
  }
  core::throw_invalid("device", name, "cpu, cuda, cuda:N or best");
}

std::vector<device> device::all() {
  std::vector<device> found = {cpu()};
  const int count = gpu_count();
  for (int ordinal = 0; ordinal < count; ++ordinal) found.push_back(device(device_kind::cuda, ordinal));
  return found;
}

std::string device::name() const {
  return kind_ == device_kind::cpu ? "cpu" : std::string(kCudaPrefix) + std::to_string(ordinal_);
}

std::string device::description() const { return core::backend_of(*this).description(); }

stream::stream(device where) : where_(where) {
  core::backend& backend = core::backend_of(where);
  native_ = std::shared_ptr<void>(backend.create_stream(), [&backend](void* made) {
    if (made) backend.destroy_stream(made);
  });
}

stream stream::wrap(device where, void* cuda_stream) {
  if (where.kind() == device_kind::cpu && cuda_stream) {
    core::throw_invalid("cuda_stream", "not null", "null on the CPU, which has no streams");
  }
  return {where, std::shared_ptr<void>(std::shared_ptr<void>(), cuda_stream)};  // aliasing: nothing is owned
}

void stream::synchronize() const { core::backend_of(where_).synchronize(native()); }

buffer::buffer(device where, std::int64_t bytes) : where_(where), bytes_(bytes) {
  if (bytes < 0) core::throw_invalid("bytes", bytes, "0 or more");
  if (bytes == 0) return;
  core::backend& backend = core::backend_of(where);
  data_ = std::shared_ptr<void>(backend.allocate(bytes), [&backend](void* memory) { backend.release(memory); });
}

void buffer::upload(const stream& s, const void* host) {
  check_stream(s, where_);
  if (bytes_ == 0) return;
  if (!host) core::throw_invalid("host", "null", "memory of bytes() bytes");
  core::backend_of(where_).copy_rows(s.native(), core::copy_kind::host_to_device, data(), bytes_, host, bytes_, bytes_,
                                     1);
}

void buffer::download(const stream& s, void* host) const {
  check_stream(s, where_);
  if (bytes_ == 0) return;
  if (!host) core::throw_invalid("host", "null", "memory of bytes() bytes");
  core::backend_of(where_).copy_rows(s.native(), core::copy_kind::device_to_host, host, bytes_, data(), bytes_, bytes_,
                                     1);
}

}  // namespace shortlist
