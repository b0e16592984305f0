// The deep-like set on the host. See deep_like.hpp.
#include "deep_like.hpp"

#include <algorithm>
#include <cmath>

#include "parallel.hpp"
#include "random.hpp"

namespace shortlist::benchmark {
namespace {

using namespace deep_like_row;

constexpr std::uint64_t kCentresSeed = 11;
constexpr std::uint64_t kMatrixSeed = 12;
constexpr std::uint64_t kWeightsSeed = 13;
constexpr std::uint64_t kNearSeed = 14;
constexpr double kLeastWeight = 0.02;
constexpr std::int64_t kFirstQuery = std::int64_t{1} << 40;  // vectors from here on are queries
constexpr float kNearNoise = 0.02f;                          // an element's, where a row's own is about 0.1

/// A standard normal number of a table; the same functions as those of vectors, so that no library's enters.
float table_normal(std::uint64_t seed, std::int64_t i) {
  return two_normals(random_bits((seed << 56) + static_cast<std::uint64_t>(i))).cosine;
}

void write_vector(const tables& from, std::int64_t index, float* to) {
  const auto counter = static_cast<std::uint64_t>(index);
  lane_numbers numbers[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) numbers[lane] = numbers_of_lane(counter, lane);
  const float* centre = from.centres + cluster_of(from.thresholds, counter) * kLatent;
  float sums[kDim] = {};
  for (int j = 0; j < kLatent; ++j) {
    const float latent = centre[j] + kNormalShare * numbers[j].latent;
    for (int i = 0; i < kDim; ++i) sums[i] = sums[i] + latent * from.matrix[j * kDim + i];
  }
  float squares[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) {
    float x[kOfLane];
    for (int e = 0; e < kOfLane; ++e) {
      x[e] = element(sums[lane + e * kLanes], numbers[lane].noise[e]);
      to[lane + e * kLanes] = x[e];
    }
    squares[lane] = sum_of_squares(x);
  }
  for (int apart = kLanes / 2; apart > 0; apart /= 2)
    for (int lane = 0; lane < apart; ++lane) squares[lane] = squares[lane] + squares[lane + apart];
  const float length = std::sqrt(squares[0]);
  for (int i = 0; i < kDim; ++i) to[i] = to[i] / length;
}

}  // namespace

deep_like::deep_like()
    : centres_(static_cast<std::size_t>(kClusters) * kLatent),
      matrix_(static_cast<std::size_t>(kLatent) * kDim),
      thresholds_(kClusters) {
  for (std::size_t i = 0; i < centres_.size(); ++i)
    centres_[i] = kCentreShare * table_normal(kCentresSeed, static_cast<std::int64_t>(i));
  for (std::size_t i = 0; i < matrix_.size(); ++i) matrix_[i] = table_normal(kMatrixSeed, static_cast<std::int64_t>(i));
  std::vector<double> sums;
  double sum = 0;
  for (std::int64_t cluster = 0; cluster < kClusters; ++cluster) {
    const double u = random_row(kWeightsSeed, cluster).uniform();
    sum += u * u * u + kLeastWeight;
    sums.push_back(sum);
  }
  constexpr double kAllOnes = 4294967295.0;
  std::transform(sums.begin(), sums.end(), thresholds_.begin(),
                 [&](double part) { return static_cast<std::uint32_t>(part / sum * kAllOnes); });
  thresholds_.back() = ~0u;
}

void deep_like::write(std::int64_t first, std::int64_t count, float* to) const {
  const tables from{centres_.data(), matrix_.data(), thresholds_.data()};
  over_cores(count, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) write_vector(from, first + i, to + i * kDim);
  });
}

void deep_like::write_queries(std::int64_t first, std::int64_t count, float* to) const {
  write(kFirstQuery + first, count, to);
}

std::vector<float> deep_like::queries(std::int64_t count) const {
  std::vector<float> made(static_cast<std::size_t>(count * kDim));
  write_queries(0, count, made.data());
  return made;
}

std::vector<float> deep_like::queries_near_row(std::int64_t row, std::int64_t count) const {
  float centre[kDim];
  write_rows(row, 1, centre);
  std::vector<float> made(static_cast<std::size_t>(count * kDim));
  for (std::size_t i = 0; i < made.size(); ++i)
    made[i] = centre[i % kDim] + kNearNoise * table_normal(kNearSeed, static_cast<std::int64_t>(i));
  return made;
}

}  // namespace shortlist::benchmark
