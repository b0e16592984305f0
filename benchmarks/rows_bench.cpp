// Verifies and times row-wise top k. See rows_bench.hpp.
#include "rows_bench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <span>
#include <stdexcept>

#include "parallel.hpp"
#include "read_speed.hpp"

namespace shortlist::benchmark {
namespace {

constexpr std::int64_t kCheckedValues = std::int64_t{1} << 24;   // the oracle sorts so many in about half a second
constexpr std::int64_t kCheckedOnGpu = std::int64_t{1} << 22;    // of each of some three hundred jobs
constexpr std::int64_t kRotatedBytes = std::int64_t{256} << 20;  // several times the L2 cache of a GPU
constexpr std::int64_t kMostCopies = 4096;                       // of rows so short that fewer do not fill the cache
constexpr int kPoison = 0xA5;  // no right output has these bytes everywhere, so that what was not written is seen

std::string hex(std::span<const std::byte> value) {  // most significant byte first
  std::string text;
  for (auto byte = value.rbegin(); byte != value.rend(); ++byte) text += fmt::format("{:02x}", static_cast<int>(*byte));
  return text;
}

std::int64_t index_at(const std::byte* at, std::int64_t bytes) {
  if (bytes == 8) {
    std::int64_t wide;
    std::memcpy(&wide, at, sizeof wide);
    return wide;
  }
  std::int32_t narrow;
  std::memcpy(&narrow, at, sizeof narrow);
  return narrow;
}

}  // namespace

std::string work_name(const rows_job& job, std::string_view place) {
  std::string name = fmt::format("top_k/{}x{}/{}/k{}", job.rows, job.cols, to_string(job.type), job.options.k);
  if (!place.empty()) name += fmt::format("/{}", place);
  if (job.indices_as == index_type::i32) name += "/i32";
  if (job.options.sorted) name += "/sorted";
  if (job.options.eps) name += fmt::format("/eps1e{}", std::lround(std::log10(*job.options.eps)));
  if (job.options.max_iter) name += fmt::format("/max_iter{}", *job.options.max_iter);
  if (job.values != row_values::normal) name += fmt::format("/{}", to_string(job.values));
  if (job.of_cols != 0) name += fmt::format("/of{}", job.of_cols);
  return name;
}

rows_truth::rows_truth(const row_matrix& matrix, const rows_job& job, std::int64_t most_values) : job_(job) {
  const std::int64_t most = std::max<std::int64_t>(1, most_values / job.cols);
  const std::int64_t step = (job.rows + most - 1) / most;
  const bool by_oracle = job.cols <= most_values;
  add(matrix, 0, step, (job.rows + step - 1) / step, by_oracle);
  if (step > 1) add(matrix, job.rows - step, 1, step, by_oracle);
}

void rows_truth::add(const row_matrix& matrix, std::int64_t first, std::int64_t step, std::int64_t count,
                     bool by_oracle) {
  rows_job part = job_;
  part.rows = count;
  sample right{first, step, count, {}, {}};
  const auto rows_of = [&](std::int64_t from, std::int64_t rows) {
    value_matrix some = matrix.every(from, step, rows);
    some.cols = job_.cols;
    return some;
  };
  right.values.resize(static_cast<std::size_t>(part.values_bytes()));
  right.indices.resize(static_cast<std::size_t>(part.indices_bytes()));
  if (!by_oracle) {
    top_k(stream(device::cpu()), rows_of(first, count), job_.options,
          {.values = right.values.data(), .indices = right.indices.data(), .indices_as = job_.indices_as});
    samples_.push_back(std::move(right));
    return;
  }
  over_cores(count, [&](std::int64_t from, std::int64_t to) {
    reference_top_k(rows_of(first + from * step, to - from), job_.options,
                    {.values = right.values.data() + part.values_bytes() / count * from,
                     .indices = right.indices.data() + part.indices_bytes() / count * from,
                     .indices_as = job_.indices_as});
  });
  samples_.push_back(std::move(right));
}

std::int64_t rows_truth::rows() const {
  std::int64_t total = 0;
  for (const sample& s : samples_) total += s.count;
  return total;
}

std::optional<std::string> rows_truth::first_difference(const std::byte* values, const std::byte* indices) const {
  const std::int64_t value_bytes = size_bytes(job_.type);
  const std::int64_t index_bytes = job_.indices_bytes() / job_.entries();
  const std::int64_t k = job_.options.k;
  for (const sample& s : samples_) {
    for (std::int64_t i = 0; i < s.count * k; ++i) {
      const std::int64_t row = s.first + i / k * s.step;
      const std::byte* value = values + (row * k + i % k) * value_bytes;
      const std::byte* index = indices + (row * k + i % k) * index_bytes;
      const std::byte* right_value = s.values.data() + i * value_bytes;
      const std::byte* right_index = s.indices.data() + i * index_bytes;
      if (std::equal(value, value + value_bytes, right_value) && std::equal(index, index + index_bytes, right_index)) {
        continue;
      }
      const auto bits = [&](const std::byte* of) { return hex({of, static_cast<std::size_t>(value_bytes)}); };
      return fmt::format("row {}, place {}: column {} (bits {}), expected column {} (bits {})", row, i % k,
                         index_at(index, index_bytes), bits(value), index_at(right_index, index_bytes),
                         bits(right_value));
    }
  }
  return std::nullopt;
}

void run_on_cpu(row_matrix& matrix, const rows_job& job, const std::string& work, const patience& limit, results& out,
                const nlohmann::ordered_json& more) {
  if (!out.wants(work)) return;
  try {
    const stream s(device::cpu());
    std::byte* values = matrix.room();
    std::byte* indices = values + job.indices_at();
    const auto select = [&] {
      top_k(s, matrix.view(), job.options, {.values = values, .indices = indices, .indices_as = job.indices_as});
    };
    const rows_truth right(matrix, job, kCheckedValues);
    const auto verify = [&] {
      if (const auto difference = right.first_difference(values, indices)) throw std::runtime_error(*difference);
    };
    std::memset(values, kPoison, static_cast<std::size_t>(job.room_bytes()));
    select();
    verify();
    const timing time = repeat(limit, [&](std::int64_t) { return wall_ms(select); });
    verify();
    const double limit_ms = cpu_read_ms(matrix.data(), job.bytes());
    nlohmann::ordered_json fields = {{"checked_rows", right.rows()}};
    if (more.is_object()) fields.update(more);
    out.add(work, {.time = time, .bytes = job.bytes(), .limit_ms = limit_ms}, fields);
  } catch (const std::exception& failure) {
    out.add_wrong(work, failure.what());
  }
}

gpu_matrices::gpu_matrices(gpu_clock& gpu, const row_matrix& matrix)
    : host_(matrix),
      copies_(std::clamp<std::int64_t>(kRotatedBytes / matrix.bytes() + 1, 1, kMostCopies)),
      memory_(device::cuda(0), copies_ * matrix.bytes()) {
  const stream s = stream::wrap(device::cuda(0), gpu.stream());
  buffer first(s.where(), matrix.bytes());
  first.upload(s, matrix.data());
  for (std::int64_t i = 0; i < copies_; ++i) {
    gpu.copy(static_cast<std::byte*>(memory_.data()) + i * matrix.bytes(), first.data(), matrix.bytes());
  }
  s.synchronize();
}

void run_on_gpu(gpu_clock& gpu, const gpu_matrices& matrices, const rows_job& job, const std::string& work,
                const patience& limit, results& out, const nlohmann::ordered_json& more) {
  if (!out.wants(work)) return;
  try {
    const stream s = stream::wrap(device::cuda(0), gpu.stream());
    std::vector<std::byte> found(static_cast<std::size_t>(job.room_bytes()), std::byte{kPoison});
    buffer outputs(s.where(), job.room_bytes());
    buffer poison(s.where(), job.room_bytes());
    poison.upload(s, found.data());
    auto* values = static_cast<std::byte*>(outputs.data());
    const auto select = [&](std::int64_t run) {
      top_k(s, {matrices.of_run(run), job.type, job.rows, job.cols, job.matrix_cols()}, job.options,
            {.values = values, .indices = values + job.indices_at(), .indices_as = job.indices_as});
    };
    const rows_truth right(matrices.host(), job, kCheckedOnGpu);
    const auto spoil = [&] { gpu.copy(values, poison.data(), job.room_bytes()); };
    const auto verify = [&] {
      outputs.download(s, found.data());
      if (const auto difference = right.first_difference(found.data(), found.data() + job.indices_at())) {
        throw std::runtime_error(*difference);
      }
    };
    spoil();
    select(0);
    verify();
    const gpu_clock::graph graph = gpu.capture([&] { select(0); });
    spoil();
    graph.replay();
    verify();
    const timing time = repeat(limit, [&](std::int64_t run) { return gpu.time_ms([&] { select(run); }); });
    verify();
    nlohmann::ordered_json fields = {{"checked_rows", right.rows()}, {"copies", matrices.copies()}};
    if (more.is_object()) fields.update(more);
    fields.update(time_in_graph(gpu, job.bytes(), limit, select, spoil, verify));
    out.add(work, {.time = time, .bytes = job.bytes(), .limit_ms = gpu.read_ms(job.bytes())}, fields);
  } catch (const std::exception& failure) {
    out.add_wrong(work, failure.what());
  }
}

}  // namespace shortlist::benchmark
