// What machine this is. See machine.hpp.
#include "machine.hpp"

#include <filesystem>
#include <fstream>
#include <string>

#include "gpu.hpp"
#include "parallel.hpp"
#include "shortlist/device.hpp"

namespace shortlist::benchmark {
namespace {

/// The value of the first line "name : value" of a file, or nothing.
std::string value_in(const char* path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(':');
    if (line.starts_with(name) && colon != std::string::npos && colon + 2 <= line.size()) return line.substr(colon + 2);
  }
  return "";
}

std::string first_line(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

nlohmann::ordered_json caches() {
  nlohmann::ordered_json found = nlohmann::ordered_json::object();
  for (int i = 0; i < 8; ++i) {
    const auto folder = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(i);
    const std::string level = first_line(folder + "/level");
    if (level.empty() || first_line(folder + "/type") == "Instruction") continue;
    found["L" + level] = first_line(folder + "/size");
  }
  return found;
}

}  // namespace

nlohmann::ordered_json describe_machine() {
  nlohmann::ordered_json machine = {{"cpu", value_in("/proc/cpuinfo", "model name")},
                                    {"cores", core_count()},
                                    {"caches", caches()},
                                    {"library_cpu", device::cpu().description()}};
  if (const auto gpu = find_gpu()) {
    machine["gpu"] = gpu->name;
    machine["gpu_memory_gb"] = gpu->memory_gb;
    machine["cuda"] = gpu->cuda;
    machine["driver"] = value_in("/proc/driver/nvidia/version", "NVRM version");
  }
  return machine;
}

}  // namespace shortlist::benchmark
