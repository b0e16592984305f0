// Training of an IVF-PQ index: rows to their lists and codes on the device, means and balance on the host.
#include "index/ivf_pq_train.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <utility>

#include "core/ivf_pq.hpp"
#include "core/message.hpp"
#include "core/score.hpp"
#include "index/device_memory.hpp"
#include "index/ivf_pq_encode.hpp"
#include "index/widen.hpp"
#include "shortlist/error.hpp"

namespace shortlist::index {
namespace {

constexpr std::int64_t kFloatBytes = sizeof(float);
constexpr std::int64_t kNumberBytes = sizeof(std::int64_t);
constexpr std::int64_t kCodebookRows = 65536;
constexpr std::int64_t kStepRows = 8192;    // scalar steps are one number an element: fewer rows tell
constexpr std::int64_t kCodebookShare = 2;  // iterations of the codebook, over those of the centroids
constexpr int kSumBits = 61;                // of an int64: sums stay below 2^61
constexpr int kLeastExponent = -148;        // of an fp32 number that is not 0
constexpr int kResidualBits = 2;            // by how much a residual may be larger than a row
constexpr int kMostExponent = 126;          // beyond it residuals may overflow

int bits_of(std::int64_t n) { return static_cast<int>(std::bit_width(static_cast<std::uint64_t>(n))); }

/// Number i of m that are spread over [0, n).
std::int64_t spread_number(std::int64_t i, std::int64_t m, std::int64_t n) {
  __extension__ using wide = __int128;
  return static_cast<std::int64_t>(static_cast<wide>(i) * n / m);
}

std::vector<std::int64_t> spread(std::int64_t m, std::int64_t n) {
  std::vector<std::int64_t> made(static_cast<std::size_t>(m));
  for (std::int64_t i = 0; i < m; ++i) made[i] = spread_number(i, m, n);
  return made;
}

/// The smallest a with every magnitude below 2^a.
template <class T>
int exponent_of_rows(const any_matrix_view& rows) {
  std::uint32_t largest = 0;  // bits of magnitudes order as the magnitudes do
  for (std::int64_t row = 0; row < rows.rows; ++row) {
    const T* elements = static_cast<const T*>(rows.data) + row * stride_of(rows);
    for (std::int64_t i = 0; i < rows.cols; ++i) {
      largest = std::max(largest, core::float_bits(core::widen(elements[i])) & ~core::kSignBit);
    }
  }
  return largest == 0 ? kLeastExponent : std::ilogb(core::float_from_bits(largest)) + 1;
}

int exponent_of(const any_matrix_view& rows) {
  switch (rows.type) {
    case element_type::f32: return exponent_of_rows<float>(rows);
    case element_type::f16: return exponent_of_rows<float16>(rows);
    case element_type::bf16: return exponent_of_rows<bfloat16>(rows);
    case element_type::i8: return exponent_of_rows<std::int8_t>(rows);
    case element_type::u8: return exponent_of_rows<std::uint8_t>(rows);
  }
  return 0;
}

class trainer {
 public:
  trainer(core::backend& backend, void* stream, const ivf_pq_options& options, const any_matrix_view& vectors,
          const train_options& training)
      : backend_(backend),
        ops_(backend.ivf_pq()),
        stream_(stream),
        options_(options),
        shape_(shape_of(options)),
        vectors_(vectors),
        training_(training),
        row_count_(std::min(vectors.rows, saturated(options.nlist, training.rows_per_list))) {}

  ivf_pq_arrays run() {
    if (options_.rotation == rotation::random) {
      made_.rotation = random_rotation(options_.seed, options_.dim);
      rotation_ = upload(made_.rotation);
    }
    train_centroids();
    train_codes();
    return std::move(made_);
  }

 private:
  static std::int64_t saturated(std::int64_t a, std::int64_t b) {
    std::int64_t product = 0;
    return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<std::int64_t>::max() : product;
  }

  device_memory allocate(std::int64_t bytes) const { return device_memory(backend_, backend_.allocate(bytes), bytes); }
  template <class T>
  device_memory upload(const std::vector<T>& values) const {
    return uploaded(backend_, stream_, values.data(), static_cast<std::int64_t>(values.size() * sizeof(T)));
  }
  template <class T>
  std::vector<T> download(const device_memory& from) const {
    std::vector<T> made(static_cast<std::size_t>(from.bytes()) / sizeof(T));
    if (!made.empty()) {
      backend_.copy_rows(stream_, core::copy_kind::device_to_host, made.data(), from.bytes(), from.as<void>(),
                         from.bytes(), from.bytes(), 1);
    }
    return made;
  }

  void report(std::string_view stage, std::int64_t step, std::int64_t steps) const {
    if (training_.progress && training_.progress({stage, step, steps}) == proceed::no) {
      throw cancelled(fmt::format("training was cancelled after {} of {} steps of the {}", step, steps, stage));
    }
  }

  /// The rows of these numbers as the index takes them, fp32 on the device, gathered in slices.
  device_memory taken_rows(const std::vector<std::int64_t>& numbers) {
    const std::int64_t dim = options_.dim;
    const std::int64_t row_bytes = dim * size_bytes(vectors_.type);
    const auto count = static_cast<std::int64_t>(numbers.size());
    device_memory taken = allocate(count * dim * kFloatBytes);
    const std::int64_t slice = std::clamp<std::int64_t>(kSliceBytes / row_bytes, 1, count);
    std::vector<std::byte> gathered(static_cast<std::size_t>(slice * row_bytes));
    row_intake intake(backend_, core::copy_kind::host_to_device, vectors_.type, dim, slice);
    for (std::int64_t first = 0; first < count; first += slice) {
      const std::int64_t rows = std::min(slice, count - first);
      for (std::int64_t row = 0; row < rows; ++row) {
        const any_matrix_view from = slice_of(vectors_, numbers[first + row], 1);
        std::memcpy(gathered.data() + row * row_bytes, from.data, static_cast<std::size_t>(row_bytes));
      }
      const any_matrix_view view(gathered.data(), vectors_.type, rows, dim, dim);
      check_finite(backend_, stream_, core::copy_kind::host_to_device, view,
                   std::span(numbers).subspan(static_cast<std::size_t>(first)));
      exponent_ = std::max(exponent_, exponent_of(view));
      intake.take(stream_, options_.metric, rotation_.as<const float>(), view, taken.as<float>() + first * dim);
      backend_.synchronize(stream_);  // `gathered` is written again
    }
    return taken;
  }

  /// Elements of rows as they were taken are below 2^this in magnitude.
  int taken_exponent() const {
    constexpr int kOfUnitRows = 1;  // rounding may lift an element above 1
    const int exponent = options_.metric == metric::cosine ? kOfUnitRows : exponent_;
    if (options_.rotation == rotation::none) return exponent;
    return exponent + bits_of(options_.dim) / 2 + 1;  // a turn keeps the norm alone
  }

  int scale_for(int exponent, std::int64_t rows) const { return kSumBits - exponent - bits_of(rows); }

  /// Centres of groups that have rows become their means.
  static void take_means(std::vector<float>& centres, const std::vector<std::int64_t>& sums,
                         const std::vector<std::int64_t>& counts, std::int64_t dim, int scale) {
    const double unit = std::ldexp(1.0, -scale);  // products with it are exact
    for (std::size_t group = 0; group < counts.size(); ++group) {
      if (counts[group] == 0) continue;
      const auto count = static_cast<double>(counts[group]);
      for (std::size_t i = group * dim; i < (group + 1) * dim; ++i) {
        centres[i] = static_cast<float>(static_cast<double>(sums[i]) / count * unit);
      }
    }
  }

  void train_centroids();
  void train_codes();
  void train_codebook(const device_memory& residuals, std::int64_t rows);
  device_memory residuals_of(const std::vector<std::int64_t>& numbers);
  std::vector<float> first_codebook(const device_memory& residuals, std::int64_t rows) const;

  core::backend& backend_;
  core::ivf_pq_ops& ops_;
  void* stream_;
  const ivf_pq_options& options_;
  core::ivf_pq_shape shape_;
  const any_matrix_view& vectors_;
  const train_options& training_;
  std::int64_t row_count_;
  int exponent_ = kLeastExponent;  ///< magnitudes of rows as given are below 2^this
  device_memory rotation_;
  ivf_pq_arrays made_;
};

void trainer::train_centroids() {
  const std::int64_t nlist = options_.nlist, dim = options_.dim;
  const std::vector<std::int64_t> numbers = spread(row_count_, vectors_.rows);
  const device_memory rows = taken_rows(numbers);
  const int exponent = taken_exponent();
  if (exponent + kResidualBits > kMostExponent) {
    core::throw_invalid("vectors", fmt::format("with elements that may become as large as 2^{}", exponent),
                        fmt::format("up to 2^{}: differences of rows must be finite", kMostExponent - kResidualBits));
  }
  random_numbers random(options_.seed, random_use::centroids);
  std::vector<std::int64_t> beginning = chosen_numbers(random, row_count_, nlist);
  for (std::int64_t& number : beginning) number = numbers[number];
  made_.centroids = download<float>(taken_rows(beginning));

  const device_memory lists = allocate(row_count_ * kNumberBytes);
  const device_memory sums = allocate(nlist * dim * kNumberBytes);
  const device_memory counts = allocate(nlist * kNumberBytes);
  const int scale = scale_for(exponent, row_count_);
  std::unique_ptr<list_assigner> assigner;
  for (std::int64_t iteration = 1; iteration <= training_.iterations; ++iteration) {
    const flat_store centroids = centroid_store(backend_, stream_, options_, scanned_by::rows, made_.centroids);
    if (!assigner) assigner = std::make_unique<list_assigner>(backend_, centroids.corpus(), row_count_);
    assigner->assign(stream_, centroids.corpus(), rows.as<const float>(), row_count_, lists.as<std::int64_t>());
    backend_.zero(stream_, sums.as<void>(), sums.bytes());
    backend_.zero(stream_, counts.as<void>(), counts.bytes());
    ops_.add_to_means(stream_, rows.as<const float>(), row_count_, dim, lists.as<const std::int64_t>(), scale,
                      sums.as<std::int64_t>(), counts.as<std::int64_t>());
    std::vector<std::int64_t> group_sizes = download<std::int64_t>(counts);
    take_means(made_.centroids, download<std::int64_t>(sums), group_sizes, dim, scale);
    if (iteration < training_.iterations) balance(made_.centroids.data(), group_sizes.data(), nlist, dim);
    report("centroids", iteration, training_.iterations);
  }
}

/// What codes of the rows of these numbers stand for, [n, padded_dim].
device_memory trainer::residuals_of(const std::vector<std::int64_t>& numbers) {
  const auto rows = static_cast<std::int64_t>(numbers.size());
  const device_memory taken = taken_rows(numbers);
  const device_memory lists = allocate(rows * kNumberBytes);
  const flat_store store = centroid_store(backend_, stream_, options_, scanned_by::rows, made_.centroids);
  const core::flat_corpus centroids = store.corpus();
  list_assigner(backend_, centroids, rows)
      .assign(stream_, centroids, taken.as<const float>(), rows, lists.as<std::int64_t>());
  device_memory residuals = allocate(rows * shape_.padded_dim() * kFloatBytes);
  ops_.residuals(stream_, shape_, taken.as<const float>(), rows, lists.as<const std::int64_t>(),
                 static_cast<const float*>(centroids.rows), centroids.row_stride_bytes / kFloatBytes,
                 residuals.as<float>());
  backend_.synchronize(stream_);
  return residuals;
}

void trainer::train_codes() {
  const std::int64_t rows = std::min(row_count_, shape_.uniform ? kStepRows : kCodebookRows);
  std::vector<std::int64_t> numbers = spread(rows, row_count_);
  for (std::int64_t& number : numbers) number = spread_number(number, row_count_, vectors_.rows);
  const device_memory residuals = residuals_of(numbers);
  if (!shape_.uniform) return train_codebook(residuals, rows);
  made_.steps = scalar_steps(shape_, download<float>(residuals), rows);
  made_.codebook = codebook_of(shape_, made_.steps);
  report("codebook", 1, 1);
}

/// Codewords are pieces of rows that the seed chooses, the same rows for all pieces; again from the first where there
/// are fewer rows than codewords.
std::vector<float> trainer::first_codebook(const device_memory& residuals, std::int64_t rows) const {
  const std::int64_t codewords = shape_.codewords(), piece_dim = shape_.piece_dim;
  random_numbers random(options_.seed, random_use::codebook);
  const std::vector<std::int64_t> chosen = chosen_numbers(random, rows, std::min(rows, codewords));
  const std::int64_t row_bytes = shape_.padded_dim() * kFloatBytes;
  std::vector<float> codebook(static_cast<std::size_t>(shape_.codebook_size()));
  std::vector<float> row(static_cast<std::size_t>(shape_.padded_dim()));
  for (std::int64_t code = 0; code < codewords; ++code) {
    const std::int64_t number = chosen[static_cast<std::size_t>(code) % chosen.size()];
    backend_.copy_rows(stream_, core::copy_kind::device_to_host, row.data(), row_bytes,
                       residuals.as<const float>() + number * shape_.padded_dim(), row_bytes, row_bytes, 1);
    for (std::int64_t piece = 0; piece < shape_.pieces; ++piece) {
      std::copy_n(row.begin() + piece * piece_dim, piece_dim,
                  codebook.begin() + (piece * codewords + code) * piece_dim);
    }
  }
  return codebook;
}

void trainer::train_codebook(const device_memory& residuals, std::int64_t rows) {
  const std::int64_t codewords = shape_.codewords(), piece_dim = shape_.piece_dim;
  made_.codebook = first_codebook(residuals, rows);
  const device_memory codes = allocate(rows * shape_.pieces);
  const device_memory sums = allocate(shape_.codebook_size() * kNumberBytes);
  const device_memory counts = allocate(shape_.pieces * codewords * kNumberBytes);
  const int scale = scale_for(taken_exponent() + kResidualBits, rows);
  const std::int64_t steps = training_.iterations * kCodebookShare;
  for (std::int64_t step = 1; step <= steps; ++step) {
    const device_memory codebook = upload(made_.codebook);
    ops_.encode(stream_, shape_, codebook.as<const float>(), residuals.as<const float>(), rows,
                codes.as<std::uint8_t>());
    backend_.zero(stream_, sums.as<void>(), sums.bytes());
    backend_.zero(stream_, counts.as<void>(), counts.bytes());
    ops_.add_to_codewords(stream_, shape_, residuals.as<const float>(), rows, codes.as<const std::uint8_t>(), scale,
                          sums.as<std::int64_t>(), counts.as<std::int64_t>());
    std::vector<std::int64_t> group_sizes = download<std::int64_t>(counts);
    take_means(made_.codebook, download<std::int64_t>(sums), group_sizes, piece_dim, scale);
    for (std::int64_t piece = 0; step < steps && piece < shape_.pieces; ++piece) {
      balance(made_.codebook.data() + piece * codewords * piece_dim, group_sizes.data() + piece * codewords, codewords,
              piece_dim);
    }
    report("codebook", step, steps);
  }
  made_.exponent = round_codebook(made_.codebook);
}

}  // namespace

ivf_pq_arrays train_ivf_pq(core::backend& backend, void* stream, const ivf_pq_options& options,
                           const any_matrix_view& vectors, const train_options& training) {
  return trainer(backend, stream, options, vectors, training).run();
}

}  // namespace shortlist::index
