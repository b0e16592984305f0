// What an IVF-PQ index has trained.
#include "index/ivf_pq_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/message.hpp"
#include "index/checks.hpp"

namespace shortlist::index {
namespace {

constexpr std::int64_t kMaxLists = std::int64_t{1} << 20;
// A turn costs dim^2 products a row, and training it dim^3.
constexpr std::int64_t kMaxRotatedDim = 4096;
constexpr int kMinPqBits = 4;
constexpr int kMaxPqBits = 8;

// From here on a plane answers a batch of nearest centroids sooner than the centroids themselves, on a GPU; see the
// plan of flat searches.
constexpr std::int64_t kPlaneMinLists = 8192;

// The largest codeword has its leading bit here, in halves: far from where halves end, and as many as they have below.
constexpr int kLargestHalfExponent = 13;
constexpr int kHalfFractionBits = 10;
constexpr int kLeastHalfExponent = -24;
constexpr int kLeastFloatExponent = -149;
// Below it the least half would be no fp32 number.
constexpr int kLeastCodebookExponent = kLeastFloatExponent - kLeastHalfExponent;

std::int64_t rounded_up_quotient(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

template <class Enum>
void check_enum(std::string_view name, Enum value, Enum last, std::string_view allowed) {
  if (value > last) core::throw_invalid(name, static_cast<std::int64_t>(value), allowed);
}

void check_pq_dim(const ivf_pq_options& options) {
  if (options.pq_dim < 1 || options.pq_dim > options.dim) {
    core::throw_invalid("options.pq_dim", options.pq_dim, fmt::format("1 to {}, the dim; or 0", options.dim));
  }
  const std::int64_t piece_dim = rounded_up_quotient(options.dim, options.pq_dim);
  const std::int64_t filled = rounded_up_quotient(options.dim, piece_dim);
  if (filled < options.pq_dim) {
    core::throw_invalid("options.pq_dim", options.pq_dim,
                        fmt::format("a number of pieces that are not empty: pieces of {} elements make {} of {}",
                                    piece_dim, filled, options.dim));
  }
}

/// The half nearest to a value of less than 2^14, ties to even.
double to_half(double value) {
  if (value == 0.0) return value;
  const int step = std::max(std::ilogb(value) - kHalfFractionBits, kLeastHalfExponent);
  return std::ldexp(std::nearbyint(std::ldexp(value, -step)), step);
}

float largest_magnitude(const std::vector<float>& values) {
  float largest = 0.0f;
  for (const float value : values) largest = std::max(largest, std::abs(value));
  return largest;
}

}  // namespace

ivf_pq_options completed(const ivf_pq_options& options) {
  check_options({.dim = options.dim, .metric = options.metric, .type = options.type});
  check_enum("options.code", options.code, code_kind::sq8, "a code_kind");
  check_enum("options.encodes", options.encodes, encoded::row, "an encoded");
  check_enum("options.rotation", options.rotation, rotation::random, "a rotation");
  check_enum("options.rows", options.rows, kept_rows::host, "a kept_rows");
  if (options.nlist < 1 || options.nlist > kMaxLists) {
    core::throw_invalid("options.nlist", options.nlist, fmt::format("1 to {}", kMaxLists));
  }
  if (options.rotation == rotation::random && options.dim > kMaxRotatedDim) {
    core::throw_invalid("options.rotation", to_string(options.rotation),
                        fmt::format("none for rows of more than {} elements", kMaxRotatedDim));
  }
  ivf_pq_options made = options;
  if (options.code != code_kind::pq) {
    made.pq_dim = options.dim;
    made.pq_bits = options.code == code_kind::sq4 ? 4 : 8;
    return made;
  }
  if (options.pq_bits < kMinPqBits || options.pq_bits > kMaxPqBits) {
    core::throw_invalid("options.pq_bits", options.pq_bits, fmt::format("{} to {}", kMinPqBits, kMaxPqBits));
  }
  if (options.pq_dim == 0) made.pq_dim = rounded_up_quotient(options.dim, 2);
  check_pq_dim(made);
  return made;
}

core::ivf_pq_shape shape_of(const ivf_pq_options& options) {
  return {.dim = options.dim,
          .nlist = options.nlist,
          .pieces = options.pq_dim,
          .piece_dim = rounded_up_quotient(options.dim, options.pq_dim),
          .bits = options.pq_bits,
          .uniform = options.code != code_kind::pq,
          .encodes = options.encodes,
          .metric = options.metric};
}

int round_codebook(std::vector<float>& codebook) {
  const float largest = largest_magnitude(codebook);
  if (largest == 0.0f) return 0;
  const int exponent = std::max(std::ilogb(largest) - kLargestHalfExponent, kLeastCodebookExponent);
  for (float& value : codebook) {
    value = static_cast<float>(std::ldexp(to_half(std::ldexp(static_cast<double>(value), -exponent)), exponent));
  }
  return exponent;
}

bool is_rounded(const std::vector<float>& codebook, int exponent) {
  return std::all_of(codebook.begin(), codebook.end(), [&](float value) {
    const double scaled = std::ldexp(static_cast<double>(value), -exponent);
    return std::abs(scaled) <= std::ldexp(1.0, kLargestHalfExponent + 1) && to_half(scaled) == scaled;
  });
}

std::vector<float> codebook_of(const core::ivf_pq_shape& shape, const std::vector<float>& steps) {
  std::vector<float> codebook(static_cast<std::size_t>(shape.codebook_size()));
  const std::int64_t codewords = shape.codewords();
  const float middle = 0.5f * static_cast<float>(codewords - 1);
  for (std::int64_t i = 0; i < shape.dim; ++i) {
    for (std::int64_t code = 0; code < codewords; ++code) {
      codebook[static_cast<std::size_t>(i * codewords + code)] =
          (static_cast<float>(code) - middle) * steps[static_cast<std::size_t>(i)];
    }
  }
  return codebook;
}

flat_store centroid_store(core::backend& backend, void* stream, const ivf_pq_options& options, scanned_by by,
                          const std::vector<float>& centroids) {
  const bool fast = by == scanned_by::rows && options.nlist >= kPlaneMinLists;
  flat_store made(backend, {.dim = options.dim,
                            .metric = by == scanned_by::rows ? metric::l2 : options.metric,
                            .storage = fast ? storage::int8_and_full : storage::full});
  made.reserve(stream, options.nlist);  // exactly
  made.append(stream, core::copy_kind::host_to_device,
              matrix_view<const float>(centroids.data(), options.nlist, options.dim), {});
  return made;
}

device_memory uploaded(core::backend& backend, void* stream, const void* from, std::int64_t bytes) {
  if (bytes == 0) return {};
  device_memory made(backend, backend.allocate(bytes), bytes);
  backend.copy_rows(stream, core::copy_kind::host_to_device, made.as<void>(), bytes, from, bytes, bytes, 1);
  return made;
}

ivf_pq_model::ivf_pq_model(core::backend& backend, void* stream, const ivf_pq_options& options, ivf_pq_arrays arrays)
    : arrays_(std::move(arrays)),
      probes_(centroid_store(backend, stream, options, scanned_by::queries, arrays_.centroids)),
      assigns_(centroid_store(backend, stream, options, scanned_by::rows, arrays_.centroids)) {
  const auto upload = [&](const std::vector<float>& values) {
    return uploaded(backend, stream, values.data(), static_cast<std::int64_t>(values.size() * sizeof(float)));
  };
  codebook_ = upload(arrays_.codebook);
  steps_ = upload(arrays_.steps);
  rotation_ = upload(arrays_.rotation);
  view_ = {.shape = shape_of(options),
           .probes = probes_.corpus(),
           .assigns = assigns_.corpus(),
           .codebook = codebook_.as<const float>(),
           .steps = steps_.as<const float>(),
           .exponent = arrays_.exponent,
           .rotation = rotation_.as<const float>()};
  core::ivf_pq_ops& ops = backend.ivf_pq();
  if (const std::int64_t prepared_bytes = ops.prepared_bytes(view_.shape); prepared_bytes > 0) {
    prepared_ = device_memory(backend, backend.allocate(prepared_bytes), prepared_bytes);
    ops.prepare(stream, view_, prepared_.as<std::byte>());
    view_.prepared = prepared_.as<const std::byte>();
  }
  backend.synchronize(stream);
}

std::int64_t ivf_pq_model::bytes() const noexcept {
  const auto of = [](const flat_store& store) {
    const memory_use use = store.memory();
    return use.rows_bytes + use.planes_bytes + use.norms_bytes;
  };
  return of(probes_) + of(assigns_) + codebook_.bytes() + steps_.bytes() + rotation_.bytes() + prepared_.bytes();
}

}  // namespace shortlist::index
