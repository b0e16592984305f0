// The 45 configurations of CUDA-TopK-Retrieval: N x D x K, one query. Resident on the GPU, on the CPU, and the round
// trip of a program that keeps its vectors on the host.
#include <memory>

#include "campaigns.hpp"
#include "flat_bench.hpp"
#include "seed_shapes.hpp"

namespace shortlist::benchmark {

limits_report run_seeds(results& out, const campaign_settings& settings) {
  const patience limit =
      settings.quick ? patience{.seconds = 0.03, .fewest = 3} : patience{.seconds = 0.3, .fewest = 7};
  std::unique_ptr<gpu_clock> gpu;
  if (find_gpu() && device::best().kind() == device_kind::cuda) gpu = std::make_unique<gpu_clock>();

  limits_report limits;  // of the largest corpus, the last one: smaller ones lie in caches
  for (const std::int64_t rows : kSeedRows) {
    for (const std::int64_t dim : kSeedDims) {
      const search_shape widest{.rows = rows, .dim = dim};
      if (!wants_any_k(out, widest)) continue;
      flat_data data(rows, dim, element_type::f32, distribution::normal, kQuerySets, kSeedMaxK);
      flat_bench on_cpu(device::cpu(), data, out, limit, 1, kSeedMaxK);
      const double cpu_limit_ms = on_cpu.limit_ms(nullptr);
      limits["read_gb_per_s"]["cpu"] = static_cast<double>(data.rows.bytes()) / (cpu_limit_ms * 1e6);
      for (const std::int64_t k : kSeedKs) {
        const search_shape shape = data.shape(1, k);
        on_cpu.host(1, k, work_name(shape, "host", "cpu"), cpu_limit_ms);
        if (gpu) on_cpu.round_trip(device::cuda(), k, work_name(shape, "device", "round_trip"), cpu_limit_ms);
      }
      if (!gpu) continue;
      flat_bench on_gpu(device::cuda(), data, out, limit, 1, kSeedMaxK);
      const double gpu_limit_ms = on_gpu.limit_ms(gpu.get());
      limits["read_gb_per_s"]["gpu"] = static_cast<double>(data.rows.bytes()) / (gpu_limit_ms * 1e6);
      for (const std::int64_t k : kSeedKs) {
        const search_shape shape = data.shape(1, k);
        on_gpu.host(1, k, work_name(shape, "host"), gpu_limit_ms);
        on_gpu.on_device(*gpu, 1, k, work_name(shape, "device"), gpu_limit_ms);
      }
    }
  }
  return limits;
}

}  // namespace shortlist::benchmark
